"""apply(model): what is swapped, what is kept and why, that outputs stay, and that undo leaves no trace."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.functional import gelu, scaled_dot_product_attention, silu  # noqa: E402

import sublight.kernels  # noqa: E402
from sublight.errors import InputError  # noqa: E402
from sublight.kernels.native import build  # noqa: E402

if build.refusal():
    pytest.skip(str(build.refusal()), allow_module_level=True)
from sublight.kernels.swap import Kept, Swapped, decode_attention  # noqa: E402

WIDTH, HEADS, KV_HEADS = 64, 4, 2
Tensor = Any


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compiled once for the session, into a folder of its own; nothing of the user's is read or written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


class Norm(nn.Module):                   # type: ignore[misc, unused-ignore]
    """As Hugging Face writes it."""

    def __init__(self, width: int = WIDTH, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * scale).to(x.dtype)


class Gemma(Norm):
    """Looks the same, and multiplies by 1 + weight."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (normed * (1 + self.weight.float())).to(x.dtype)


class Mlp(nn.Module):                    # type: ignore[misc, unused-ignore]
    def __init__(self, act: Any = silu) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 96, bias=False), nn.Linear(WIDTH, 96, bias=False)
        self.down_proj, self.act = nn.Linear(96, WIDTH, bias=False), act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):              # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.dim = WIDTH // HEADS
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, n * self.dim) for n in (HEADS, KV_HEADS, KV_HEADS))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None) -> Any:
        q, k, v = (p(x).unflatten(-1, (-1, self.dim)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        causal = mask is None and q.shape[2] > 1
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2)), (k, v)


class Block(nn.Module):                  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = Norm(), nn.RMSNorm(WIDTH, eps=1e-6)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor, past: Any = None) -> Any:
        out, past = self.attention(self.input_norm(x), past)
        x = x + out
        return x + self.mlp(self.post_norm(x)), past


class Decoder(nn.Module):                # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = Gemma()

    def forward(self, x: Tensor, pasts: Any = (None, None)) -> Any:
        made = []
        for layer, past in zip(self.layers, pasts, strict=True):
            x, past = layer(x, past)
            made.append(past)
        return self.norm(x), made


def decoder(dtype: Any = torch.bfloat16) -> Any:
    torch.manual_seed(0)
    return Decoder().to(dtype).eval()


def generated(model: Any, dtype: Any = torch.bfloat16, steps: int = 4) -> Tensor:
    """Outputs of a prompt of nine tokens and of some steps of one."""
    x = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    outs, pasts = [], (None, None)
    with torch.inference_mode():
        for _ in range(steps):
            x, pasts = model(x, pasts)
            outs.append(x[:, -1:])
            x = outs[-1]
    return torch.cat(outs, 1)


def far(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_what_is_swapped_and_what_is_kept_and_why() -> None:
    applied = sublight.kernels.apply(decoder())
    assert {(s.path, s.op) for s in applied.swapped} == {
        (f"layers.{i}.{name}", op) for i in (0, 1) for name, op in
        (("input_norm", "norm"), ("post_norm", "norm"), ("mlp", "swiglu"), ("attention", "decode"))}
    (kept,) = applied.kept
    assert (kept.path, kept.op) == ("norm", "norm")
    assert "on a probe" in kept.why                               # Gemma's: 1 + weight


@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)])
def test_outputs_stay_and_our_kernels_run(dtype: Any, near: float) -> None:
    model = decoder(dtype)
    exact = generated(copy.deepcopy(model).double(), torch.float64)
    before = generated(model, dtype)
    applied = sublight.kernels.apply(model)
    after = generated(model, dtype)
    assert far(after, before) < near
    assert far(after, exact) < 1.5 * far(before, exact) + 1e-7
    calls = applied.calls()
    assert (calls["layers.0.input_norm"].ours, calls["layers.0.input_norm"].own) == (4, 0)
    assert (calls["layers.1.mlp"].ours, calls["layers.1.mlp"].own) == (4, 0)
    assert (calls["layers.1.attention"].ours, calls["layers.1.attention"].own) == (3, 1)   # the prompt is torch's


def test_undo_restores_everything() -> None:
    model = decoder()
    classes, keys, before = [type(m) for m in model.modules()], list(model.state_dict()), generated(model)
    state = [sorted(vars(m)) for m in model.modules()]
    shown = repr(model)
    applied = sublight.kernels.apply(model)
    assert list(model.state_dict()) == keys
    assert repr(model) == shown
    applied.undo()
    applied.undo()
    assert [type(m) for m in model.modules()] == classes
    assert [sorted(vars(m)) for m in model.modules()] == state
    assert torch.equal(generated(model), before)                  # bit for bit


def test_a_deep_copy_runs_on_its_own_weights() -> None:
    model = decoder()
    applied = sublight.kernels.apply(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layers[0].input_norm.weight.zero_()
        x = torch.randn(1, 1, WIDTH).bfloat16()
        assert not other.layers[0].input_norm(x).any()
        assert model.layers[0].input_norm(x).any()
    applied.undo()


def test_training_and_gradients_are_the_modules_own() -> None:
    model = decoder(torch.float32)
    applied = sublight.kernels.apply(model)
    x = torch.randn(1, 5, WIDTH, requires_grad=True)
    model(x)[0].sum().backward()                                  # eval, but a gradient is wanted
    assert x.grad is not None
    assert model.layers[0].input_norm.weight.grad is not None
    assert not any(c.ours for c in applied.calls().values())
    model.train()
    with torch.no_grad():
        model(x)
    assert not any(c.ours for path, c in applied.calls().items() if "attention" not in path)


def test_other_inputs_are_the_modules_own() -> None:
    model, x = nn.Sequential(Norm()).eval(), torch.randn(3, WIDTH)
    applied = sublight.kernels.apply(model)

    def own() -> int:
        return applied.calls()["0"].own

    with torch.no_grad():
        assert far(model(x.t().contiguous().t()), model(x)) == 0.0          # strides: made contiguous
        assert own() == 0
        model(x.bfloat16()), model(x.double()), model(x[:0])                # formats mixed, fp64, empty
        assert own() == 3
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x)
        assert own() == 4
        torch.vmap(model)(x)
        assert own() == 5


def test_another_activation_and_a_bound_on_the_gates_are_not_silu() -> None:
    model = nn.ModuleDict({"gelu": Mlp(gelu), "clamped": Mlp(lambda g: silu(g.clamp(max=7.0))), "silu": Mlp()}).eval()
    applied = sublight.kernels.apply(model)
    assert [s.path for s in applied.swapped] == ["silu"]
    assert [k.path for k in applied.kept] == ["gelu", "clamped"]


@pytest.mark.parametrize("change", ["eps", "mean", "bias"])
def test_a_norm_that_differs_is_not_swapped(change: str) -> None:
    class Other(Norm):
        def forward(self, x: Tensor) -> Tensor:
            if change == "mean":
                x = x - x.mean(-1, keepdim=True)
            wide, eps = x.float(), 10 * self.variance_epsilon if change == "eps" else self.variance_epsilon
            y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
            return (self.weight * y + (0.1 if change == "bias" else 0.0)).to(x.dtype)

    applied = sublight.kernels.apply(nn.Sequential(Other(), nn.LayerNorm(WIDTH)))
    assert not applied.swapped
    assert [k.path for k in applied.kept] == ["0"]


def test_a_mask_that_hides_a_token_is_torchs() -> None:
    model, x = nn.Sequential(Attention()).eval(), torch.randn(1, 1, WIDTH)
    past = torch.randn(1, KV_HEADS, 7, 16), torch.randn(1, KV_HEADS, 7, 16)
    hiding, showing = torch.ones(1, 1, 1, 8, dtype=torch.bool), torch.zeros(1, 1, 1, 8)
    hiding[..., 3] = False
    with torch.no_grad():
        before = [model[0](x, past, mask)[0] for mask in (hiding, showing)]
        applied = sublight.kernels.apply(model)
        after = [model[0](x, past, mask)[0] for mask in (hiding, showing)]
    assert torch.equal(after[0], before[0])
    assert far(after[1], before[1]) < 1e-6
    assert (applied.calls()["0"].ours, applied.calls()["0"].own) == (1, 1)


def test_a_choice_is_kept_to() -> None:
    model = decoder()
    applied = sublight.kernels.apply(model, choices={"norm": "sublight", "swiglu": "inductor"})
    assert {s.op for s in applied.swapped} == {"norm"}
    assert {k.why for k in applied.kept if k.op == "swiglu"} == {"the choice is inductor"}
    assert {k.why for k in applied.kept if k.op == "decode"} == {"there is no choice for it"}
    applied.undo()
    asked = []

    def choose(op: str, shape: Any) -> str | None:
        asked.append((op, shape))
        return "sublight" if op == "norm" and shape.rows == 2 else None

    applied = sublight.kernels.apply(model, choices=choose)
    generated(model)
    assert applied.calls()["layers.0.input_norm"].ours == 3       # two rows: one token of two sequences
    assert applied.calls()["layers.0.input_norm"].own == 1
    assert applied.calls()["layers.0.mlp"].ours == 0
    assert len(asked) == len(set(asked))                          # asked once a shape
    assert all(op in ("norm", "swiglu", "decode") for op, _ in asked)
    with pytest.raises(InputError, match="did you mean norm"):
        sublight.kernels.apply(model, choices={"nrom": "sublight"})


def test_tables_of_the_arena_choose(tmp_path: Any) -> None:
    """Two rows: ours is tied, so it is taken. Eighteen: another one is faster. Fifty: nothing near was measured."""
    from sublight.kernels.arena.choice import Choice, ChoiceTable, document, load
    from sublight.kernels.norm.shape import Shape

    made = [Choice(asdict(Shape(2, WIDTH)), "inductor", False, ("sublight",), 1e-5, None, {}),
            Choice(asdict(Shape(18, WIDTH)), "inductor", True, (), 1e-5, None, {"sublight": (2.0, 1.9, 2.1)})]
    (tmp_path / "norm.json").write_text(json.dumps(document(ChoiceTable("norm", {}, tuple(made)))))
    model = nn.Sequential(Norm()).bfloat16().eval()
    applied = sublight.kernels.apply(model, choices=[load(tmp_path / "norm.json")])
    seen = []
    with torch.no_grad():
        for rows in (2, 18, 50):
            model(torch.randn(rows, WIDTH).bfloat16())
            seen.append((applied.calls()["0"].ours, applied.calls()["0"].own))
    assert seen == [(1, 0), (1, 1), (1, 2)]


def test_what_is_swapped_already_or_by_others_is_kept() -> None:
    model = nn.Sequential(Norm(), Norm())
    model[1].forward = model[1].forward                           # what accelerate does, among others
    first, second = sublight.kernels.apply(model), sublight.kernels.apply(model)
    assert first.swapped == (Swapped("0", "norm"),)
    assert first.kept == (Kept("1", "norm", "its forward was replaced on the module itself, by another library"),)
    assert second.kept[0].why == "it is swapped already"


def test_decode_attention_alone() -> None:
    q, (k, v) = torch.randn(2, 8, 1, 40), (torch.randn(2, 50, 2, 40).transpose(1, 2) for _ in range(2))
    exact = scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=0.3, enable_gqa=True)
    assert far(decode_attention(q, k, v, scale=0.3), exact) < 1e-6
    assert far(decode_attention(q.expand(2, 8, 3, 40), k, v, scale=0.3)[:, :, 2:], exact) < 1e-6   # torch's


def test_a_profiler_sees_our_operators() -> None:
    from torch.profiler import ProfilerActivity, profile

    model = decoder()
    sublight.kernels.apply(model)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        generated(model, steps=2)
    names = {event.name for event in seen.events()}
    assert {"sublight::rms_norm", "sublight::swiglu", "sublight::decode"} <= names


@pytest.mark.parametrize("mask", [
    torch.ones(1, 49, dtype=torch.bool), torch.ones(5, 50, dtype=torch.bool), torch.zeros(1, 50, dtype=torch.int64),
    torch.ones((), dtype=torch.bool), torch.ones(7, 1, 1, 50, dtype=torch.bool),
], ids=["short", "more queries", "integers", "no dimension", "more sequences"])
def test_a_mask_that_torch_refuses_is_refused(mask: Tensor) -> None:
    class Attends(nn.Module):            # type: ignore[misc, unused-ignore]
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    model, q, k = Attends().eval(), torch.randn(1, 2, 1, 16), torch.randn(1, 2, 50, 16)
    sublight.kernels.apply(model)
    with torch.inference_mode(), pytest.raises((RuntimeError, IndexError)):
        model(q, k, k)


def test_a_far_bound_on_the_gates_and_a_norm_in_place_are_kept() -> None:
    class InPlace(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return x.copy_(super().forward(x))

    found = sublight.kernels.apply(nn.ModuleList([Mlp(lambda x: silu(x).clamp(max=1000)), InPlace()]))
    assert not found.swapped
    assert "off what it looks like" in found.kept[0].why
    assert found.kept[1].why == "it writes on its input"


def test_kernels_are_compiled_before_anything_is_swapped(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    model = Norm().eval()
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        sublight.kernels.apply(model)
    assert type(model) is Norm
