"""Triton's interpreter with the arithmetic of the GPU: casts, products, addresses, and that nothing is left behind.

Kernels here are tiny; each test says what the stock interpreter does instead, where it differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.kernels.launch import bits

torch = pytest.importorskip("torch")
FP8 = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


# ---- numbers as bits ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("form", FP8)
def test_every_code_of_fp8_is_what_torch_makes_of_it(form: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    known = torch.from_numpy(codes).view(FP8[form]).float().numpy()
    np.testing.assert_array_equal(bits.to_float(codes, form), known)


def test_every_code_of_bf16_is_what_torch_makes_of_it() -> None:
    codes = np.arange(65536, dtype=np.uint16)
    known = torch.from_numpy(codes.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(bits.to_float(codes, "bf16"), known)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
@settings(max_examples=50, deadline=None)
def test_bf16_is_rounded_as_torch_rounds(values: list[float]) -> None:
    given_ = np.array(values, np.float32)
    known = torch.from_numpy(given_).bfloat16().float().numpy()
    np.testing.assert_array_equal(bits.to_float(bits.from_float(given_, "bf16"), "bf16"), known)


@given(st.lists(st.floats(width=32, min_value=-440, max_value=440), min_size=1, max_size=50),
       st.sampled_from(list(FP8)))
@settings(max_examples=50, deadline=None)
def test_fp8_is_rounded_as_torch_rounds(values: list[float], form: str) -> None:
    given_ = np.array(values, np.float32)
    known = torch.from_numpy(given_).to(FP8[form]).float().numpy()
    np.testing.assert_array_equal(bits.to_float(bits.from_float(given_, form), form), known)


@pytest.mark.parametrize(("form", "most"), [("fp8e4nv", 448.0), ("fp8e5", 57344.0)])
def test_fp8_saturates_and_keeps_nan(form: str, most: float) -> None:
    given_ = np.array([1e30, -np.inf, np.nan], np.float32)
    found = bits.to_float(bits.from_float(given_, form), form)
    np.testing.assert_array_equal(found, [most, -most, np.nan])


def test_a_cast_toward_zero_never_grows() -> None:
    values = np.linspace(-3, 3, 1001).astype(np.float32)
    for form in bits.NARROW:
        cut = bits.to_float(bits.from_float(values, form, toward_zero=True), form)
        assert (np.abs(cut) <= np.abs(values)).all()
        assert (cut != bits.to_float(bits.from_float(values, form), form)).any()


# ---- kernels -----------------------------------------------------------------------------------------------------

def kernels() -> Any:
    """The module of kernels beside this file: it needs Triton at once."""
    pytest.importorskip("triton")
    import triton_samples

    return triton_samples


def stock(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """The same kernel in the interpreter as Triton ships it: its own patches, taken back."""
    from triton.runtime import interpreter as at

    from sublight.kernels.launch.interpret import _as_before

    with _as_before(), np.errstate(all="ignore"):
        at.InterpretedFunction(kernel.fn).run(*args, grid=grid, warmup=False, **constants)


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_products_of_narrow_formats_are_those_of_their_values(form: str) -> None:
    from sublight.kernels.launch.interpret import interpreted

    a, b = (torch.randn(32, 32).to(getattr(torch, form)) for _ in range(2))
    out = torch.empty(32, 32)
    with interpreted():
        kernels().product[(1,)](a, b, out, N=32)
    assert torch.allclose(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.heavy
def test_the_stock_interpreter_multiplies_bit_patterns_of_bf16() -> None:
    a, b = (torch.randn(32, 32).bfloat16() for _ in range(2))
    out = torch.empty(32, 32)
    stock(kernels().product, (1,), a, b, out, N=32)
    assert (out - a.float() @ b.float()).abs().max() > 1e6, "Triton has repaired this: say so in docs/kernel-triton.md"


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_casts_round_to_nearest_even(form: str) -> None:
    from sublight.kernels.launch.interpret import interpreted

    x = torch.cat([torch.randn(1000), torch.tensor([1.00390625, 1.01171875, 17.0, 19.0, 0.0, -0.0, 1e-3])])
    out = torch.empty(len(x), dtype=getattr(torch, form))
    with interpreted():
        kernels().cast[(1,)](x, out, len(x), N=1024)
    assert torch.equal(out.float(), x.to(out.dtype).float())


@pytest.mark.heavy
def test_the_stock_interpreter_cuts_casts_off() -> None:
    x = torch.randn(1000)
    out = torch.empty(1000, dtype=torch.bfloat16)
    stock(kernels().cast, (1,), x, out, 1000, N=1024)
    assert (out.float() - x.bfloat16().float() != 0).float().mean() > 0.4
    assert (out.float().abs() <= x.abs()).all()


@pytest.mark.heavy
def test_arithmetic_of_bf16_is_rounded_once_an_operation() -> None:
    from sublight.kernels.launch.interpret import interpreted

    a, b = (torch.randn(64).bfloat16() for _ in range(2))
    out = torch.empty(64, dtype=torch.bfloat16)
    with interpreted():
        kernels().sums[(1,)](a, b, out, N=64)
    assert torch.equal(out, (a + b) * 2 - a)


@pytest.mark.heavy
def test_a_fused_multiply_add_rounds_once() -> None:
    from sublight.kernels.launch.interpret import interpreted

    x = 1 + 2.0**-12 * torch.arange(1, 65, dtype=torch.float32)
    out = torch.empty(64)
    with interpreted():
        kernels().fused[(1,)](x, out, N=64)
    assert torch.equal(out, (x.double() * x.double() - 1).float())
    assert not torch.equal(out, x * x - 1)


@pytest.mark.heavy
def test_the_language_s_own_functions_work() -> None:
    from sublight.kernels.launch.interpret import interpreted

    x, out, flipped = torch.randn(16), torch.empty(16), torch.empty(16)
    with interpreted():
        kernels().ordered[(1,)](x, out, flipped, N=16)
    assert torch.equal(out, x.sort().values)
    assert torch.allclose(flipped, x.cumsum(0).flip(0))


@pytest.mark.heavy
def test_nan_loses_a_maximum() -> None:
    from sublight.kernels.launch.interpret import interpreted

    a, b = torch.tensor([1.0, float("nan")] * 8), torch.tensor([float("nan"), 2.0] * 8)
    out = torch.empty(16)
    with interpreted():
        kernels().largest[(1,)](a, b, out, N=16)
    assert out.tolist() == [1.0, 2.0] * 8


@pytest.mark.heavy
@pytest.mark.parametrize(("read", "written", "n", "said"), [
    (30, 32, 31, "1 of 31 lanes read outside of the tensors given, the first 0 bytes after the end of 'x'"),
    (32, 30, 31, "1 of 31 lanes wrote outside of the tensors given, the first 0 bytes after the end of 'out'"),
])
def test_an_access_outside_is_an_error_that_names_the_tensor(read: int, written: int, n: int, said: str) -> None:
    from triton.runtime.errors import InterpreterError

    from sublight.kernels.launch.interpret import interpreted

    x, out = torch.zeros(read), torch.zeros(written)
    with interpreted(), pytest.raises(InterpreterError, match="OutsideError") as error:
        kernels().copy[(1,)](x, out, n, N=32)
    assert said in str(error.value)


@pytest.mark.heavy
def test_lanes_that_are_masked_read_no_zeros() -> None:
    from sublight.kernels.launch.interpret import interpreted

    x, out = torch.ones(20), torch.zeros(32)
    with interpreted():
        kernels().unmasked_store[(1,)](x, out, 20, N=32)
    assert out[:20].eq(1).all()
    assert out[20:].isnan().all()
    with interpreted(poison=False):
        kernels().unmasked_store[(1,)](x, out, 20, N=32)
    assert out[20:].eq(0).all()


@pytest.mark.heavy
def test_guard_zones_see_what_is_written_beyond_a_buffer() -> None:
    from sublight.kernels.launch.guards import Guards
    from sublight.kernels.launch.interpret import interpreted

    guards = Guards()
    x, out = guards.copy("x", torch.ones(32)), guards.empty("out", (30,), torch.float32)
    with interpreted(addresses=False):
        kernels().copy[(1,)](x, out, 32, N=32)
    assert guards.broken() == ("out: 8 bytes after its end were written, the nearest 0 bytes away",)


@pytest.mark.heavy
def test_nothing_is_left_behind() -> None:
    import triton.language as tl
    from triton.runtime import interpreter, jit

    from sublight.kernels.launch.interpret import interpreted

    owners = (tl, tl.core, tl.math, tl.tensor, tl.dtype, interpreter, interpreter.InterpreterBuilder,
              interpreter.ReduceOps, interpreter.GridExecutor, jit.JITFunction)
    before = [dict(vars(owner)) for owner in owners]
    with interpreted():
        kernels().sums[(1,)](*(torch.zeros(16, dtype=torch.bfloat16) for _ in range(3)), N=16)
        assert dict(vars(tl)) != before[0]
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.heavy
def test_code_that_was_interpreted_is_compiled_all_the_same() -> None:
    from sublight.kernels.launch.ahead import compiled
    from sublight.kernels.launch.call import Call, launch
    from sublight.kernels.launch.interpret import interpreted
    from sublight.kernels.launch.targets import target

    kernels()
    x, out = torch.ones(1024), torch.zeros(1024)
    call = Call("triton_samples:copy", (1,), {"x": x, "out": out, "n": 1024}, {"N": 1024}, warps=4)
    with interpreted():
        launch(call)
    assert torch.equal(x, out)
    code = compiled(call, target(90))
    assert "ld.global.v4" in code.ptx, "16 divides the sizes and addresses: loads have 128 bits"
    assert code.cubin[:4] == b"\x7fELF"
