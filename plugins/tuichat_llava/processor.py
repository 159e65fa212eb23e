"""What a LLaVA checkpoint's processor settings claim about image tokens, against what is true.

Owns the arithmetic of ``LlavaProcessor``, only to say where it is wrong: the count that prompts are
made with is taken from the model's features. Invariant: nothing here changes a prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_KEYS = ("patch_size", "vision_feature_select_strategy")


def processor_notices(folder: Path, config: Any, image_tokens: int) -> list[str]:
    """Sentences about processor settings that are missing or do not fit the model.

    Args:
        folder: the checkpoint.
        config: the model's config.
        image_tokens: features that the model really makes of an image.
    """
    settings = _settings(folder)
    counted = f"the model makes {image_tokens} tokens of an image, which is what prompts get"
    missing = [key for key in _KEYS if settings.get(key) is None]
    if missing:
        return [f"The processor has no {' and no '.join(missing)}: {counted}."]
    size = config.vision_config.image_size
    claimed = (size // int(settings["patch_size"])) ** 2
    claimed += int(settings.get("num_additional_image_tokens") or 0)
    claimed -= settings["vision_feature_select_strategy"] == "default"
    if claimed != image_tokens:
        return [f"The processor's settings amount to {claimed} image tokens: {counted}."]
    return []


def _settings(folder: Path) -> dict[str, Any]:
    for name in ("processor_config.json", "preprocessor_config.json"):
        try:
            settings = json.loads((folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict):
            return settings
    return {}
