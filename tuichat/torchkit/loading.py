"""Loading a vision-language model of the hub.

Owns the way from a ``LoadRequest`` to a handle that can be aligned and asked. Refuses to know any
single architecture beyond the transformers class that a plugin names. Invariants: one working
dtype, decided before the load and set everywhere (nested configs, quantised layers); no code from
a checkpoint is ever run; no library prints.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tuichat.api import (
    BackendError,
    Capabilities,
    KnownModel,
    Loaded,
    LoadRequest,
    ModelFacts,
    ModelNotAvailable,
    Progress,
    ProgressCallback,
)
from tuichat.torchkit.alignment import align, plan_alignment
from tuichat.torchkit.checkpoint import find_checkpoint, stored_tensors
from tuichat.torchkit.dtype import NAMES, name_of, resolve_device, resolve_dtype
from tuichat.torchkit.failures import first_line, free_memory, is_out_of_memory
from tuichat.torchkit.fit import FreeMemory, check_fit, free_bytes
from tuichat.torchkit.hub import HubVisionLanguageModel
from tuichat.torchkit.images import TokenCount
from tuichat.torchkit.processors import end_ids, load_processors, load_template
from tuichat.torchkit.quantize import quantization_config, spare_cpu_kernel, verify_quantised
from tuichat.torchkit.quiet import quiet_libraries

log = logging.getLogger(__name__)

Accepted = Mapping[str, str]
"""``model_type`` of a config → name of the transformers class that runs it."""

# Matrices of a model this small are not worth sharing among threads: waiting for each other costs
# more than it gives, and beside other busy processes many times more.
_ONE_THREAD_PARAMETERS = 20_000_000


def load_hub_model(
    request: LoadRequest,
    progress: ProgressCallback,
    *,
    accepted: Accepted,
    refuse: Callable[[Any], str | None] | None = None,
    mend: Callable[[Any, Any], Sequence[str]] | None = None,
    count_tokens: Callable[[Any], TokenCount | None] | None = None,
    known: Sequence[KnownModel] = (),
    capabilities: Capabilities | None = None,
    preferred: torch.dtype = torch.float16,
    free: FreeMemory = free_bytes,
) -> Loaded:
    """Load a model of transformers as a ``HubVisionLanguageModel``, aligned and checked.

    Args:
        request: what to load, and how.
        progress: told the stages ``import``, ``download``, ``weights``, ``align``, ``warmup``.
        accepted: the architectures that the calling backend runs.
        refuse: looks at the config before any weight is read; why this checkpoint cannot be run,
            in words, or None.
        mend: sets right, in place, what the config and the image processor get wrong, before any
            weight is read; what it did, in words.
        count_tokens: from the config, arithmetic for the tokens of an image; None where every
            image takes the same.
        known: the backend's models, for sizes in sentences.
        capabilities: the backend's limits; what the checkpoint says goes on top.
        preferred: working dtype on a GPU when nothing speaks against it.
        free: bytes that are free on a device, or None where that is not known.

    Raises:
        ModelNotAvailable: the files are not to be had, or are not such a model.
        BackendError: anything else that a person can do something about.
    """

    def report(step: Progress) -> None:
        try:
            progress(step)
        except Exception as error:
            raise _Cancelled(error) from error

    try:
        report(Progress("import"))
        with quiet_libraries(report):
            folder = find_checkpoint(request, report, known)
            config, class_name = _read_config(folder, request.model, accepted)
            if refuse is not None and (reason := refuse(config)) is not None:
                raise ModelNotAvailable(f"{request.model} cannot be run: {reason}")
            loaded = _load(
                request,
                report,
                folder,
                config,
                class_name,
                mend=mend,
                count_tokens=count_tokens,
                preferred=preferred,
                known=known,
                free=free,
                limits=capabilities or Capabilities(),
            )
    except _Cancelled as cancelled:
        raise cancelled.error from None
    for notice in loaded.facts.notices:
        log.info("%s: %s", request.model, notice)
    return loaded


class _Cancelled(BaseException):
    """The host's callback raised to cancel: no library on the way may catch it as its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _load(
    request: LoadRequest,
    progress: ProgressCallback,
    folder: Path,
    config: Any,
    class_name: str,
    *,
    mend: Callable[[Any, Any], Sequence[str]] | None,
    count_tokens: Callable[[Any], TokenCount | None] | None,
    preferred: torch.dtype,
    known: Sequence[KnownModel],
    free: FreeMemory,
    limits: Capabilities,
) -> Loaded:
    device = resolve_device(request.device)
    stored = stored_tensors(folder)
    parameters = sum(tensor.elements for tensor in stored.values())
    if device.type == "cpu" and 0 < parameters <= _ONE_THREAD_PARAMETERS:
        torch.set_num_threads(1)
    resolved = resolve_dtype(
        request.dtype,
        device,
        preferred=preferred,
        checkpoint=_stored_dtype(config),
        parameters=parameters,
    )
    notices = [*resolved.notices, *unify_dtype(config, resolved.dtype)]
    if request.quantize and getattr(config, "quantization_config", None) is not None:
        notices.append("The checkpoint is stored quantised: --quantize changes nothing in it.")
    # Before the weights, which take long: what is wrong with these shows at once.
    tokenizer, image_processor = load_processors(folder, request.model)
    template, mended = load_template(folder, config, tokenizer)
    if mend is not None:
        mended += mend(config, image_processor)
    check_fit(request, stored, config, device, resolved.dtype, known=known, free=free)
    model = _load_weights(request, progress, folder, config, class_name, device, resolved.dtype)
    facts = ModelFacts(
        context_length=getattr(config.get_text_config(), "max_position_embeddings", None),
        end_ids=end_ids(tokenizer, model),
        capabilities=replace(limits, plain_text_markers=template.plain_text_markers),
    )
    handle = HubVisionLanguageModel(
        model,
        tokenizer=tokenizer,
        image_processor=image_processor,
        template=template,
        facts=facts,
        folder=folder,
        count_tokens=count_tokens(config) if count_tokens is not None else None,
    )
    progress(Progress("align"))
    handle.plan = plan_alignment(
        handle, resolved.dtype, resolved.reason, automatic=request.dtype == "auto"
    )
    repaired = [row for row in align(handle, handle.plan).rows if row.changed]
    notices += mended
    notices += [f"The {row.component} was repaired: {row.reason}." for row in repaired]
    progress(Progress("warmup"))
    handle.images.warm_up()
    return Loaded(handle, replace(facts, notices=tuple(notices)))


# --------------------------------------------------------------------------- what is in the folder


def _read_config(folder: Path, name: str, accepted: Accepted) -> tuple[Any, str]:
    """The config of a checkpoint and the name of the class that runs it."""
    from transformers import AutoConfig

    try:
        raw = json.loads((folder / "config.json").read_text("utf-8"))
        kind = str(raw.get("model_type", "nameless"))
    except (OSError, ValueError, AttributeError) as error:
        raise ModelNotAvailable(f"{folder / 'config.json'} cannot be read: {error}") from error
    if kind not in accepted:
        classes = ", ".join(raw.get("architectures") or ["no architecture named"])
        raise ModelNotAvailable(
            f"{name} is a {kind} model ({classes}), which this backend does not run; it runs "
            f"{', '.join(sorted(set(accepted.values())))}"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a config is input from outside: any type can be wrong in it
        raise ModelNotAvailable(
            f"{folder / 'config.json'} is not a valid {kind} config: {first_line(error)}"
        ) from error
    return config, accepted[kind]


def _stored_dtype(config: Any) -> torch.dtype | None:
    stored = config.dtype or config.get_text_config().dtype
    return NAMES.get(stored) if isinstance(stored, str) else stored


def unify_dtype(config: Any, dtype: torch.dtype) -> list[str]:
    """Set one dtype in a config and in all that are nested in it; where they disagreed, in words.

    A nested config that says float32 makes a mixed model of a checkpoint that is loaded in half
    precision.
    """
    top = config.dtype
    notices = []
    for key in config.sub_configs:
        nested = getattr(config, key, None)
        if nested is None:
            continue
        if nested.dtype is not None and top is not None and nested.dtype != top:
            notices.append(
                f"config.json says {_dtype_name(top)}, and {_dtype_name(nested.dtype)} in {key}: "
                f"both are loaded in {name_of(dtype)}."
            )
        nested.dtype = dtype
    config.dtype = dtype
    return notices


def _dtype_name(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else name_of(dtype)


# --------------------------------------------------------------------------- weights


def _load_weights(
    request: LoadRequest,
    progress: ProgressCallback,
    folder: Path,
    config: Any,
    class_name: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    import transformers

    model_class = getattr(transformers, class_name)
    quantisation = request.quantize or "none"
    # A checkpoint that is stored quantised stays as whoever made it chose.
    stored = getattr(config, "quantization_config", None) is not None
    options: dict[str, Any] = {}
    if (attention := request.options.get("attn")) is not None:
        options["attn_implementation"] = attention
    if not stored and quantisation != "none":
        options["quantization_config"] = quantization_config(
            model_class, config, quantisation, dtype
        )
    if device.type != "cpu" or stored or quantisation != "none":
        options["device_map"] = {"": str(device)}
    progress(Progress("weights", detail=request.model))
    try:
        model, info = model_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except Exception as error:
        raise _load_failure(error, request.model, folder, device) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelNotAvailable(
            f"{request.model} is incomplete: {len(missing)} weights of {class_name} are not in "
            f"its files, {missing[0]} for one; fetch it again or use another model"
        )
    if not stored:
        verify_quantised(model, quantisation)
    spare_cpu_kernel(model)
    return model


def _load_failure(error: Exception, name: str, folder: Path, device: torch.device) -> BackendError:
    from safetensors import SafetensorError

    if is_out_of_memory(error):
        return BackendError(
            f"{name} does not fit on {device}{free_memory(device)}: load it with --quantize 4bit, "
            "on another --device, or use a smaller model"
        )
    if isinstance(error, SafetensorError):
        return ModelNotAvailable(
            f"the weights of {name} in {folder} are damaged ({first_line(error)}); fetch it again"
        )
    if isinstance(error, ImportError):
        return BackendError(f"loading {name} needs a package that is missing: {first_line(error)}")
    return BackendError(
        f"{name} could not be loaded ({type(error).__name__}: {first_line(error)}); the log has "
        "the details"
    )
