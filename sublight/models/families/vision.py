"""This file knows about towers that read pictures: named, counted where that is known, and left out of the work."""

from __future__ import annotations

from sublight.errors import InputError
from sublight.models.config import Fields
from sublight.models.families.source import Aside, Source


def vision(source: Source) -> Aside:
    """The tower of Qwen3-VL and Qwen3.5; uncounted where its config does not say all of it."""
    if not source.config.has("vision_config"):
        return ()
    try:
        return (("vision tower", _qwen(source.config.part("vision_config"))),)
    except InputError:                   # it is no part of the decoder's work
        return (("vision tower", None),)


def _qwen(v: Fields) -> int:
    """Parameters, as transformers (models/qwen3_vl) builds it: patches, positions, blocks, mergers."""
    h, inner, depth = v.integer("hidden_size"), v.integer("intermediate_size"), v.layers("depth", "num_hidden_layers")
    patch, steps, merge = v.integer("patch_size"), v.integer("temporal_patch_size"), v.integer("spatial_merge_size")
    embedded = v.integer("in_channels", "num_channels") * steps * patch * patch * h + h
    block = 4 * h + (h * 3 * h + 3 * h) + (h * h + h) + (2 * h * inner + inner + h)
    joined, out = h * merge * merge, v.integer("out_hidden_size")
    merger = joined * joined + joined + joined * out + out
    deep = len(v.listed("deepstack_visual_indexes", 0, int) or ())
    norms = 2 * h + deep * 2 * joined
    return embedded + v.count("num_position_embeddings") * h + depth * block + (1 + deep) * merger + norms


def towers(config: Fields) -> Aside:
    """Named only."""
    return (("vision tower", None),) if config.has("vision_config") else ()
