"""What stands around the weights of a checkpoint: tokenizer, image processor, chat template.

Owns reading them, and what has to be mended in them. Refuses to know weights and devices.
Invariant: each is loaded by itself and never through the processor class that unites them, which
cannot be built without torchvision for some models; no code from a checkpoint is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuichat.api import ModelNotAvailable
from tuichat.torchkit.failures import first_line
from tuichat.torchkit.template import ChatTemplate, builtin_template
from tuichat.torchkit.tokens import PromptTokenizer

# Added tokens that end a turn in the models that have them, whatever their configs forget.
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eot|>", "<|endoftext|>")


def load_processors(folder: Path, name: str) -> tuple[Any, Any]:
    """Tokenizer and image processor of a checkpoint.

    Raises:
        ModelNotAvailable: one of them cannot be read.
    """
    from transformers import AutoImageProcessor, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # files from outside
        raise ModelNotAvailable(
            f"the tokenizer of {name} in {folder} cannot be read: {first_line(error)}"
        ) from error
    try:
        image_processor = AutoImageProcessor.from_pretrained(
            folder, backend="pil", trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        raise ModelNotAvailable(
            f"the image processor of {name} in {folder} cannot be read: {first_line(error)}"
        ) from error
    return tokenizer, image_processor


def load_template(folder: Path, config: Any, tokenizer: Any) -> tuple[ChatTemplate, list[str]]:
    """The checkpoint's chat template, ready to use, and what had to be mended, in words.

    Raises:
        ModelNotAvailable: the tokenizer has no placeholder for images.
        BackendError: the template cannot be used with images.
    """
    tokens = PromptTokenizer(tokenizer)
    notices = []
    image_token = _image_token(folder, config, tokenizer, tokens)
    image_id = tokenizer.convert_tokens_to_ids(image_token)
    declared = getattr(config, "image_token_id", None)
    if declared is not None and declared != image_id:
        notices.append(
            f"config.json gives the image placeholder the id {declared}, the tokenizer gives "
            f"{image_token} the id {image_id}, which is used."
        )
    source = _template_source(folder, tokenizer)
    if source is None:
        family = config.get_text_config().model_type
        source, style = builtin_template(tokens.control_tokens, family)
        source = source.replace("<image>", image_token)
        notices.append(f"The checkpoint has no chat template: {style}'s is used.")
    template = ChatTemplate(source, tokenizer, tokens, image_token=image_token, image_id=image_id)
    return template, notices


def _template_source(folder: Path, tokenizer: Any) -> str | None:
    """The chat template: the processor's files come before the tokenizer's own."""
    if (jinja := folder / "chat_template.jinja").is_file():
        return jinja.read_text("utf-8")
    for name in ("chat_template.json", "processor_config.json"):
        found = _read_json(folder / name).get("chat_template")
        if isinstance(found, str):
            return found
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = source.get("default")
    return source if isinstance(source, str) else None


def _image_token(folder: Path, config: Any, tokenizer: Any, tokens: PromptTokenizer) -> str:
    declared = getattr(config, "image_token_id", None)
    candidates = [
        _read_json(folder / "processor_config.json").get("image_token"),
        getattr(tokenizer, "image_token", None),
        "<image>",
        tokenizer.convert_ids_to_tokens(declared) if declared is not None else None,
    ]
    for candidate in candidates:
        if candidate in tokens.control_tokens:
            return str(candidate)
    raise ModelNotAvailable(
        f"the tokenizer in {folder} has no placeholder for images ({candidates[0] or '<image>'}), "
        "so images cannot be shown to this model"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def end_ids(tokenizer: Any, model: Any) -> frozenset[int]:
    """Every id that ends a turn: tokenizer's, config's and generation config's, and the added
    tokens that end turns in the models that have them."""
    text_config = model.config.get_text_config()
    found: list[Any] = [tokenizer.eos_token_id, getattr(model.config, "eos_token_id", None)]
    found.append(getattr(text_config, "eos_token_id", None))
    found.append(getattr(model.generation_config, "eos_token_id", None))
    added = tokenizer.get_added_vocab()
    found.append([added[token] for token in _TURN_ENDS if token in added])
    flat = [id for ids in found for id in (ids if isinstance(ids, (list, tuple)) else [ids])]
    return frozenset(int(id) for id in flat if id is not None)
