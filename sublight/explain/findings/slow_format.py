"""SL304: matrix products and attention in a number format that the device is slow in."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.device import Limits
from sublight.explain.bounds import said
from sublight.explain.owned_calls import owned_calls
from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, of_window
from sublight.finding import Finding
from sublight.ops.attention import Attention
from sublight.ops.convolution import Convolution
from sublight.ops.gemm import Gemm, GroupedGemm
from sublight.ops.moe import Experts
from sublight.ops.op import Op
from sublight.work import Unit

CODE, TITLE = "SL304", "slow number format for the device"
SMALLEST_SHARE = 0.05        # of the window, as time of such operators
FASTER_BY = 2.0              # rates of the device
ROUNDING = 1e-9              # of a ratio of rates that are products of floats
MATRIX = (Gemm, GroupedGemm, Attention, Convolution, Experts)
# What a model that runs in a format can usually run in, after a look at its accuracy.
INSTEAD = {"fp64": ("tf32", "bf16", "fp16"), "fp32": ("tf32", "bf16", "fp16"), "tf32": ("bf16", "fp16"),
           "bf16": ("fp8",), "fp16": ("fp8",)}
NARROW = ("bf16", "fp16")    # from here on the weights must be made for it: counted only where the run does so


def slow_unit(op: Op, limits: Limits) -> tuple[Unit, str, float] | None:
    """The unit and format that an operator multiplies matrices with, a format at least twice as fast, and the rate of
    the first over that of the second."""
    flops = op.work().flops
    if not isinstance(op, MATRIX) or not flops:
        return None
    unit, form = max(flops, key=lambda u: flops[u])
    rate = limits.flops_per_second(unit, form)
    fast = {f: r for f in INSTEAD.get(form, ()) if (r := limits.flops_per_second("tensor", f))}
    if not rate or not fast:
        return None
    best = max(fast, key=lambda f: fast[f])
    return ((unit, form), best, rate / fast[best]) if fast[best] >= FASTER_BY * rate * (1 - ROUNDING) else None


def find(view: View) -> Iterable[Finding]:
    """Fires where operators in a format with at most half the rate of another own 5 % of the window. bf16 and fp16
    count only where the run uses fp8 elsewhere."""
    mine = owned_calls(view)
    if mine is None:
        return
    answers: dict[int, tuple[Unit, str, float] | None] = {}      # by the tuple of ops, which calls that are alike share
    fp8 = any((r.number_format or "").startswith("fp8") for r in view.of_parts(("gemm", "grouped gemm", "attention")))
    words: dict[int, str] = {}
    rows: dict[tuple[str, str, str, str], list[float]] = {}
    for call, owned in mine.calls():
        if len(call.ops) != 1 or call.bound is None:
            continue
        op = call.ops[0]
        if id(call.ops) not in answers:
            answers[id(call.ops)], words[id(call.ops)] = slow_unit(op, mine.limits), said(op)
        fp8 |= call.work is not None and ("tensor", "fp8") in call.work.flops
        if (slow := answers[id(call.ops)]) is not None:
            (unit, form), best, ratio = slow
            key = (form, best, call.name, words[id(call.ops)])
            row = rows.setdefault(key, [0, 0, 0, ratio, unit == "tensor", call.inferred])
            row[0], row[1], row[2] = row[0] + owned, row[1] + int(owned * (1 - ratio)), row[2] + 1
    wide = {key: row for key, row in rows.items() if key[0] not in NARROW}
    counted = rows if fp8 else wide
    total, gain = (int(sum(row[i] for row in counted.values())) for i in (0, 1))
    if not total or view.share(total) < SMALLEST_SHARE:
        return
    ranked = sorted(counted.items(), key=lambda row: (-row[1][1], row[0]))
    evidence = [
        f"{name} ({cut(ops, 48)}): {ms(owned)} in {number(int(count), 'call')} in {form} on "
        f"{'tensor cores' if tensor else 'the vector unit'}; {best} has {1 / ratio:.1f}x its rate"
        f"{'; inferred' if inferred else ''}"
        for (form, best, name, ops), (owned, _, count, ratio, tensor, inferred) in ranked[:5]
    ]
    left = int(sum(row[0] for key, row in rows.items() if key not in counted))
    if left:
        evidence.append(f"not counted: {ms(left)} in 16 bits, where the device has fp8 at twice the rate")
    forms = sorted({key[0] for key in counted})
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, total)} goes to matrix products, convolutions or attention in {', '.join(forms)}, which the "
        "device does at half the rate of another format or less",
        tuple(evidence), _action(forms), "medium" if wide else "low", gain,
        ("an upper limit: the share that the ratio of the peak rates leaves; casts and scales take part of it back",
         "whether the model keeps its accuracy is not in a trace"),
    )


def _action(forms: list[str]) -> str:
    ways = []
    if "fp64" in forms:
        ways.append("find what makes these tensors fp64 (a numpy array, a Python scalar's dtype)")
    if "fp32" in forms:
        ways.append('allow tf32 (torch.set_float32_matmul_precision("high")), or bf16 with torch.autocast')
    elif "tf32" in forms:
        ways.append("run them in bf16 (torch.autocast, model.to(torch.bfloat16))")
    if any(form in NARROW for form in forms):
        ways.append("give them the fp8 of the run's other products, where accuracy allows")
    text = "; ".join(ways)
    return text[:1].upper() + text[1:]
