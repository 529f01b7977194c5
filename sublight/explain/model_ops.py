"""This file knows about the operators that a run of a model should consist of, in order, and which of them an
implementation may leave out or take together.

    experts     one fused kernel, or products and activation apart
    permute     rows to their experts and back by a copy, or by whoever reads and writes them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from sublight.errors import InputError
from sublight.explain.model_setting import Setting
from sublight.models import Batch, layer_ops, ordered_ops
from sublight.models.backward import backward_ops, training_ops
from sublight.models.block import Labelled
from sublight.ops import CacheWrite, Communication, Elementwise, Experts, Gemm, GroupedGemm, OptimizerStep, Permute
from sublight.ops.op import Op, Operand
from sublight.plan import Job, Training
from sublight.predict.kernel_names import category
from sublight.predict.trace import unrolled
from sublight.predict.training.passes import passes

# An operator that is always there, one that stands for several kernels in one, and those several.
ALWAYS, FUSED, APART = "always", "fused", "apart"
FAMILIES = ("matrix products", "attention", "memory-bound work", "network")


@dataclass(frozen=True, slots=True)
class Item:
    """An operator of the run, in its place."""

    label: str
    op: Op
    category: str                        # as budgets have it; "communication"
    when: str = ALWAYS

    @property
    def family(self) -> str:
        return family(self.category)


def family(name: str) -> str:
    """Of a category: what the three terms are made of."""
    if name in ("gemm", "grouped gemm", "convolution"):
        return FAMILIES[0]
    if name in ("attention", "recurrent"):
        return FAMILIES[1]
    return FAMILIES[3] if name.startswith(("communication", "exposed communication")) else FAMILIES[2]


def items(run: Setting) -> tuple[Item, ...]:
    """All passes of the window, one after the other, then the optimizer's step. Raises InputError for an operator whose
    backward is not known."""
    return _items(run, lambda batches: _pass(run, batches))


def variants(run: Setting) -> Iterator[tuple[str, tuple[Item, ...]]]:
    """(what it is, operators) of the run as training frameworks lay it out: tensor parallelism with sequences split
    too or not, products in 16 or 8 bits. Only of whole models; what a plan cannot be is left out."""
    if not (run.whole and run.phase == "train"):
        return
    for split_sequences in (True, False) if run.split.tp > 1 else (False,):
        for precision in ("bf16", "fp8"):
            plan = Training(tp=run.split.tp, ep=run.split.ep, dp=run.split.dp, mbs=run.passes[0][0].sequences,
                            sequence_parallel=split_sequences, precision=precision)
            try:
                made = _items(run, partial(_framework_pass, run, plan))
            except InputError:
                continue
            yield f"{precision} products{', sequence parallel' if split_sequences else ''}", made


def _items(run: Setting, one_pass: Callable[[tuple[Batch, ...]], Iterator[Labelled]]) -> tuple[Item, ...]:
    out: list[Item] = []
    known: dict[tuple[Batch, ...], list[Item]] = {}
    for batches in run.passes:
        if batches not in known:
            known[batches] = [item for labelled in one_pass(batches) for item in _ways(*labelled, run)]
        out += known[batches]
    if run.optimizer:
        out.append(Item("optimizer", OptimizerStep(_parameters(run)), "optimizer"))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Called:
    label: str
    op: Op
    count: int


def _framework_pass(run: Setting, plan: Training, batches: tuple[Batch, ...]) -> Iterator[Labelled]:
    """One micro-batch as predict has it, in the order of a predicted trace."""
    batch = batches[0]
    made = passes(run.model, replace(plan, mbs=batch.sequences), Job(batch.tokens, batch.sequences * plan.dp), stage=0)
    called = [_Called(f"{way}.{call.label}", call.op, call.count)
              for way, calls in (("forward", made.forward), ("backward", made.backward)) for call in calls]
    return ((label.partition(".")[2], op) for label, op in unrolled(called))


def _pass(run: Setting, batches: tuple[Batch, ...]) -> Iterator[Labelled]:
    model, split = run.model, run.split
    if run.whole:
        return training_ops(model, batches, split) if run.phase == "train" else ordered_ops(model, batches, split)
    forward = list(chain.from_iterable(layer_ops(model.layers[i], model.width, batches, split) for i in run.layers))
    if run.phase != "train":
        return iter(forward)
    forward = [labelled for labelled in forward if not isinstance(labelled[1], CacheWrite)]
    return chain(forward, backward_ops(forward))


def _parameters(run: Setting) -> int:
    """Of this rank, of the layers in question, and of embedding and head where all of them are."""
    held = sum(w.on_rank(run.split) for i in run.layers for w in run.model.layers[i].weights(run.model.width))
    if not run.whole:
        return held
    table = -(-run.model.vocabulary // run.split.tp) * run.model.width
    return held + table * (1 if run.model.tied else 2)


def _ways(label: str, op: Op, run: Setting) -> Iterator[Item]:
    """An operator, and other ways to carry it out."""
    plain = Item(label, op, category(label, op))
    if isinstance(op, Experts):
        rows, form = op.tokens * op.top_k, "fp8" if op.activations in ("fp8", "fp4") else "bf16"
        yield _permuted(f"{label}.permute", rows, run, form=form)
        yield Item(label, op, plain.category, FUSED)
        yield from _apart(label, op)
        yield _permuted(f"{label}.combine", rows, run, combine=True)
    elif isinstance(op, GroupedGemm) and label.endswith("experts.down.input_grad"):     # gradients' rows move as well
        yield _permuted(f"{label}.permute", op.rows, run)
        yield plain
    elif isinstance(op, Gemm) and label.endswith("experts.up.weight_grad"):
        yield plain
        yield _permuted(f"{label}.combine", op.k * op.batch, run, combine=True)
    else:
        yield plain


def _apart(label: str, op: Experts) -> Iterator[Item]:
    rows, into = op.tokens * op.top_k, op.inner * (2 if op.gated else 1)
    up = GroupedGemm(rows, into, op.width, op.experts_used, op.activations, op.weights, b_block=op.weight_block)
    down = GroupedGemm(rows, op.width, op.inner, op.experts_used, op.activations, op.weights, b_block=op.weight_block)
    act = Elementwise((Operand(rows * into, "bf16"),), (Operand(rows * op.inner, "bf16"),), operations=2)
    yield Item(f"{label}.up", up, "grouped gemm", APART)
    yield Item(f"{label}.activation", act, "activation", APART)
    yield Item(f"{label}.down", down, "grouped gemm", APART)


def _permuted(label: str, rows: int, run: Setting, *, form: str = "bf16", combine: bool = False) -> Item:
    """(token, expert) pairs of this rank copied to their experts' places, or back."""
    width = run.mixtures[0].latent or run.mixtures[0].width
    return Item(label, Permute(rows, 1, width, form, combine=combine), "routing", APART)


def minimal(all_: Iterable[Item]) -> list[Item]:
    """With experts fused, and without copies."""
    return [item for item in all_ if item.when != APART]


def separate(all_: Iterable[Item]) -> list[Item]:
    """With experts' products and activation apart, and rows copied to and fro."""
    return [item for item in all_ if item.when != FUSED]


def communicates(item: Item) -> bool:
    return isinstance(item.op, Communication)
