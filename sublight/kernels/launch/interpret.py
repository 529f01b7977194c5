"""This file knows about Triton's interpreter with the arithmetic of the GPU.

The interpreter that Triton ships multiplies the bit patterns of bf16 in `tl.dot` and adds those of bf16 tensors, cuts
off what does not fit a bf16 or fp8 cast, and lets every lane read and write wherever it points. Here:

    bf16, fp8    arithmetic in float32 and a rounding to nearest even; products are summed in float32
    casts        to nearest even, fp8 saturates (bits.py says from which sources)
    addresses    a lane that reads or writes outside of the tensors that were passed is an error that names the nearest
    masked loads without `other` give NaN, or a large negative integer, instead of zeros: Triton leaves them undefined
    min, max     NaN loses, as on the GPU, unless the kernel says otherwise

Kernels run as they are, decorated with triton.jit as usual: no environment variable, nothing to import first, and
nothing is left behind. What it does not model: races between warps, layouts, alignment, asynchronous copies, hangs; the
order of summation in a dot; tensor cores that keep fewer bits; tf32; approximate exp, division and square root.

It patches Triton itself while it is open, so it is for one thread. Tried with Triton 3.7.1 and 3.9.0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from sublight.kernels.launch.bits import NAN, NARROW, from_float, to_float

Handle = Any                             # triton.runtime.interpreter.TensorHandle
Ranges: TypeAlias = list[tuple[str, int, int]]
Swap: TypeAlias = Callable[[Any, str, Any], None]
ABSENT = object()


@contextmanager
def interpreted(*, addresses: bool = True, poison: bool = True) -> Iterator[None]:
    """While open, kernels decorated with triton.jit run here, on tensors of the CPU.

        with interpreted():
            kernel[(4,)](x, out, n, BLOCK=128)

    addresses=False lets lanes read and write anywhere; poison=False gives zeros for masked loads without `other`.
    Raises InterpreterError (Triton's) for whatever goes wrong inside a kernel.
    """
    with ExitStack() as stack, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)     # numpy on rows that are all NaN
        stack.enter_context(_as_before())
        swap = _swapper(stack)
        _run_here(swap)
        _arithmetic(swap)
        _memory(swap, addresses=addresses, poison=poison)
        yield


def _swapper(stack: ExitStack) -> Swap:
    """swap(owner, name, value) sets an attribute until the stack is closed."""
    def put_back(owner: Any, name: str, before: Any) -> None:
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    def swap(owner: Any, name: str, value: Any) -> None:
        stack.callback(put_back, owner, name, vars(owner).get(name, ABSENT))
        setattr(owner, name, value)

    return swap


# ---- kernels run here -------------------------------------------------------------------------------------------

def _run_here(swap: Swap) -> None:
    """A compiled kernel's entrance leads to the interpreter. Triton patches its language anew for every call of every
    function, and does not take all of that back: here it is done once, and undone by `_as_before`."""
    import triton.language as tl
    from triton.runtime import interpreter as at
    from triton.runtime.jit import JITFunction

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            function = at.InterpretedFunction(self.fn).rewrite()
            at.GridExecutor(function, self.arg_names, grid, self.pre_run_hooks)(*args, **kwargs)

    def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
        return at.InterpretedFunction(self.fn).rewrite()(*args, **kwargs)

    at._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    swap(at, "_patch_lang", lambda function: SimpleNamespace(restore=lambda: None))
    swap(at.InterpretedFunction, "__call__", inside)
    swap(JITFunction, "run", run)
    swap(JITFunction, "__call__", inside)


@contextmanager
def _as_before() -> Iterator[None]:
    """Whatever is set on Triton's language meanwhile is taken back."""
    import triton.language as tl

    owners = [tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base, tl.dtype, *filter(None, [
        getattr(tl, "condition", None)])]
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    finally:
        for owner, names in zip(owners, before, strict=True):
            for name, value in list(vars(owner).items()):
                if name not in names:
                    delattr(owner, name)
                elif value is not names[name]:
                    setattr(owner, name, names[name])


# ---- arithmetic -------------------------------------------------------------------------------------------------

def _narrow(handle: Handle) -> bool:
    return str(handle.dtype.scalar) in NARROW


def _values(handle: Handle) -> Any:
    """A handle's numbers as numpy can compute with them."""
    return to_float(handle.data, str(handle.dtype.scalar)) if _narrow(handle) else handle.data


def _handle(values: Any, dtype: Any, *, toward_zero: bool = False) -> Handle:
    """Numbers as a handle of a type, rounded to it. Truth values stay what they are."""
    from triton.runtime import interpreter as at

    scalar = dtype.scalar
    if str(scalar) in NARROW and values.dtype != np.bool_:
        return at.TensorHandle(from_float(values, str(scalar), toward_zero=toward_zero), scalar)
    wanted = at._get_np_dtype(scalar)
    if toward_zero and wanted == np.float16:
        return at.TensorHandle(_half_toward_zero(values), scalar)
    keep = values.dtype == np.bool_ or values.dtype == wanted
    return at.TensorHandle(values if keep else values.astype(wanted), scalar)


def _half_toward_zero(values: Any) -> Any:
    half = values.astype(np.float16)
    return np.where(np.abs(half.astype(np.float64)) > np.abs(values), np.nextafter(half, np.float16(0)), half)


def _arithmetic(swap: Swap) -> None:
    from triton.runtime import interpreter as at

    stock = at.InterpreterBuilder
    binary, unary = stock.binary_op, stock.unary_op

    def binary_op(self: Any, lhs: Handle, rhs: Handle, op: Any) -> Handle:
        if not (_narrow(lhs) or _narrow(rhs)):
            return binary(self, lhs, rhs, op)
        return _handle(op(_values(lhs), _values(rhs)), lhs.dtype)

    def unary_op(self: Any, arg: Handle, op: Any) -> Handle:
        return _handle(op(_values(arg)), arg.dtype) if _narrow(arg) else unary(self, arg, op)

    def fma(self: Any, x: Handle, y: Handle, z: Handle) -> Handle:
        product = _values(x).astype(np.float64) * _values(y)   # exact for float32: 48 of 53 bits
        return _handle(product + _values(z), z.dtype)

    def clamp(self: Any, arg: Handle, low: Handle, high: Handle, propagate_nans: Any) -> Handle:
        none = propagate_nans == at._ir.PROPAGATE_NAN.NONE
        smaller, larger = (np.fmin, np.fmax) if none else (np.minimum, np.maximum)
        return _handle(smaller(larger(_values(arg), _values(low)), _values(high)), arg.dtype)

    def absolute(self: Any, arg: Handle) -> Handle:
        return _handle(np.abs(_values(arg)), arg.dtype)

    if not hasattr(stock, "get_bf16"):                       # 3.7.1: a bf16 tensor times a constant has no constant
        swap(stock, "get_bf16", lambda self, value: _handle(np.array([value], np.float32), at.tl.bfloat16))
    swap(stock, "binary_op", binary_op)
    swap(stock, "unary_op", unary_op)
    swap(stock, "create_fma", fma)
    swap(stock, "create_clampf", clamp)
    swap(stock, "create_fabs", absolute)
    swap(stock, "create_minnumf", lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin))
    swap(stock, "create_maxnumf", lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax))
    swap(stock, "create_rsqrt", lambda self, arg: self.unary_op(arg, lambda x: 1 / np.sqrt(x)))
    _casts(swap)
    _sums(swap)


def _casts(swap: Swap) -> None:
    from triton.runtime import interpreter as at

    stock = at.InterpreterBuilder
    custom = stock.create_fp_to_fp

    def cast(self: Any, source: Handle, dtype: Any) -> Handle:
        return _handle(_values(source), dtype)

    def convert(self: Any, source: Handle, dtype: Any, rounding: Any) -> Handle:
        known = {*NARROW, "fp16", "fp32", "fp64"}
        if not {str(source.dtype.scalar), str(dtype.scalar)} <= known:
            return custom(self, source, dtype, rounding)     # formats of other makers: as Triton has it
        return _handle(_values(source), dtype, toward_zero=rounding == at._ir.ROUNDING_MODE.RTZ)

    swap(stock, "cast_impl", cast)
    swap(stock, "create_fp_to_fp", convert)


def _sums(swap: Swap) -> None:
    """Products of tiles, and reductions."""
    from triton.runtime import interpreter as at

    def dot(self: Any, a: Handle, b: Handle, addend: Handle, *ignored: Any) -> Handle:
        left, right = _values(a), _values(b)
        exact = np.float32 if left.dtype.kind == "f" and left.dtype.itemsize <= 4 else addend.data.dtype
        return _handle(np.matmul(left.astype(exact), right.astype(exact)) + _values(addend), addend.dtype)

    def widened(stock: Callable[..., Any]) -> Callable[..., Any]:
        def reduce(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            first = source[0] if isinstance(source, tuple) else source
            if not _narrow(first.handle):
                return stock(self, source, *args, **kwargs)
            import triton.language as tl

            wide = self.to_tensor(_values(first.handle), tl.float32)
            return _rounded(stock(self, wide, *args, **kwargs), first.dtype)
        return reduce

    swap(at.InterpreterBuilder, "create_dot", dot)
    swap(at.ReduceOps, "sum", widened(at.ReduceOps.sum))
    swap(at.ReduceOps, "min_max", widened(at.ReduceOps.min_max))
    swap(at.ScanOps, "cumsum", widened(at.ScanOps.cumsum))
    swap(at.ScanOps, "cumprod", widened(at.ScanOps.cumprod))


def _rounded(found: Any, dtype: Any) -> Any:
    """Float32 results in the format that was reduced; indices as they are."""
    import triton.language as tl

    if isinstance(found, list | tuple):
        return type(found)(_rounded(one, dtype) for one in found)
    if found.dtype != tl.float32:
        return found
    kind = tl.block_type(dtype, list(found.shape)) if found.shape else dtype
    return tl.core.tensor(_handle(found.handle.data, dtype), kind)


# ---- memory -----------------------------------------------------------------------------------------------------

class OutsideError(IndexError):
    """A lane read or wrote outside of the tensors that its kernel was given."""


def _memory(swap: Swap, *, addresses: bool, poison: bool) -> None:
    import triton
    from triton.runtime import interpreter as at

    stock = at.InterpreterBuilder
    load, store, call = stock.create_masked_load, stock.create_masked_store, at.GridExecutor.__call__
    given: list[Ranges] = []

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        given.append(_ranges({**dict(zip(self.arg_names, args, strict=False)), **kwargs}))
        try:
            with triton.knobs.runtime.scope():
                triton.knobs.runtime.interpret = True       # for the language's own functions; not longer: modules that
                call(self, *args, **kwargs)                 # are imported meanwhile would be interpreted for ever
        finally:
            given.pop()

    def masked_load(self: Any, pointers: Handle, mask: Any, other: Any, *rest: Any, **named: Any) -> Handle:
        if addresses:
            _check("read", pointers, mask, given)
        if other is None and poison:
            kind = at._get_np_dtype(pointers.get_element_ty())
            other = at.TensorHandle(np.full(pointers.data.shape, _undefined(pointers, kind), kind),
                                    pointers.get_element_ty())
        return load(self, pointers, mask, other, *rest, **named)

    def masked_store(self: Any, pointers: Handle, value: Handle, mask: Any, *rest: Any, **named: Any) -> Any:
        if addresses:
            _check("wrote", pointers, mask, given)
        return store(self, pointers, value, mask, *rest, **named)

    swap(at.GridExecutor, "__call__", launch)
    swap(stock, "create_masked_load", masked_load)
    swap(stock, "create_masked_store", masked_store)


def _undefined(pointers: Handle, kind: Any) -> Any:
    """What a lane gets that was masked and has no `other`: NaN, or an integer that is no index of anything."""
    narrow = NAN.get(str(pointers.get_element_ty()))
    if narrow is not None:
        return narrow
    if kind.kind == "f":
        return np.nan
    return True if kind.kind == "b" else np.iinfo(kind).min // 3 if kind.kind == "i" else np.iinfo(kind).max // 3


def _ranges(arguments: Mapping[str, Any]) -> Ranges:
    """Name, first address and the address after the last, of each tensor on the CPU; none where one is elsewhere."""
    out = []
    for name, value in arguments.items():
        tensor = getattr(value, "base", value)              # of a descriptor, or a reinterpreted tensor
        if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
            if tensor.device.type != "cpu":
                return []
            far = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            end = tensor.data_ptr() + (far + 1) * tensor.element_size() * (tensor.numel() > 0)
            out.append((name, tensor.data_ptr(), end))
    return sorted(out, key=lambda one: one[1])


def _check(what: str, pointers: Handle, mask: Any, given: list[Ranges]) -> None:
    """Raises OutsideError where a lane that is not masked points outside of every tensor."""
    if not given or not given[-1]:
        return
    on = np.broadcast_to(np.asarray(getattr(mask, "data", mask), dtype=bool), pointers.data.shape)
    at = pointers.data[on]
    width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    inside = np.zeros(at.shape, dtype=bool)
    for _, start, end in given[-1]:
        inside |= (at >= start) & (at + np.uint64(width) <= end)
    if not inside.all():
        raise OutsideError(_where(what, at, ~inside, given[-1]))


def _where(what: str, at: Any, outside: Any, ranges: Ranges) -> str:
    first = int(at[outside][0])
    name, start, end = min(ranges, key=lambda one: max(one[1] - first, first - one[2]))
    side = f"{start - first} bytes before the start" if first < start else f"{first - end} bytes after the end"
    return f"{int(outside.sum())} of {at.size} lanes {what} outside of the tensors given, the first {side} of {name!r}"
