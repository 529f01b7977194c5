"""This file knows about the shape and number format that tensors take together."""

from __future__ import annotations

from sublight.ops.arguments import Arguments, Tensor
from sublight.work import BYTES

KIND = {"bool": 0, "uint8": 1, "int8": 1, "int16": 1, "int32": 1, "int64": 1, "complex64": 3}     # floating: 2


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that operands take together (numpy's rule); None where they do not fit."""
    longest = max((len(s) for s in shapes), default=0)
    out = []
    for sizes in zip(*((1,) * (longest - len(s)) + s for s in shapes), strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            return None
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def promoted(tensors: list[Tensor], *, number: bool = False) -> str | None:
    """Format of a result (torch.result_type): of the tensors with dimensions, unless one without, or a number, is of
    a higher kind, as floating is to integer; then of the two possible formats the narrower."""
    full = [t.form for t in tensors if t.form and t.dims]
    plain = [t.form for t in tensors if t.form and not t.dims]
    if not full:
        full, plain = plain, []
    if not full:
        return None
    best = max(full, key=_rank)
    if "bf16" in full and "fp16" in full and _rank(best) <= _rank("bf16"):
        best = "fp32"
    higher = [form for form in plain if KIND.get(form, 2) > KIND.get(best, 2)]
    if higher:
        return min((max(higher, key=_rank), "fp32"), key=lambda f: BYTES[f])
    return best


def _rank(form: str) -> tuple[int, float]:
    return KIND.get(form, 2), BYTES[form]


def result_of(a: Arguments, *positions: int) -> Tensor | None:
    """Shape and format of an elementwise result of these arguments."""
    tensors = [t for t in (a.tensor(i) for i in positions) if t]
    shape = broadcast(*(t.dims for t in tensors)) if tensors else None
    form = promoted(tensors)
    return None if shape is None or form is None else Tensor(shape, form)
