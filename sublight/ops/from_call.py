"""This file knows about operator calls: the name and recorded arguments of one -> the Ops that it carries out."""

from __future__ import annotations

import re

from sublight.ops import engine_calls, own_calls, torch_calls, written
from sublight.ops.answer import Rule
from sublight.ops.arguments import Arguments, arguments
from sublight.ops.collective import Communication
from sublight.ops.context import Context
from sublight.ops.op import Op
from sublight.trace import Collective, OpArgs

RULES = torch_calls.RULES | engine_calls.RULES | own_calls.RULES
# c10::ScalarType as collectives record it.
DTYPES = {
    "BFloat16": "bf16", "Half": "fp16", "Float": "fp32", "Double": "fp64", "Long": "int64", "Int": "int32",
    "Short": "int16", "Byte": "uint8", "Char": "int8", "Bool": "bool", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8",
}
# As ProcessGroupNCCL names them (record_param_comms); uneven all-to-alls do not say how much a rank keeps.
COLLECTIVES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "_allgather_base": "all_gather",
    "allgather": "all_gather", "all_gather": "all_gather", "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "all_to_all": "all_to_all", "alltoall_base": "all_to_all",
    "broadcast": "broadcast", "_broadcast_oop": "broadcast", "send": "send_recv", "recv": "send_recv",
}
OVERLOAD = re.compile(r"\.\w+$")          # "aten::add.Tensor"
TIMES_MOST = 1 << 50


def ops_of_call(name: str, args: OpArgs | None, *, context: Context) -> tuple[Op, ...] | None:
    """The Ops of a call; None where its name or arguments do not tell, () where it costs nothing (views).

    >>> dims, types = "[[16, 32], [32, 8]]", '["float", "float"]'
    >>> ops_of_call("aten::mm", OpArgs(dims, types, "", ""), context=Context())[0].work().flops_total
    8192
    """
    if context.collective is not None:
        return _collective(context.collective)
    rule = _rule(name)
    if rule is None or args is None:
        return None
    given = arguments(args)
    if given is None or _too_large(given):
        return None
    return rule(given, context)


def has_rule(name: str) -> bool:
    """Is there a rule for operators of this name? Its arguments may still not tell."""
    return _rule(name) is not None


def _rule(name: str) -> Rule | None:
    if name.startswith(written.PREFIX):                     # of a predicted trace: the op itself
        return written.rule
    return RULES.get(name) or RULES.get(OVERLOAD.sub("", name))


def strides_recorded(args: OpArgs | None) -> bool:
    """Without strides, expanded dimensions cannot be told from real ones."""
    return args is not None and args.strides not in ("", "[]", "null")


def _too_large(given: Arguments) -> bool:
    flat = [t for v in given.values if v for t in (v if isinstance(v, tuple) else (v,))]
    return any(t.elements > TIMES_MOST for t in flat)


def _collective(record: Collective) -> tuple[Op, ...] | None:
    kind, form = COLLECTIVES.get(record.name), DTYPES.get(record.dtype)
    if kind is None or form is None or record.group_size < 1:
        return None
    elements = record.elements_out if kind == "all_gather" else record.elements_in
    return (Communication(kind, record.group_size, elements, form),) if elements >= 0 else None
