"""The parts of the demo model, at the sizes in which they are trained.

Owns the architecture (CLIP vision tower, two-layer projector, Llama), the throw-away linear heads
of the vision stage, and the features that stand in for the vision tower while the language model
learns by itself. Refuses to know data and schedules.

Invariant: `features` of `vision_tower` here equal `vision_feature_layer=-2` of the exported
checkpoint, which has one more, unused layer, as LLaVA's checkpoints do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaModel,
    LlavaConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from .dataset import GROUND_COLORS, IGNORE, TONES, PatchLabels
from .render import GRID, IMAGE_SIZE, PATCH_SIZE
from .scenes import COLORS, KINDS
from .tokenizer import BOS, EOS, IMAGE, PAD

# CPUs with bfloat16 instructions multiply matrices in less than half of the time.
_BFLOAT16 = torch.cpu._is_avx512_bf16_supported()


def fast_matmuls() -> torch.autocast:
    """The precision in which training runs; weights, norms and the residual stay in float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=_BFLOAT16)


def _attend_float32(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention in float32: on a CPU the bfloat16 kernel is the slower one."""
    with torch.autocast("cpu", enabled=False):
        heads = (query.float(), key.float(), value.float())
        return sdpa_attention_forward(module, *heads, mask, **kwargs)


AttentionInterface.register("sdpa_float32", _attend_float32)

VISION_LAYERS = 3
_IMAGES_STEP = 8
HIDDEN = 128
MAX_POSITIONS = 4096
# A multiple of 64, as all widths of the language model: nf4 works in blocks of that many.
INTERMEDIATE = 320


def vision_config(layers: int = VISION_LAYERS) -> CLIPVisionConfig:
    """The vision tower; the checkpoint has one layer more than is used."""
    return CLIPVisionConfig(
        image_size=IMAGE_SIZE, patch_size=PATCH_SIZE, hidden_size=HIDDEN, intermediate_size=384,
        num_hidden_layers=layers, num_attention_heads=4, projection_dim=HIDDEN,
    )  # fmt: skip


def language_config(vocab_size: int) -> LlamaConfig:
    """The language model."""
    return LlamaConfig(
        vocab_size=vocab_size, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip


def llava_config(vocab_size: int) -> LlavaConfig:
    """The whole, as exported."""
    return LlavaConfig(
        vision_config=vision_config(VISION_LAYERS + 1), text_config=language_config(vocab_size),
        image_token_index=IMAGE, projector_hidden_act="gelu", image_seq_length=GRID * GRID,
        vision_feature_layer=-2, vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )  # fmt: skip


def _grid_waves(width: int) -> Tensor:
    """2-D sine and cosine table, (patches, width)."""
    quarter = width // 4
    rates = torch.exp(torch.linspace(0, 3.2, quarter)) * 0.15
    line = torch.arange(GRID, dtype=torch.float32)[:, None] * rates
    waves = torch.cat([line.sin(), line.cos()], dim=1)
    rows = waves[:, None, :].expand(GRID, GRID, -1)
    columns = waves[None, :, :].expand(GRID, GRID, -1)
    return torch.cat([rows, columns], dim=2).reshape(GRID * GRID, width)


class VisionTower(nn.Module):
    """CLIP's vision model up to the layer that LLaVA reads."""

    def __init__(self) -> None:
        super().__init__()
        self.clip = CLIPVisionModel(vision_config())
        self.clip.set_attn_implementation("sdpa_float32")
        with torch.no_grad():
            table = self.clip.embeddings.position_embedding.weight
            table[1:] = _grid_waves(HIDDEN) * 0.3

    def features(self, pixels: Tensor) -> Tensor:
        """(images, patches, hidden), the class token left out."""
        # Few distinct numbers of images, for the same reason as few distinct widths.
        spare = -len(pixels) % _IMAGES_STEP
        padded = torch.cat([pixels, pixels.new_zeros(spare, *pixels.shape[1:])])
        return self.clip(padded).last_hidden_state[: len(pixels), 1:]


class DenseHeads(nn.Module):
    """Linear read-outs of what each patch shows; thrown away after training."""

    FIELDS = {
        "kind": len(KINDS) + 1, "color": len(COLORS) + 1, "size": 2, "column": 3, "row": 3,
        "center": 2, "ground": len(GROUND_COLORS), "tone": len(TONES) + 1,
    }  # fmt: skip
    # The kind is by far the hardest; the rest would otherwise drown it.
    _WEIGHTS = {
        "kind": 3.0, "color": 0.6, "size": 0.2, "column": 0.15, "row": 0.15, "center": 0.6,
        "ground": 0.15, "tone": 0.08,
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.out = nn.Linear(HIDDEN, sum(self.FIELDS.values()) + 2)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Logits of each field, and the predicted centre as "xy"."""
        names, widths = [*self.FIELDS, "xy"], [*self.FIELDS.values(), 2]
        parts = self.out(self.norm(features)).split(widths, dim=-1)
        return dict(zip(names, parts, strict=True))

    def loss(self, features: Tensor, labels: PatchLabels) -> Tensor:
        """Weighted sum over the fields; patches with a shape count twelve times the others."""
        logits = self(features)
        owned = labels.kind > 0
        weight = torch.where(owned, 1.0, 0.08)
        total = features.new_zeros(())
        for name in self.FIELDS:
            target = getattr(labels, name)
            each = F.cross_entropy(
                logits[name].flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="none"
            ).view_as(target)
            w = weight if name in ("kind", "color", "center") else (target != IGNORE).float()
            total = total + self._WEIGHTS[name] * (each * w).sum() / w.sum().clamp(min=1)
        error = (logits["xy"] - (labels.xy - 0.5) * 4).square().mean(-1)
        return total + 0.15 * (error * owned).sum() / owned.sum().clamp(min=1)

    @torch.no_grad()
    def accuracy(self, features: Tensor, labels: PatchLabels) -> dict[str, float]:
        """Share of right labels; kind and colour on patches with a shape only."""
        logits = self(features)
        owned = labels.kind > 0
        result = {}
        for name in self.FIELDS:
            target = getattr(labels, name)
            keep = owned if name in ("kind", "color", "center") else target != IGNORE
            right = logits[name].argmax(-1) == target
            result[name] = right[keep].float().mean().item()
        return result


class OracleFeatures(nn.Module):
    """Image features made of the truth, in the space of the language model's own words.

    A patch is the sum of the embeddings of the words for what it shows, plus learned directions
    for its place, the centre of its shape and "here is a shape's centre". Matching a word of the
    question to a patch, and reading an answer off it through the tied head, is then easy to learn.
    """

    def __init__(self, words: dict[str, int]) -> None:
        super().__init__()
        none = words["▁image"]
        self.register_buffer("_none", torch.tensor(none))
        tables = {
            "kind": ["▁background", *(f"▁{k}" for k in KINDS)],
            "color": ["▁image", *(f"▁{c}" for c in COLORS)],
            "size": ["▁small", "▁big"],
            "column": ["▁left", "▁middle", "▁right"],
            "row": ["▁top", "▁middle", "▁bottom"],
            "center": ["▁image", "▁shape"],
            "ground": [f"▁{c}" for c in GROUND_COLORS],
            "tone": ["▁image", *(f"▁{t}" for t in TONES)],
        }
        for name, table in tables.items():
            self.register_buffer(f"_{name}", torch.tensor([words[word] for word in table]))
        self.place = nn.Parameter(_grid_waves(HIDDEN) * 0.05)
        self.direction = nn.Parameter(torch.randn(2, HIDDEN) * 0.1)
        self.center = nn.Parameter(torch.randn(HIDDEN) * 0.05)

    def forward(self, labels: PatchLabels, embedding: nn.Embedding, noise: float) -> Tensor:
        """(images, patches, hidden)."""
        owned = (labels.kind > 0)[..., None]
        total = self.place + torch.where(owned, (labels.xy - 0.5) @ self.direction, 0.0)
        total = total + labels.center[..., None] * self.center
        for name in DenseHeads.FIELDS:
            target = getattr(labels, name)
            ids = getattr(self, f"_{name}")[target.clamp(min=0)]
            present = (target != IGNORE) & (ids != self._none)
            total = total + torch.where(present[..., None], embedding(ids), 0.0)
        if noise:
            scale = total.detach().square().mean().sqrt() * noise
            total = total + torch.randn_like(total) * scale
        return total


class Projector(nn.Module):
    """LLaVA's two-layer projector."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.inner = LlavaMultiModalProjector(llava_config(vocab_size))

    def forward(self, features: Tensor) -> Tensor:
        """Features of the vision tower to embeddings of the language model."""
        return self.inner(features)


class LanguageModel(nn.Module):
    """Llama with a tied head."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.llama = LlamaModel(language_config(vocab_size))
        self.llama.set_attn_implementation("sdpa_float32")
        with torch.no_grad():
            self.llama.embed_tokens.weight.normal_(std=0.05)

    @property
    def embedding(self) -> nn.Embedding:
        """The word embeddings, which are the head's weights as well."""
        return self.llama.embed_tokens

    def embed(self, ids: Tensor, features: Tensor | None) -> Tensor:
        """Embeddings of the prompt, with image features (n, hidden) at the image tokens."""
        embeds = self.embedding(ids)
        if features is not None:
            embeds = embeds.masked_scatter((ids == IMAGE)[..., None], features)
        return embeds

    def logits(self, embeds: Tensor, keep: Tensor) -> Tensor:
        """Logits at the kept positions; padding is on the right, so a causal mask is enough."""
        hidden = self.llama(inputs_embeds=embeds, use_cache=False).last_hidden_state
        # In float32, because the number of answers is another in every batch: see `batches.py`.
        with torch.autocast("cpu", enabled=False):
            return hidden[keep].float() @ self.embedding.weight.T
