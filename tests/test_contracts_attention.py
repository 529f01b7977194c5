"""Contracts of attention, decode and latent decode: references against torch in float64, work against counted, every
implementation on every case, planted bugs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import wrong_attention  # noqa: E402
from conftest import minutes_more  # noqa: E402
from kept import (  # noqa: E402
    assert_compiled_is_right,
    assert_is_whole,
    assert_needs_a_gpu,
    faults,
    named,
    rounded_exact,
    torch_kernels,
)
from planted import is_caught, prepared  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from sublight.kernels.attention.contract import CONTRACT as ATTENTION  # noqa: E402
from sublight.kernels.attention.contract import seen  # noqa: E402
from sublight.kernels.attention.shape import Shape  # noqa: E402
from sublight.kernels.contract import Case  # noqa: E402
from sublight.kernels.decode.contract import CONTRACT as DECODE  # noqa: E402
from sublight.kernels.decode.shape import Shape as DecodeShape  # noqa: E402
from sublight.kernels.listed import contract  # noqa: E402
from sublight.kernels.mla_decode.contract import CONTRACT as MLA  # noqa: E402
from sublight.kernels.mla_decode.shape import Shape as MlaShape  # noqa: E402
from sublight.kernels.softmax_sums import Head  # noqa: E402
from sublight.ops import Attention, Gemm  # noqa: E402

OPS = ("attention", "decode", "mla_decode")
EAGER, COMPILED = torch_kernels(OPS)


# ---- contracts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_a_contract_is_whole(op: str) -> None:
    assert_is_whole(contract(op))


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPS)
def test_the_exact_result_rounded_keeps_the_contract(op: str) -> None:
    for made in prepared(op):
        assert made.judge(rounded_exact(made)).wrong == ()


@pytest.mark.parametrize(("shape", "rows"), [
    #                          keys 0 1 2 3 4
    (Shape(1, 3, 5, 1, 1, 64), ("11100", "11110", "11111")),                      # the last query sees all
    (Shape(1, 3, 5, 1, 1, 64, window=2), ("01100", "00110", "00011")),
    (Shape(1, 5, 2, 1, 1, 64), ("00", "00", "00", "10", "11")),                   # three see nothing
    (Shape(1, 2, 3, 1, 1, 64, window=1), ("010", "001")),
])
def test_which_query_sees_which_key(shape: Shape, rows: tuple[str, ...]) -> None:
    mask = seen(shape)
    assert mask is not None
    assert tuple("".join("01"[int(x)] for x in row) for row in mask) == rows


@pytest.mark.parametrize("shape", [
    Shape(2, 9, 9, 4, 2, 8), Shape(1, 5, 11, 4, 1, 8, False), Shape(2, 4, 13, 2, 2, 8, window=3),
])
def test_the_reference_is_attention(shape: Shape) -> None:
    given = ATTENTION.inputs(Case(shape, "normal", 3))
    q, k, v = (given[name].double().transpose(1, 2) for name in "qkv")
    found = scaled_dot_product_attention(q, k, v, attn_mask=seen(shape), enable_gqa=True).transpose(1, 2)
    assert torch.allclose(ATTENTION.reference(shape, given)["out"], found, rtol=1e-12, atol=1e-12)


def test_a_query_that_sees_no_key_is_zero_exactly() -> None:
    shape = Shape(1, 5, 2, 2, 1, 64)
    given = ATTENTION.inputs(Case(shape))
    exact = ATTENTION.reference(shape, given)
    assert not exact["out"][:, :3].any()
    assert exact["out"][:, 3:].all()
    assert float(ATTENTION.bound(shape, given, exact)["out"][:, :3].max()) < 2.0**-125


def test_decode_is_attention_of_the_pages_in_order() -> None:
    shape = DecodeShape(5, 33, 8, 2, 64, 4)
    given = DECODE.inputs(Case(shape, "ragged", 7))
    lengths = given["lengths"].tolist()
    assert lengths[:4] == [33, 0, 1, 32]
    for b, n in enumerate(lengths):
        slots = [int(given["table"][b, t // 4]) * 4 + t % 4 for t in range(n)]
        k, v = (given[name].flatten(0, 1)[slots].double().transpose(0, 1) for name in ("k_cache", "v_cache"))
        q = given["q"][b].double().unsqueeze(1)
        found = scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0, :, 0] if n else 0 * q[:, 0]
        assert torch.allclose(DECODE.reference(shape, given)["out"][b], found, rtol=1e-12, atol=1e-12)


def test_latent_values_are_the_first_columns_of_the_keys() -> None:
    shape = MlaShape(1, 5, 2, rank=3, rope=2, page=2, scale=0.5, form="fp32")
    given = MLA.inputs(Case(shape))
    slots = [int(given["table"][0, t // 2]) * 2 + t % 2 for t in range(5)]
    keys = given["cache"].flatten(0, 1)[slots].double()
    weights = (given["q"][0].double() @ keys.T * 0.5).softmax(1)
    assert torch.allclose(MLA.reference(shape, given)["out"][0], weights @ keys[:, :3], rtol=1e-12)


@pytest.mark.parametrize(("kept", "shape", "caches"), [
    (DECODE, DecodeShape(6, 67, 4, 2, 64, 16), ("k_cache", "v_cache")), (MLA, MlaShape(6, 67, 4, page=16), ("cache",)),
])
def test_slots_that_no_sequence_uses_hold_nan(kept: Any, shape: Any, caches: tuple[str, ...]) -> None:
    given = kept.inputs(Case(shape, "ragged"))
    lengths = given["lengths"].tolist()
    for name in caches:
        cache = given[name].flatten(0, 1).flatten(1)
        assert int((~cache.isnan().any(1)).sum()) == sum(lengths)
        assert int(cache.isnan().all(1).sum()) == len(cache) - sum(lengths)
    for b, n in enumerate(lengths):      # unused entries name one page, and nothing is in it
        unused = given["table"][b, math.ceil(n / 16):].long()
        assert bool(given[caches[0]][unused].isnan().all())
        assert len(unused.unique()) <= 1


# ---- what operators have to do --------------------------------------------------------------------------------------


def test_work_of_attention_is_that_of_its_mask() -> None:
    for made in prepared("attention"):
        shape = made.case.shape
        mask = seen(shape)
        pairs = shape.q_length * shape.kv_length if mask is None else int(mask.sum())
        used = shape.kv_length if mask is None or shape.window is None else int(mask.any(0).sum())
        work = ATTENTION.op(shape).work()
        assert work.flops_total == shape.batch * shape.heads * pairs * 4 * shape.dim
        size = 4 if shape.form == "fp32" else 2
        queries, keys = shape.q_length * shape.heads, 2 * used * shape.kv_heads
        assert work.bytes_total == shape.batch * shape.dim * size * (2 * queries + keys), shape


def test_work_of_decode_counted_by_hand() -> None:
    # 2 sequences of 100 tokens, 8 query heads on 2 key heads of 64: each token 4·64 operations a query head;
    # q and out 2·8·64, K and V 2·100·2·64 each, of 2 bytes.
    work = DECODE.op(DecodeShape(2, 100, 8, 2, 64)).work()
    assert (work.flops_total, work.bytes_total) == (2 * 100 * 8 * 4 * 64, 2 * (2 * 2 * 8 * 64 + 2 * 2 * 100 * 2 * 64))


def test_work_of_latent_decode_counted_by_hand() -> None:
    # 16 heads: 2·576 + 2·512 operations a token and head; a token is read once, 576 columns of 2 bytes.
    work = MLA.op(MlaShape(3, 50, 16)).work()
    assert work.flops_total == 3 * 50 * 16 * (2 * 576 + 2 * 512)
    assert work.bytes_total == 2 * (3 * 16 * 576 + 3 * 50 * 576 + 3 * 16 * 512)


@pytest.mark.parametrize("op", [
    Gemm(8, 8, 8), Attention.dense(batch=1, q_length=4, kv_length=8, heads=2, kv_heads=2, d_qk=24, d_v=16),
    Attention.dense(batch=1, q_length=4, kv_length=8, heads=2, kv_heads=2, d_qk=64, d_v=64, causal="start"),
    Attention.dense(batch=1, q_length=8, kv_length=8, heads=2, kv_heads=2, d_qk=64, d_v=64, backward=True),
    Attention(64, 8, 64, 2, 2, 64, 64),                                # how tokens fall to sequences is not said
    Attention(64, 8, 64, 2, 2, 64, 64, kv="fp8", sequences=8),
])
def test_ops_of_no_contract_here(op: Any) -> None:
    assert ATTENTION.shape_of(op) is None
    assert DECODE.shape_of(op) is None
    assert MLA.shape_of(op) is None


@pytest.mark.parametrize("shape", [
    Shape(1, 4, 4, 3, 2, 64), Shape(0, 4, 4, 2, 2, 64), Shape(1, 4, 4, 2, 2, 64, False, window=2),
    Shape(1, 4, 4, 2, 2, 64, window=0), Shape(1, 4, 4, 2, 2, 64, form="fp8"),
])
def test_shapes_that_make_no_sense_are_refused(shape: Shape) -> None:
    assert ATTENTION.refusal(shape)


def test_scores_that_differ_by_their_error_are_within_the_bound() -> None:
    """Two keys with scores near 1000: an error of one unit in the last place of each moves the weights by 1e-4."""
    q, k = torch.tensor([[1000.0]]), torch.tensor([[1.0], [1.0]])
    v = torch.tensor([[1.0], [-1.0]])
    head = Head(q, k, v, 1.0)
    moved = Head(q, torch.tensor([[1 + 2.0**-23], [1.0]]), v, 1.0).exact() - head.exact()
    assert 5e-5 < float(moved.abs()) < float(head.error("fp32")) < 2e-3


# ---- implementations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "name"), EAGER)
def test_torch_keeps_the_contract_on_every_case(op: str, name: str) -> None:
    assert faults(named(op, name), prepared(op)) == []


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")          # torch's own, as it loads Inductor
@pytest.mark.parametrize(("op", "name"), [
    pytest.param(*one, marks=[] if one == ("mla_decode", "inductor") else minutes_more) for one in COMPILED])
def test_compiled_forms_keep_the_contract(op: str, name: str) -> None:
    """On two cases: each new kind of shape takes Inductor seconds."""
    assert_compiled_is_right(op, name)


@pytest.mark.parametrize("op", OPS)
def test_kernels_for_a_gpu_are_refused_without_one(op: str) -> None:
    assert_needs_a_gpu(op)


# ---- planted bugs ---------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("sound", wrong_attention.SOUND_FORMS, ids=lambda wrong: f"{wrong.op} {wrong.name}")
def test_the_form_that_bugs_are_planted_in_is_right(sound: Any) -> None:
    assert not is_caught(sound.op, sound.compute)


@pytest.mark.parametrize("wrong", wrong_attention.WRONG, ids=lambda wrong: f"{wrong.op}: {wrong.name}")
def test_a_planted_bug_is_caught(wrong: Any) -> None:
    assert is_caught(wrong.op, wrong.compute)


def test_at_least_eight_bugs_of_each_family_are_planted() -> None:
    assert all(len(forms) >= 8 for forms in wrong_attention.FAMILIES.values())
