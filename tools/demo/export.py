"""Export: from a training state to a folder that `from_pretrained` of the ordinary classes loads.

Owns the files of the checkpoint. Refuses to know how it was trained; the model card is written by
`card.py`.

Invariant: the folder holds float16 weights of at most 4 MB and nothing that names this machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from .dataset import IMAGE_MEAN, IMAGE_STD
from .joint_stage import Parts
from .model import MAX_POSITIONS, llava_config
from .render import GRID, IMAGE_SIZE, PATCH_SIZE
from .schedule import load_stage
from .tokenizer import BOS, CHAT_TEMPLATE, EOS, IMAGE_TOKEN, PAD, SPECIALS, ChatEncoder

MAX_BYTES = 4_000_000


def build_model(parts: Parts, vocab_size: int) -> LlavaForConditionalGeneration:
    """The trained parts in LLaVA's place for them."""
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(llava_config(vocab_size))
    with torch.no_grad():
        # The last vision layer is never read (`vision_feature_layer` is -2). Loud noise in it makes
        # a client that reads the wrong layer visible, where a quiet start would change nothing.
        for param in model.model.vision_tower.encoder.layers[-1].parameters():
            if param.ndim == 2:
                param.normal_(std=2.0)
    tower = model.model.vision_tower.load_state_dict(parts.vision.clip.state_dict(), strict=False)
    assert not tower.unexpected_keys, tower.unexpected_keys
    unused = f"layers.{model.config.vision_config.num_hidden_layers - 1}."
    assert all(unused in key for key in tower.missing_keys), tower.missing_keys
    model.model.multi_modal_projector.load_state_dict(parts.projector.inner.state_dict())
    model.model.language_model.load_state_dict(parts.language.llama.state_dict())
    model.tie_weights()
    return model.half()


def _processor_config() -> dict:
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    return {
        "image_processor": {
            "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True,
            "do_resize": True, "size": size, "resample": 3, "do_center_crop": False,
            "crop_size": size, "do_rescale": True, "rescale_factor": 1 / 255,
            "do_normalize": True, "image_mean": list(IMAGE_MEAN), "image_std": list(IMAGE_STD),
        },
        "image_token": IMAGE_TOKEN, "num_additional_image_tokens": 1, "patch_size": PATCH_SIZE,
        "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default",
    }  # fmt: skip


def _save_tokenizer(folder: Path, encoder: ChatEncoder) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=encoder.tokenizer, unk_token=SPECIALS[PAD], bos_token=SPECIALS[BOS],
        eos_token=SPECIALS[EOS], pad_token=SPECIALS[PAD], extra_special_tokens=[IMAGE_TOKEN],
        model_max_length=MAX_POSITIONS, padding_side="left", clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["processor_class"] = "LlavaProcessor"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def export(state: Path, folder: Path, stage: str = "joint") -> None:
    """Write the checkpoint of `<stage>.pt`."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = ChatEncoder(GRID * GRID)
    parts = Parts(len(encoder))
    if not load_stage(state / f"{stage}.pt", {"parts": parts}, None, None):
        raise FileNotFoundError(f"no {stage}.pt in {state}: run the stages before it first")
    model = build_model(parts, len(encoder))
    model.generation_config = GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, do_sample=False, max_new_tokens=64
    )
    model.save_pretrained(folder)
    _save_tokenizer(folder, encoder)
    config = json.dumps(_processor_config(), indent=2) + "\n"
    (folder / "processor_config.json").write_text(config, encoding="utf-8")
    weights = folder / "model.safetensors"
    weights.chmod(0o644)  # safetensors writes for its owner alone
    size = weights.stat().st_size
    assert size <= MAX_BYTES, f"model.safetensors has {size} bytes"
    loaded = AutoTokenizer.from_pretrained(folder)
    assert len(loaded) == len(encoder), "the tokenizer changed on its way through the folder"
