"""This file knows about PyTorch's elementwise operators, copies, lookups and lists of tensors: arguments -> Ops."""

from __future__ import annotations

import re
from math import prod

from sublight.ops.answer import Answer, Rule
from sublight.ops.arguments import Arguments, Tensor
from sublight.ops.context import Context
from sublight.ops.elementwise import Elementwise, Gather
from sublight.ops.op import Operand
from sublight.ops.optimizer import OptimizerStep
from sublight.ops.shapes import broadcast, result_of

# ---- elementwise ---------------------------------------------------------------------------------------------------


def mapped(operands: int, *, operations: int = 1, out: str | None = None, in_place: bool = False,
           first: int = 0) -> Rule:
    """An elementwise rule of so many tensor arguments, from position `first`."""
    def rule(a: Arguments, c: Context) -> Answer:
        positions = range(first, first + operands)
        result = result_of(a, *positions)
        target = a.tensor(0) if in_place else None
        if result is None or (in_place and target is None):
            return None
        written = Operand(target.distinct, target.form or "") if target else Operand(prod(result.dims),
                                                                                     out or result.form or "")
        reads = tuple(t.operand() for t in map(a.tensor, positions) if t)
        return (Elementwise(reads, (written,), operations),)
    return rule


def copy(a: Arguments, c: Context) -> Answer:
    """aten::copy_: self, src"""
    to, source = a.tensor(0), a.tensor(1)
    if not (to and source and to.form):
        return None
    return (Elementwise((source.operand(),), (Operand(to.distinct, to.form),)),)


def clone(a: Arguments, c: Context) -> Answer:
    source = a.tensor(0)
    return (Elementwise((source.operand(),), (Operand(source.elements, source.form or ""),)),) if source else None


def cast(a: Arguments, c: Context) -> Answer:
    """aten::_to_copy: self, dtype, …"""
    source, form = a.tensor(0), a.dtype(1)
    if not source or (form is None and a.text(1)):
        return None
    return (Elementwise((source.operand(),), (Operand(prod(source.dims), form or source.form or ""),)),)


def fill(a: Arguments, c: Context) -> Answer:
    to = a.tensor(0)
    return (Elementwise((), (Operand(to.distinct, to.form or ""),)),) if to else None


def masked_fill(a: Arguments, c: Context) -> Answer:
    """In place: how many elements the mask chooses is not recorded, so that only the mask is counted."""
    mask = a.tensor(1)
    return (Elementwise((mask.operand(),), ()),) if mask and a.tensor(0) else None


CAT_TYPE = re.compile(r"CatArray\w*<(?:[\w:]*\(anonymous namespace\)::|[\w:]*::)?"
                      r"(OpaqueType<(?P<bytes>\d+)u?>|float|double|c10::BFloat16|c10::Half|long|int)")
FORM_OF_BYTES = {"1": "uint8", "2": "int16", "4": "int32", "8": "int64"}
FORM_OF_TYPE = {"float": "fp32", "double": "fp64", "c10::BFloat16": "bf16", "c10::Half": "fp16", "long": "int64",
                "int": "int32"}


def cat(a: Arguments, c: Context) -> Answer:
    """A list's format is not recorded: the kernel's template says how wide its elements are."""
    parts = a.tensors(0)
    if not parts:
        return None
    form = parts[0].form
    for kernel in c.kernels:
        if form is None and (found := CAT_TYPE.search(kernel.name)):
            form = FORM_OF_BYTES.get(found["bytes"]) if found["bytes"] else FORM_OF_TYPE[found[1]]
    if form is None:
        return None
    return (Elementwise(tuple(t.operand(form) for t in parts),
                        (Operand(sum(prod(t.dims) for t in parts), form),), inferred=parts[0].form is None),)


def where(a: Arguments, c: Context) -> Answer:
    """condition, self, other"""
    condition, result = a.tensor(0), result_of(a, 1, 2)
    shape = broadcast(condition.dims, result.dims) if condition and result else None
    if condition is None or result is None or shape is None:
        return None
    reads = tuple(t.operand() for t in map(a.tensor, range(3)) if t)
    # Of the two choices only the chosen elements are needed: together one for each result at least, or one value.
    return (Elementwise(reads[:1], (Operand(prod(shape), result.form or ""),)),)


def arange(a: Arguments, c: Context) -> Answer:
    """start, end, step, out"""
    numbers = [a.number(i) for i in range(3)]
    out = a.tensor(3)
    start, end, step = numbers
    if out is None or start is None or end is None or not step:
        return None
    count = max(0, int(-(-(end - start) // step)))
    return (Elementwise((), (Operand(count, out.form or ""),)),)


# ---- lookups -------------------------------------------------------------------------------------------------------


def embedding(a: Arguments, c: Context) -> Answer:
    """weight, indices, …"""
    table, indices = a.tensor(0), a.tensor(1)
    return _rows(table, indices)


def index_select(a: Arguments, c: Context) -> Answer:
    """self, dim, index"""
    table, indices, dim = a.tensor(0), a.tensor(2), a.integer(1)
    if not table or dim is None or not -len(table.dims) <= dim < len(table.dims):
        return None
    order = (table.dims[dim], *(n for i, n in enumerate(table.dims) if i != dim % len(table.dims)))
    return _rows(Tensor(order, table.form), indices)


def _rows(table: Tensor | None, indices: Tensor | None) -> Answer:
    """Whole rows of a table: one at least is read."""
    if not (table and indices and table.dims and table.form):
        return None
    row = prod(table.dims[1:])
    return (Gather(indices.elements * row, table.form, indices.operand(), row),)


def gather(a: Arguments, c: Context) -> Answer:
    """self, dim, index: along the other dimensions each position is read once at least."""
    source, dim, index = a.tensor(0), a.integer(1), a.tensor(2)
    if not (source and index and source.form) or dim is None or not -len(index.dims) <= dim < len(index.dims):
        return None
    others = prod(n for i, n in enumerate(index.dims) if i != dim % len(index.dims))
    return (Gather(prod(index.dims), source.form, index.operand(), others),)


def embedding_back(a: Arguments, c: Context) -> Answer:
    """aten::embedding_dense_backward: grad_output, indices, num_weights, …"""
    gradient, indices, rows = a.tensor(0), a.tensor(1), a.integer(2)
    if not (gradient and indices and gradient.dims and gradient.form) or rows is None or rows < 0:
        return None
    return (Elementwise((gradient.operand(), indices.operand()),
                        (Operand(rows * gradient.dims[-1], gradient.form),)),)


def scatter_in_place(a: Arguments, c: Context) -> Answer:
    """self, dim, index, src: reads both, writes at least one element for each other position."""
    to, index, source = a.tensor(0), a.tensor(2), a.tensor(3)
    if not (to and index and to.form):
        return None
    reads = (index.operand(), *((source.operand(),) if source else ()))
    return (Elementwise(reads, (Operand(1 if index.elements else 0, to.form),)),)


# ---- many tensors at once ------------------------------------------------------------------------------------------

LIST_TYPE = re.compile(r"multi_tensor_apply_kernel<.*?(?:Functor|Math)\w*<(float|double|c10::BFloat16|c10::Half)")


def _list_form(tensors: tuple[Tensor, ...], c: Context) -> str | None:
    """The one format of a list's tensors: recorded, or as the kernels' templates say."""
    recorded = {t.form for t in tensors}
    if len(recorded) == 1 and None not in recorded:
        return recorded.pop()
    found = {FORM_OF_TYPE[m[1]] for m in (LIST_TYPE.search(k.name) for k in c.kernels) if m}
    return found.pop() if len(found) == 1 and recorded == {None} else None


def foreach(lists: int, *, in_place: bool, operations: int = 1) -> Rule:
    def rule(a: Arguments, c: Context) -> Answer:
        several = [t for t in map(a.tensors, range(lists)) if t]
        if not several:
            return None
        form = _list_form(several[0], c)
        if form is None:
            return None
        n = sum(prod(t.dims) for t in several[0])
        reads = tuple(Operand(sum(prod(t.dims) for t in each), form) for each in several)
        return (Elementwise(reads, (Operand(n, form),), operations, inferred=several[0][0].form is None),)
    return rule


def fused_optimizer(moments: int) -> Rule:
    """self[], grads[], then the lists of state."""
    def rule(a: Arguments, c: Context) -> Answer:
        parameters, gradients = a.tensors(0), a.tensors(1)
        if not parameters or not gradients:
            return None
        form = _list_form(parameters, c)
        if form is None:
            return None
        states = [a.tensors(i) for i in range(2, 2 + moments)]
        n = sum(prod(t.dims) for t in parameters)
        kept = sum(1 for state in states if state and sum(prod(t.dims) for t in state) == n)
        return (OptimizerStep(n, kept, form, form, form, inferred=parameters[0].form is None),)
    return rule
