"""Where a model's files are: a local folder, the library's cache, or the hub.

Owns finding and fetching files and the sentences about what is missing. Refuses to know how weights
become a model. Invariant: what comes out is a local folder with a config and all of its weights as
safetensors, so loading never opens a connection; nothing is printed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuichat.api import KnownModel, LoadRequest, ModelNotAvailable, Progress, ProgressCallback

log = logging.getLogger(__name__)

_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.safetensors"]
# The format's own limit.
_MAX_HEADER_BYTES = 100_000_000

_CURE = "use --model demo, give a local folder, or go online"


def find_checkpoint(
    request: LoadRequest, progress: ProgressCallback, known: Sequence[KnownModel] = ()
) -> Path:
    """The folder of the requested model, fetched if need be and allowed.

    Args:
        request: names a hub id or a local folder.
        progress: told the bytes of a download.
        known: sizes for the sentence about what is missing.

    Raises:
        ModelNotAvailable: not on this machine and not to be had, or not a model; in one sentence.
    """
    path = Path(request.model).expanduser()
    if path.is_dir():
        folder = path
    elif path.exists():
        raise ModelNotAvailable(f"{path} is a file; --model takes a model's folder or a hub id")
    elif request.model.startswith(("/", "./", "../", "~")) or request.model.count("/") > 1:
        raise ModelNotAvailable(f"there is no folder {path}; --model takes a folder or a hub id")
    else:
        folder = _from_hub(request, progress, known)
    _check_complete(folder, request.model)
    return folder


def _check_complete(folder: Path, name: str) -> None:
    missing = missing_files(folder)
    if "config.json" in missing:
        raise ModelNotAvailable(
            f"{name} is not a model: {folder} has no config.json; give the folder that "
            "save_pretrained wrote, or a hub id"
        )
    if missing:
        others = any(folder.glob("*.bin")) or any(folder.glob("*.pth"))
        cure = "fetch it again"
        if others:
            cure = "weights in other formats are not read, so convert them to safetensors"
        raise ModelNotAvailable(f"{name} is incomplete: {folder} lacks {_some(missing)}; {cure}")


def missing_files(folder: Path) -> list[str]:
    """Names of the files that a model's folder lacks: config, weights, tokenizer."""
    wanted = ["config.json", *_weight_files(folder), "tokenizer_config.json"]
    return [name for name in wanted if not (folder / name).is_file()]


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as a safetensors header describes it."""

    shape: tuple[int, ...]
    dtype: str
    """The format's own name: ``F16``, ``BF16``, ``F32``, ``U8`` …"""
    bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        """Whether it is cast to the working dtype when it is loaded."""
        return self.dtype in ("F64", "F32", "F16", "BF16")


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder's weights, from the headers alone.

    Empty if a header cannot be read: the load itself then says that the file is damaged.
    """
    found = {}
    try:
        for name in _weight_files(folder):
            with (folder / name).open("rb") as stream:
                size = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(size, _MAX_HEADER_BYTES)))
            header.pop("__metadata__", None)
            for key, entry in header.items():
                begin, end = entry["data_offsets"]
                found[key] = StoredTensor(tuple(entry["shape"]), entry["dtype"], end - begin)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("the header of the weights in %s cannot be read: %s", folder, error)
        return {}
    return found


def _some(names: Sequence[str]) -> str:
    if len(names) < 3:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more files"


def _from_hub(
    request: LoadRequest, progress: ProgressCallback, known: Sequence[KnownModel]
) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    model = next((model for model in known if model.id == request.model), None)
    revision = request.revision or (model.revision if model else None)
    offline = request.offline or bool(os.environ.get("HF_HUB_OFFLINE"))
    name = request.model
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=request.cache_dir,
            allow_patterns=_FILES,
            local_files_only=offline,
            tqdm_class=_byte_counter(progress, name),
        )
        return Path(folder)
    except HFValidationError:
        raise ModelNotAvailable(
            f"{name!r} is neither a folder here nor a hub id of the form owner/name"
        ) from None
    except GatedRepoError:
        raise ModelNotAvailable(
            f"{name} is gated: accept its terms on the hub and log in with `hf auth login`, or "
            "use another model"
        ) from None
    except RevisionNotFoundError:
        raise ModelNotAvailable(f"{name} has no revision {revision!r} on the hub") from None
    except RepositoryNotFoundError:
        raise ModelNotAvailable(
            f"there is no repository {name} on the hub, or it is private; check the name, or use "
            "--model demo or a local folder"
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        log.info("%s could not be fetched: %s", name, error)
        why = "tuichat is offline" if offline else "the hub cannot be reached"
        size = f" ({model.bytes / 1e9:.1f} GB)" if model and model.bytes else ""
        partial = getattr(error, "snapshot_path", None)
        missing = "its config, tokenizer and weights"
        if partial is not None:
            missing = _some(missing_files(Path(partial))) or missing
        raise ModelNotAvailable(
            f"{name} is not on this machine and {why}: missing are {missing}{size}; {_CURE}"
        ) from None


def _byte_counter(progress: ProgressCallback, name: str) -> type[Any]:
    """A progress bar class for the hub library that reports bytes and prints nothing."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    most = 0.0
    lock = threading.Lock()

    class ByteCounter(tqdm):  # type: ignore[misc]
        """There are two bars of bytes, received and written, and one of files: whichever bar of
        bytes is ahead speaks. Several files arrive at once, each on a thread."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            with lock:
                self.n += n or 0
                if not self._counts_bytes or not self.total or self.n <= most:
                    return
                most = self.n
                done = min(self.n, self.total)
                progress(Progress("download", done, self.total, unit="bytes", detail=name))

    return ByteCounter
