"""What a LLaVA checkpoint's settings get wrong about its images.

Owns the few settings that cannot be true of the model, which are mended before the load, and the
arithmetic of the official processors, only to say where it is wrong: the counts that prompts are
made with come from the model. Invariant: everything that is mended or wrong is said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuichat_llava.tiles import Tiles, tile_limit

_TOWERS = ("clip_vision_model", "siglip_vision_model")

# What the official processor of each architecture counts with.
_KEYS = {
    "llava": ("patch_size", "vision_feature_select_strategy"),
    "llava_next": ("patch_size", "vision_feature_select_strategy"),
    "llava_onevision": ("num_image_tokens", "vision_feature_select_strategy"),
}


def refusal(config: Any) -> str | None:
    """Why a checkpoint of an accepted architecture cannot be run, in words, or None."""
    tower = config.vision_config.model_type
    if tower not in _TOWERS:
        return (
            f"its vision tower is a {tower}, whose images take rows of tokens of their own; the "
            "backend runs CLIP and SigLIP towers"
        )
    aspect_ratio = getattr(config, "vision_aspect_ratio", "anyres_max_9")
    if tile_limit(aspect_ratio) is None:
        return f"its vision_aspect_ratio is {aspect_ratio}; the backend runs anyres_max_N"
    return None


def mend(config: Any, image_processor: Any) -> list[str]:
    """Set right, in place, what cannot be true of the model; what was done, in words.

    Args:
        config: the model's config.
        image_processor: the checkpoint's image processor.
    """
    has_class_token = config.vision_config.model_type == "clip_vision_model"
    strategy = config.vision_feature_select_strategy
    if Tiles.of(config) is None:
        if strategy == "default" and not has_class_token:
            return [
                "The vision tower has no class token, but config.json has the first feature of "
                "each image dropped (vision_feature_select_strategy default): it is, as it was in "
                "training."
            ]
        return []
    notices = []
    # Tiles are put back together into one plane: that takes all patches of each, and only those.
    fitting = "default" if has_class_token else "full"
    if strategy != fitting:
        config.vision_feature_select_strategy = fitting
        notices.append(
            f"The vision tower has {'a' if has_class_token else 'no'} class token, which "
            f"vision_feature_select_strategy {strategy} in config.json does not fit: {fitting} is "
            "used."
        )
    wanted = [list(resolution) for resolution in config.image_grid_pinpoints]
    if [list(r) for r in image_processor.image_grid_pinpoints] != wanted:
        image_processor.image_grid_pinpoints = wanted
        notices.append(
            "The image processor's image_grid_pinpoints are not those of config.json, which are "
            "used."
        )
    return notices


def processor_notices(folder: Path, config: Any, image_tokens: int) -> list[str]:
    """Sentences about processor settings that are missing or do not fit the model.

    Args:
        folder: the checkpoint.
        config: the model's config.
        image_tokens: features that the model makes of an image, if it makes no tiles.
    """
    settings, unit = _settings(folder), "an image"
    if (tiles := Tiles.of(config)) is not None:
        image_tokens, unit = tiles.features**2, "a tile"
    counted = f"the model makes {image_tokens} tokens of {unit}, which is what prompts get"
    missing = [key for key in _KEYS[config.model_type] if settings.get(key) is None]
    if missing:
        return [f"The processor has no {' and no '.join(missing)}: {counted}."]
    if config.model_type == "llava_onevision":
        claimed = int(settings["num_image_tokens"])
    else:
        claimed = (config.vision_config.image_size // int(settings["patch_size"])) ** 2
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
