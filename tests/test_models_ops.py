"""The Ops of a rank do the work of the layers: 2 x active parameters x tokens, and what attention adds."""

from __future__ import annotations

import doctest
import random
from collections.abc import Iterable

import pytest
from test_models import configs

import sublight.ops.scaled_gemm
from sublight.errors import InputError
from sublight.models import Batch, Model, Split, catalog, named, ops, problems, read, step_ops
from sublight.models.feedforward import used
from sublight.models.rank import Counted
from sublight.ops import Attention, Communication, Experts, Gemm, GroupedGemm
from sublight.ops.index import IndexScores
from sublight.ops.op import Op
from sublight.ops.recurrent import Recurrence, ShortConvolution
from sublight.ops.scaled_gemm import ScaledGemm
from sublight.work import Work

NAMES = sorted(catalog())
SPLITS = [Split(tp=8), Split(tp=4, ep=2), Split(tp=8, ep=8), Split(dp=4, ep=4), Split(tp=2, dp=4, ep=8), Split(pp=2)]


def multiplied(step: Iterable[Counted]) -> int:
    """FLOPs of what multiplies weights: linear layers, experts, convolutions."""
    total = 0
    for _, op, count in step:
        if isinstance(op, Gemm | ScaledGemm | ShortConvolution):
            total += count * op.work().flops_total
        elif isinstance(op, Experts):
            total += count * sum(n for (unit, _), n in op.work().flops.items() if unit == "tensor")
    return total


def wanted(model: Model, tokens: int, outputs: int) -> int:
    """2 x active parameters x tokens, the head on fewer of them."""
    head = model.vocabulary * model.width
    return 2 * ((model.multiplied() - head) * tokens + head * outputs)


def check_flops(model: Model) -> None:
    assert multiplied(ops(model, phase="decode", batch=64, context=4096)) == wanted(model, 64, 64)
    assert multiplied(ops(model, phase="prefill", batch=2, tokens=1024)) == wanted(model, 2048, 2)


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_twice_the_active_parameters_a_token(name: str) -> None:
    """Weights and Ops are written apart: each checks the other."""
    check_flops(named(name))


def test_flops_of_every_config_are_twice_its_active_parameters() -> None:
    for path in configs().values():
        check_flops(read(path))


@pytest.mark.parametrize("name", NAMES)
def test_every_op_says_its_work(name: str) -> None:
    model = named(name)
    for phase, size in (("prefill", {"tokens": 333, "context": 100}), ("decode", {"context": 5000})):
        for label, op, count in ops(model, phase=phase, batch=3, **size):       # type: ignore[arg-type]
            work = op.work()
            assert count > 0
            assert work.bytes_total > 0 or work.messages, label
            assert min(work.flops.values(), default=1) > 0, label


@pytest.mark.parametrize("shape", SPLITS, ids=str)
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B",
                                  "openai/gpt-oss-120b", "Qwen/Qwen3-Next-80B-A3B-Instruct", "MiniMaxAI/MiniMax-M3",
                                  "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "moonshotai/Kimi-K3"])
def test_ranks_together_do_the_work_once_or_copies_of_it(name: str, shape: Split) -> None:
    """Shared layers: the sum over ranks is the whole; replicated ones (routers, low ranks, key heads): more."""
    model = named(name)
    if shape.tp > 2 and name.startswith("Qwen/Qwen3-Next"):
        shape = Split(tp=2, ep=min(2, shape.ep))
    tokens = 4096
    whole = wanted(model, tokens * shape.dp, tokens * shape.dp)
    parts = sum(multiplied(step_ops(model, (Batch(tokens, 1, 1000, decode=True),), Split(
        tp=shape.tp, ep=shape.ep, dp=shape.dp, pp=shape.pp, stage=stage))) for stage in range(shape.pp))
    assert whole <= parts * shape.ranks * (1 + 1e-3)
    assert parts * shape.ranks <= whole * 1.6


def brute_pairs(n: int, c: int, window: int | None, chunk: int | None) -> int:
    def seen(p: int) -> int:
        return p % chunk + 1 if chunk else min(p + 1, window or p + 1)
    return sum(seen(p) for p in range(c, c + n))


def test_pairs_are_those_of_a_count_one_by_one() -> None:
    dice = random.Random(5)
    for _ in range(400):
        n, c, limit = dice.randint(1, 60), dice.randint(0, 90), dice.randint(1, 70)
        batch = Batch(3, n, c)
        assert batch.pairs() == 3 * brute_pairs(n, c, None, None)
        assert batch.pairs(window=limit) == 3 * brute_pairs(n, c, limit, None)
        assert batch.pairs(chunk=limit) == 3 * brute_pairs(n, c, None, limit)
        keys = {k for p in range(c, c + n) for k in range(max(0, p + 1 - limit), p + 1)}
        assert batch.keys(window=limit) == 3 * len(keys)
        keys = {k for p in range(c, c + n) for k in range(p // limit * limit, p + 1)}
        assert batch.keys(chunk=limit) == 3 * (c + n - min(keys))
        ratio, most = dice.randint(1, 9), dice.randint(1, 9)
        assert batch.compressed_pairs(ratio) == 3 * sum(p // ratio for p in range(c + 1, c + n + 1))
        assert batch.compressed_pairs(ratio, most) == 3 * sum(min(most, p // ratio) for p in range(c + 1, c + n + 1))


def attention(step: Iterable[Counted]) -> list[tuple[Attention, int]]:
    return [(op, count) for _, op, count in step if isinstance(op, Attention)]


def test_attention_of_a_decode_reads_the_cache() -> None:
    """Llama 3.1 8B, tp 2: 64 sequences of 4,096 cached tokens and a new one, 4 of 8 key heads on a rank."""
    [(op, count)] = attention(ops(named("meta-llama/Llama-3.1-8B"), phase="decode", batch=64, context=4096, tp=2))
    assert count == 32
    assert op == Attention(64 * 4097, 64, 64 * 4097, 16, 4, 128, 128, sequences=64)


def test_latent_attention_is_absorbed_in_decode_and_unfolded_in_prefill() -> None:
    model = named("deepseek-ai/DeepSeek-V3")
    [(decode, _)] = attention(ops(model, phase="decode", batch=8, context=1000, tp=8))
    assert (decode.heads, decode.kv_heads, decode.d_qk, decode.d_v, decode.kv_width) == (16, 1, 576, 512, 576)
    [(prefill, _)] = attention(ops(model, phase="prefill", tokens=512, context=100, tp=8))
    assert (prefill.heads, prefill.kv_heads, prefill.d_qk, prefill.d_v) == (16, 16, 192, 128)
    assert prefill.pairs == 512 * 100 + 512 * 513 // 2


def test_windows_and_chosen_keys_bound_what_is_read() -> None:
    oss = dict(attention(ops(named("openai/gpt-oss-120b"), phase="decode", batch=1, context=8191)))
    assert {op.kv_tokens: count for op, count in oss.items()} == {128: 18, 8192: 18}
    sparse = attention(ops(named("deepseek-ai/DeepSeek-V3.2"), phase="decode", batch=2, context=99_999))
    assert [op.pairs for op, _ in sparse] == [2 * 2048]
    scores = [op for _, op, _ in ops(named("deepseek-ai/DeepSeek-V3.2"), phase="decode", batch=2, context=99_999)
              if isinstance(op, IndexScores)]
    assert [op.pairs for op in scores] == [2 * 100_000]


def test_layers_that_share_an_indexer_score_nothing() -> None:
    """GLM-5.2: 21 of 78 layers choose keys, the others take over their choice."""
    step = ops(named("zai-org/GLM-5.2"), phase="decode", batch=1, context=10_000)
    assert sum(count for _, op, count in step if isinstance(op, IndexScores)) == 21
    assert sum(count for op, count in attention(step)) == 78


@pytest.mark.parametrize(("name", "split", "expected"), [
    ("meta-llama/Llama-3.1-8B", {"tp": 1}, {}),
    ("meta-llama/Llama-3.1-8B", {"tp": 2}, {"all_reduce": 65, "all_gather": 1}),
    ("Qwen/Qwen3-30B-A3B", {"tp": 4, "ep": 4}, {"all_reduce": 97, "all_gather": 1}),
    ("Qwen/Qwen3-30B-A3B", {"dp": 4, "ep": 4}, {"all_to_all": 96}),
    ("Qwen/Qwen3-30B-A3B", {"dp": 4}, {"all_gather": 48, "reduce_scatter": 48}),
    ("meta-llama/Llama-3.1-8B", {"pp": 2}, {"send_recv": 1}),
])
def test_collectives_of_a_step(name: str, split: dict[str, int], expected: dict[str, int]) -> None:
    got: dict[str, int] = {}
    for _, op, count in ops(named(name), phase="decode", batch=16, context=100, **split):        # type: ignore[arg-type]
        if isinstance(op, Communication):
            got[op.collective] = got.get(op.collective, 0) + count
    assert got == expected


def test_tokens_go_to_experts_once_for_each_choice() -> None:
    """DeepSeek-V3, ep 32 with replicated attention: 128 tokens a rank, 8 experts each, 7,168 fp8 out and bf16 back."""
    step = {label: op for label, op, _ in ops(named("deepseek-ai/DeepSeek-V3"), phase="decode", batch=128, context=4096,
                                              dp=32, ep=32)}
    assert step["moe.dispatch"].work().messages[0].nbytes == 128 * 8 * 7168
    assert step["moe.combine"].work().messages[0].nbytes == 128 * 8 * 7168 * 2
    experts = step["moe.experts"]
    assert isinstance(experts, Experts)
    assert (experts.tokens, experts.experts_used, experts.inner) == (128 * 32 * 8 // 32, 8, 2048)


def test_the_busiest_rank_has_more_rows() -> None:
    """128 tokens of each of 32 ranks, 8 choices: 1,024 rows a rank alike, 1,536 on the busiest of imbalance 1.5."""
    rows = []
    for imbalance in (1.0, 1.5):
        step = ops(named("deepseek-ai/DeepSeek-V3"), phase="decode", batch=128, context=100, dp=32, ep=32,
                   imbalance=imbalance)
        rows += [op.tokens for _, op, _ in step if isinstance(op, Experts)]
    assert rows == [1024, 1536]
    with pytest.raises(InputError, match="imbalance expected"):
        Split(ep=1, imbalance=2.0)


def test_a_mixed_step_multiplies_linear_layers_once() -> None:
    """512 tokens of a prefill and 64 decodes: GEMMs of 576 rows, attention twice, 65 rows of logits."""
    model = named("meta-llama/Llama-3.1-8B")
    step = step_ops(model, (Batch(1, 512, 1024), Batch(64, 1, 2000, decode=True)))
    gemms = {label: op for label, op, _ in step if isinstance(op, Gemm)}
    assert gemms["mlp.up"].m == 576
    assert gemms["head"].m == 65
    assert [label for label, op, _ in step if isinstance(op, Attention)] == ["attention.prefill", "attention.decode"]


def test_drafts_run_where_the_model_has_them() -> None:
    model = named("deepseek-ai/DeepSeek-V3")
    plain, drafted = (ops(model, phase="decode", batch=8, context=100, drafts=n) for n in (0, 2))
    more = [label for label, _, _ in drafted if label not in {label for label, _, _ in plain}]
    assert all(label.startswith("draft.") for label in more)
    joined = 2 * 2 * 7168 * 7168 * 8 * 2
    draft_head = 2 * 129280 * 7168 * 8 * 2
    layer = multiplied((label, op, count) for label, op, count in drafted if label.startswith("draft."))
    assert layer > joined + draft_head
    with pytest.raises(InputError, match="no layers that predict further tokens"):
        ops(named("Qwen/Qwen3-8B"), phase="decode", drafts=1)


@pytest.mark.parametrize(("name", "split", "message"), [
    ("meta-llama/Llama-3.1-8B", {"tp": 3}, "tp = 3"),
    ("Qwen/Qwen3-30B-A3B", {"tp": 8, "ep": 3}, "ep = 3 does not divide the 8 ranks"),
    ("mistralai/Mixtral-8x7B-v0.1", {"dp": 16, "ep": 16}, "ep = 16 does not divide 8 experts"),
    ("meta-llama/Llama-3.1-8B", {"pp": 40}, "pp = 40 is more than the 32 layers"),
    ("meta-llama/Llama-3.1-8B", {"pp": 2, "pp_stage": 2}, "stage 2 of 2"),
    ("meta-llama/Llama-3.1-8B", {"tp": 0}, "tp expected"),
])
def test_a_split_that_does_not_divide_the_model_is_refused(name: str, split: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ops(named(name), phase="decode", context=10, **split)               # type: ignore[arg-type]


def test_problems_name_every_reason() -> None:
    reasons = problems(named("openai/gpt-oss-120b"), Split(tp=7))
    assert len(reasons) >= 2
    assert all("7" in reason for reason in reasons)
    assert problems(named("openai/gpt-oss-120b"), Split(tp=8)) == ()


@pytest.mark.parametrize("wrong", [{"phase": "train"}, {"phase": "prefill"}, {"phase": "decode", "batch": 0},
                                   {"phase": "decode", "context": -1}, {"phase": "decode", "tokens": 2.5}])
def test_a_step_of_wrong_sizes_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"expected|needs"):
        ops(named("Qwen/Qwen3-8B"), **wrong)                                # type: ignore[arg-type]


def test_distinct_experts_are_those_of_a_simulation() -> None:
    """64 tokens choose 8 of 128: drawn 400 times, 126.0 used on average."""
    dice = random.Random(1)
    for tokens in (1, 4, 16, 64):
        drawn = [len({e for _ in range(tokens) for e in dice.sample(range(128), 8)}) for _ in range(400)]
        assert used(128, tokens * 8) == pytest.approx(sum(drawn) / len(drawn), rel=0.05)


@pytest.mark.parametrize(("op", "flops", "bytes_read", "bytes_written"), [
    # 4 x 8 by 8 x 16 in fp4: 32 elements of A, 128 of B with 8 scales; 64 bf16 out
    (ScaledGemm(4, 16, 8, "fp4", "fp4", 16), {("tensor", "fp4"): 2 * 4 * 16 * 8}, 16 + 64 + 8, 128),
    # one key of 4 against one query of 2 heads
    (IndexScores(1, 1, 1, 2, 4, 1), {("tensor", "fp8"): 16, ("vector", "fp32"): 4}, 8 + 4 + 4 + 8, 4),
    # one token, one head, state 2 x 3: read, write and query are 2·2·3 each, decay 2·3
    (Recurrence(1, 1, 1, 1, 2, 3, gates=2), {("vector", "fp32"): 36 + 6}, 8 + 6 + 4 + 24, 6 + 24),
    # without the delta rule one product less
    (Recurrence(1, 1, 1, 1, 2, 3, gates=1, delta=False), {("vector", "fp32"): 24 + 6}, 8 + 6 + 2 + 24, 6 + 24),
    (ShortConvolution(5, 1, 3, 4), {("vector", "fp32"): 2 * 4 * 15}, 30 + 18 + 24, 30 + 18),
])
def test_work_of_the_new_operators(
    op: Op, flops: dict[tuple[str, str], int], bytes_read: int, bytes_written: int,
) -> None:
    assert op.work() == Work.of(flops=flops, bytes_read=bytes_read, bytes_written=bytes_written)


def test_a_chunked_recurrence_does_the_products_of_its_chunks() -> None:
    """One chunk of 4 tokens, d 2 and 3, one head: 10 pairs; Q·K, K·K and solve."""
    op = Recurrence(4, 1, 1, 1, 2, 3, gates=2, chunk=64)
    pairs = 4 * 5 // 2
    assert op.work().flops == {("tensor", "bf16"): 4 * 36 + pairs * (2 * 2 + 2 * 3 + 2 * 2 + 2 * 2 + 2 * 3)}


def test_a_scaled_product_of_weights_reads_as_many_as_a_grouped_one_of_one_group() -> None:
    scaled, grouped = ScaledGemm(7, 64, 32, "bf16", "int4", 64), GroupedGemm(7, 64, 32, 1, "bf16", "int4", b_block=64)
    assert scaled.work() == grouped.work()
    assert doctest.testmod(sublight.ops.scaled_gemm).failed == 0
