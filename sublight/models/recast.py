"""This file knows about the same model in other number formats: what an engine or a recipe quantises as it loads."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from typing import Any

from sublight.errors import InputError
from sublight.models.block import Block
from sublight.models.feedforward import Mixture
from sublight.models.formats import FORMATS, NumberFormat
from sublight.models.model import Layer, Model
from sublight.work import BYTES


def recast(
    model: Model, *, attention: str | None = None, mlp: str | None = None, experts: str | None = None,
    head: str | None = None, kv: str | None = None, drafts: bool = True,
) -> Model:
    """The model with the linear layers of its attention, its dense layers (shared experts too), its experts or its head
    in another format of FORMATS, and its cache in another element format. What is None stays.

    >>> from sublight.models import named
    >>> model = recast(named("meta-llama/Llama-3.1-8B"), attention="fp8", mlp="fp8", kv="fp8")
    >>> round(model.weight_bytes / 1e9, 2), model.kv_bytes_per_token()
    (9.08, 65536.0)

    Raises InputError for a format that is not known, naming the nearest.
    """
    forms = {part: _form(name) for part, name in (("attention", attention), ("mlp", mlp), ("experts", experts))}
    if kv is not None and kv not in BYTES:
        raise InputError(f"no number format '{kv}' for cached keys and values; known: {', '.join(sorted(BYTES))}")

    def recast_layer(layer: Layer) -> Layer:
        return replace(layer, attention=_block(layer.attention, forms["attention"], kv), mlp=_mlp(layer.mlp, forms))

    made = {layer: recast_layer(layer) for layer in {*model.layers, *model.drafts}}
    return replace(
        model, layers=tuple(made[layer] for layer in model.layers), kv=kv or model.kv,
        drafts=tuple(made[layer] if drafts else layer for layer in model.drafts), head=_form(head) or model.head,
        quantisation="recast",
    )


def _form(name: str | None) -> NumberFormat | None:
    if name is None or name in FORMATS:
        return None if name is None else FORMATS[name]
    near = ", ".join(difflib.get_close_matches(name, FORMATS, 3, 0.3) or sorted(FORMATS))
    raise InputError(f"no number format '{name}' for weights; nearest: {near}")


def _block(block: Block | None, form: NumberFormat | None, kv: str | None) -> Any:
    """With its formats replaced: of the block itself, and of an indexer in it."""
    if block is None:
        return None
    changes: dict[str, Any] = {}
    for field in fields(block):          # type: ignore[arg-type]
        value = getattr(block, field.name)
        if isinstance(value, NumberFormat) and form is not None:
            changes[field.name] = form
        elif field.name == "kv" and kv is not None:
            changes["kv"] = kv
        elif field.name == "indexer" and value is not None and form is not None:
            changes["indexer"] = replace(value, form=form)
    return replace(block, **changes)     # type: ignore[type-var]


def _mlp(block: Block | None, forms: dict[str, NumberFormat | None]) -> Block | None:
    if not isinstance(block, Mixture):
        changed: Block | None = _block(block, forms["mlp"], None)
        return changed
    shared, beside = (_block(dense, forms["mlp"], None) for dense in (block.shared, block.beside))
    return replace(block, form=forms["experts"] or block.form, shared=shared, beside=beside)
