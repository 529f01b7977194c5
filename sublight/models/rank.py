"""This file knows about the Ops of one rank: what a stage of a model does in one step, with its collectives.

    >>> from sublight.models import named
    >>> model = named("meta-llama/Llama-3.1-8B")
    >>> step = ops(model, phase="decode", batch=64, context=4096, tp=2)
    >>> [(label, count) for label, _, count in step if "mlp" in label]
    [('mlp.norm', 32), ('mlp.up', 32), ('mlp.activation', 32), ('mlp.down', 32), ('mlp.all_reduce', 32)]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial

from sublight.errors import InputError
from sublight.models.block import Block, Labelled, all_reduce, norm, product, rows
from sublight.models.model import Layer, Model
from sublight.models.step import Batch, Split
from sublight.ops import Communication, Elementwise, Gather, Gemm
from sublight.ops.op import Op, Operand

Counted = tuple[str, Op, int]            # label, operator, how many times the rank does it
Piece = Callable[[], Iterator[Labelled]]
MOST_TOKENS = 2**40


def ops(
    model: Model, *, phase: str, tokens: int | None = None, context: int = 0, batch: int = 1, tp: int = 1, ep: int = 1,
    pp: int = 1, dp: int = 1, pp_stage: int = 0, stages: tuple[int, ...] | None = None, drafts: int = 0,
    imbalance: float = 1.0,
) -> tuple[Counted, ...]:
    """The operators of one rank in one step, equal ones counted.

    phase     "prefill": `tokens` new tokens of each of `batch` sequences, after `context` cached ones; one row of
              logits a sequence. "decode": one new token (or `tokens`: drafts to verify) after `context` cached ones
    batch     sequences of this rank's attention replica (dp: each replica has as many)
    drafts    passes of the layers that predict further tokens, on the last stage
    imbalance rows of this rank's experts over the mean, with ep

    Raises InputError where the ranks do not divide the model.
    """
    if phase not in ("prefill", "decode"):
        raise InputError(f"phase expected 'prefill' or 'decode', got {phase!r}")
    if tokens is None and phase == "prefill":
        raise InputError("a prefill needs its number of new tokens a sequence")
    new = 1 if tokens is None else tokens
    for name, value, least in (("tokens", new, 1), ("context", context, 0), ("batch", batch, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_TOKENS:
            raise InputError(f"{name} expected an integer of {least} or more, got {value!r}")
    step = (Batch(batch, new, context, decode=phase == "decode"),)
    split = Split(tp=tp, ep=ep, pp=pp, dp=dp, stage=pp_stage, stages=stages, imbalance=imbalance)
    return step_ops(model, step, split, drafts=drafts)


def step_ops(
    model: Model, step: tuple[Batch, ...], split: Split | None = None, *, drafts: int = 0,
) -> tuple[Counted, ...]:
    """As ops, of any mix of batches that go through the model at once: linear layers are multiplied once for all of
    them, attention once for each batch."""
    split = split or Split()
    counted: dict[Labelled, int] = {}
    for made, count in (
        (_into(model, step, split), 1), *_pieces_of_stage(model, step, split), (_out_of(model, step, split, drafts), 1),
    ):
        for labelled in made:
            counted[labelled] = counted.get(labelled, 0) + count
    return tuple((label, op, count) for (label, op), count in counted.items())


def ordered_ops(
    model: Model, step: tuple[Batch, ...], split: Split | None = None, *, drafts: int = 0,
) -> Iterator[Labelled]:
    """The operators of step_ops one by one, in the order in which a rank does them."""
    split = split or Split()
    yield from _into(model, step, split)
    for index in split.layers(len(model.layers)):
        yield from layer_ops(model.layers[index], model.width, step, split)
    yield from _out_of(model, step, split, drafts)


def _pieces_of_stage(
    model: Model, step: tuple[Batch, ...], split: Split,
) -> Iterator[tuple[Iterator[Labelled], int]]:
    """Pieces of layers and how often the stage has each: layers that differ elsewhere share most of them."""
    counts: dict[Hashable, int] = {}
    pieces: dict[Hashable, Piece] = {}
    for layer, count in model.stage_kinds(split):
        for key, piece in _pieces(layer, model.width, step, split):
            counts[key] = counts.get(key, 0) + count
            pieces.setdefault(key, piece)
    yield from ((piece(), counts[key]) for key, piece in pieces.items())


def layer_ops(layer: Layer, width: int, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
    """One layer, in order."""
    for _, piece in _pieces(layer, width, step, split):
        yield from piece()


def _pieces(layer: Layer, width: int, step: tuple[Batch, ...], split: Split) -> Iterator[tuple[Hashable, Piece]]:
    """What a layer does, in order: what comes before each block, the block, what comes after; with what tells equal
    pieces apart."""
    for name, block in (("attention", layer.attention), ("mlp", layer.mlp)):
        if block is None:
            continue
        block.check(split)
        yield (name, layer.streams, layer.residual_sources, layer.norm), partial(_before, layer, width, name, step)
        yield id(block), partial(block.ops, step, split)         # equal blocks are one object
        if layer.streams:
            yield (f"{name} out", layer.streams), partial(_after, layer.streams.streams, width, name, step)
    more = layer.norms - len(layer.blocks())                     # of a block's output, where an architecture has them
    if more:
        yield (more, layer.norm), partial(_norms, more, layer.norm, width, step)


def _after(streams: int, width: int, name: str, step: tuple[Batch, ...]) -> Iterator[Labelled]:
    """A block's output back into every stream."""
    t = rows(step)
    yield f"{name}.streams_out", Elementwise((Operand(t * (streams + 1) * width, "bf16"),),
                                             (Operand(t * streams * width, "bf16"),), 2 * (streams + 1))


def _norms(count: int, kind: str, width: int, step: tuple[Batch, ...]) -> Iterator[Labelled]:
    yield from (("layer.norm", norm(rows(step), width, kind=kind)) for _ in range(count))


def _before(layer: Layer, width: int, name: str, step: tuple[Batch, ...]) -> Iterator[Labelled]:
    """The norm before a block, and what chooses or mixes its input."""
    t = rows(step)
    if layer.streams:
        n = layer.streams.streams
        # fp32 weights on streams of fp32 (transformers, deepseek_v4); multiplied in tf32
        yield f"{name}.streams", Gemm(t, (2 + n) * n, n * width, a="fp32", b="fp32", out="fp32", math="tf32")
        yield f"{name}.streams_in", Elementwise((Operand(t * n * width, "bf16"),), (Operand(t * width, "bf16"),), 2 * n)
    if layer.residual_sources:           # RMS norm, score, softmax and weighted sum over sources
        yield f"{name}.residual", Elementwise((Operand(t * layer.residual_sources * width, "bf16"),),
                                              (Operand(t * width, "bf16"),), 7 * layer.residual_sources)
    alone = layer.streams or layer.residual_sources
    yield f"{name}.norm", norm(t, width, residual=not alone, kind=layer.norm)


def _into(model: Model, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
    t = rows(step)
    if split.first:
        yield "embedding", Gather(t * model.width, model.embedding.weights, Operand(t, "int64"), model.width)
        if model.positions:
            table = Operand(t * model.width, model.embedding.weights)
            yield "positions", Elementwise((table, table), (table,), 1)
        if split.tp > 1:
            yield "embedding.all_reduce", all_reduce(t, model.width, split.tp)
    else:
        yield "stage.receive", Communication("send_recv", 2, t * model.width, "bf16")


def _out_of(model: Model, step: tuple[Batch, ...], split: Split, drafts: int) -> Iterator[Labelled]:
    t = rows(step)
    if not split.last:
        yield "stage.send", Communication("send_recv", 2, t * model.width, "bf16")
        return
    yield "head.norm", norm(t, model.width, residual=True, kind=model.layers[-1].norm)
    streams = model.layers[-1].streams
    if streams:
        n = streams.streams
        yield "head.streams", Gemm(t, n, n * model.width, a="fp32", b="fp32", out="fp32", math="tf32")
    yield from _head(model, sum(batch.outputs for batch in step), split)
    if drafts:
        yield from _drafts(model, step, split, drafts)


def _head(model: Model, outputs: int, split: Split) -> Iterator[Labelled]:
    share = -(-model.vocabulary // split.tp)                     # engines pad the table to whole shares
    yield "head", product(outputs, share, model.width, model.embedding if model.tied else model.head)
    if split.tp > 1:
        yield "head.all_gather", Communication("all_gather", split.tp, outputs * share * split.tp, "bf16")


def _drafts(model: Model, step: tuple[Batch, ...], split: Split, passes: int) -> Iterator[Labelled]:
    """Passes of the draft layers: the last hidden state and the embedding of the newest token, joined, then a layer."""
    if not model.drafts:
        raise InputError(f"{model.name} has no layers that predict further tokens; drafts expected 0, got {passes}")
    after = tuple(Batch(b.sequences, b.tokens if b.decode is False else 1, b.context, b.decode) for b in step)
    for index in range(passes):
        layer, step_now = model.drafts[index % len(model.drafts)], after if index == 0 else _single(after)
        yield "draft.embedding", Gather(rows(step_now) * model.width, model.embedding.weights,
                                        Operand(rows(step_now), "int64"), model.width)
        yield "draft.join", product(rows(step_now), model.width, model.draft_inputs * model.width, model.embedding)
        yield from ((f"draft.{label}", op) for label, op in layer_ops(layer, model.width, step_now, split))
        yield from ((f"draft.{label}", op) for label, op in _head(model, sum(b.outputs for b in step_now), split))


def _single(step: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """One token more of each sequence."""
    return tuple(Batch(b.sequences, 1, b.context + b.tokens, decode=True) for b in step)


def problems(model: Model, split: Split) -> tuple[str, ...]:
    """Why this split cannot hold the model; empty where it can."""
    out = []
    for block in {block for layer in model.layers for block in layer.blocks()}:
        out.extend(_problem(block, split))
    try:
        split.layers(len(model.layers))
    except InputError as error:
        out.append(str(error))
    return tuple(sorted(set(out)))


def _problem(block: Block, split: Split) -> list[str]:
    try:
        block.check(split)
    except InputError as error:
        return [str(error)]
    return []
