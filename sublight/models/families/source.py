"""This file knows about what a family of architectures starts from: a config, its decoder's part, its quantisation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sublight.models.block import Block
from sublight.models.config import Fields, head_width
from sublight.models.feedforward import Dense
from sublight.models.formats import NumberFormat
from sublight.models.grouped import GroupedAttention
from sublight.models.model import Layer, Model
from sublight.models.quantisation import Quantisation

Aside = tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class Source:
    """A config to build a model from. `text` is the decoder's part: the config itself where it has no other."""

    name: str
    architecture: str
    config: Fields
    text: Fields
    quantised: Quantisation

    @property
    def width(self) -> int:
        return self.text.integer("hidden_size")

    @property
    def depth(self) -> int:
        return self.text.layers()

    @property
    def heads(self) -> int:
        return self.text.integer("num_attention_heads", most=1 << 16)

    @property
    def kv_heads(self) -> int:
        """As many as heads where not given (multi-head attention)."""
        return self.text.optional("num_key_value_heads", "num_attention_groups", most=1 << 16) or self.heads

    @property
    def head_width(self) -> int:
        return head_width(self.text, self.width, self.heads)

    def rotated(self, d: int, otherwise: float = 1.0) -> int | None:
        """Elements of a head that are rotated: partial_rotary_factor, here or under rope_parameters. None: all."""
        rope = self.text.raw("rope_parameters")
        part = self.text.raw("partial_rotary_factor")
        part = rope.get("partial_rotary_factor") if part is None and isinstance(rope, dict) else part
        part = otherwise if part is None else part
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
            raise self.text.wrong("partial_rotary_factor", "a number from 0 to 1")
        return None if part == 1 else int(d * part) // 2 * 2

    def form(self, layer: int, *modules: str) -> NumberFormat:
        """Layers behind the last are drafts."""
        draft = layer - self.depth if layer >= self.depth else None
        return self.quantised.form(layer, *modules, draft=draft)

    def grouped(
        self, layer: int, *, heads: int | None = None, kv_heads: int | None = None, d: int | None = None,
        d_v: int | None = None, under: str = "self_attn", values: bool = True, bias: bool | None = None,
        out_bias: bool | None = None, window: int | None = None, chunk: int | None = None, rotated: int | None = None,
        norms: str = "none", gate: str = "none", sinks: bool = False,
    ) -> GroupedAttention:
        """Attention of a layer, its modules named as most checkpoints name them."""
        d = d or self.head_width
        rotated = self.rotated(d) if rotated is None else rotated
        given = self.text.flag("attention_bias")
        names = ("q_proj", "k_proj", "v_proj") if values else ("q_proj", "k_proj")
        return GroupedAttention(
            self.width, heads or self.heads, kv_heads or self.kv_heads, d, d_v or d,
            self.form(layer, *(f"{under}.{name}" for name in names)), self.form(layer, f"{under}.o_proj"),
            self.quantised.kv, window=window, chunk=chunk, rotated=rotated, norms=norms, gate=gate, sinks=sinks,
            qkv_bias=given if bias is None else bias, out_bias=given if out_bias is None else out_bias, values=values,
        )

    def dense(self, layer: int, inner: int, *, under: str = "mlp", part: str = "mlp", bias: bool | None = None,
              ) -> Dense:
        """A gated feed-forward layer."""
        return Dense(
            self.width, inner, self.form(layer, f"{under}.gate_proj", f"{under}.up_proj"),
            self.form(layer, f"{under}.down_proj"), part=part,
            bias=self.text.flag("mlp_bias") if bias is None else bias,
        )

    def experts_form(
        self, layer: int, under: str = "mlp", names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
    ) -> NumberFormat:
        return self.form(layer, *(f"{under}.experts.0.{name}" for name in names))

    def model(
        self, layers: list[Layer], *, tied: bool = False, drafts: list[Layer] | None = None, aside: Aside = (),
        vocabulary: int | None = None, own_head: bool = False, head: str = "lm_head", draft_inputs: int = 2,
    ) -> Model:
        """The model, once every key of the config is known to be read or to change no work."""
        said = self.text if self.text.has("tie_word_embeddings") else self.config
        built = Model(
            name=self.name, architecture=self.architecture, layers=_shared(layers),
            vocabulary=vocabulary or self.text.integer("vocab_size"), width=self.width,
            tied=said.flag("tie_word_embeddings", tied), embedding=self.quantised.stored,
            head=self.quantised.head(head, f"model.{head}", f"language_model.{head}"), kv=self.quantised.kv,
            quantisation=self.quantised.name, drafts=_shared(drafts or []), aside=aside, own_head=own_head,
            context=self.text.optional("max_position_embeddings", most=1 << 40),
            draft_inputs=draft_inputs,
        )
        for fields in {id(f): f for f in (self.text, self.config)}.values():
            for key in ("tie_word_embeddings", "attention_bias", "mlp_bias", "head_dim"):
                fields.raw(key)
            fields.nothing_left()
        return built


def _shared(layers: list[Layer]) -> tuple[Layer, ...]:
    """Equal layers as one object, and equal blocks, so that each says its work once."""
    seen: dict[Layer, Layer] = {}
    blocks: dict[Block, Block] = {}

    def one(block: Block | None) -> Block | None:
        return None if block is None else blocks.setdefault(block, block)

    for layer in layers:
        if layer not in seen:
            seen[layer] = replace(layer, attention=one(layer.attention), mlp=one(layer.mlp))
    return tuple(seen[layer] for layer in layers)

