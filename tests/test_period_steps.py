"""Steps that nobody marked: found where a run repeats, in real traces whose marks are hidden and in small ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from conftest import shared
from kineto import Kineto
from planted_traces import TABLES, repeated, unmarked

from sublight.explain import explain
from sublight.explain.steps import REPETITION
from sublight.explain.view import View
from sublight.observe.read import read, read_all
from sublight.show.json import document
from sublight.show.markdown import markdown
from sublight.trace import Trace

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
NORM = "void layer_norm::ln_fwd_kernel<float>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdam>(int)"
LOSS = "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>(float)"
LAYER = (NORM, GEMM, GELU, GEMM, ADD)


def only(trace: Trace) -> View:
    (device,) = explain(trace, what_ifs=()).devices
    return device.view


def ran(folder: Path, kernels: list[str], *, pause: dict[int, int] | None = None) -> View:
    """Kernels of 100 ns in a row, each launched long before; a pause before some."""
    k, now = Kineto(), 0
    for i, name in enumerate(kernels):
        now += (pause or {}).get(i, 0)
        k.kernel(name, now, now + 100, launch=(-9_000 + i, -8_999 + i))
        now += 100
    return only(read(k.write(folder / "t.json")))


# ---- real traces


def test_a100_with_its_marks_hidden_has_its_three_steps() -> None:
    trace = read(shared("kineto/a100_ddp_rank0.json.gz"))
    marked, found = only(trace), only(unmarked(trace))
    assert (found.step_kind, found.window, len(found.steps)) == (REPETITION, "step", 3)
    assert [s.window and s.window[0] for s in found.steps] == [s.window and s.window[0] for s in marked.steps]
    assert found.window_reason == "3 repetitions of 1,258 activities, found, not marked"
    # Marked windows end with their last activity, found ones where the next begins.
    assert [s.window[1] for s in found.steps if s.window][-1] == [s.window[1] for s in marked.steps if s.window][-1]
    assert sum(part.ns for part in found.budget.parts) == found.budget.window_ns == found.span_ns


def test_marked_steps_stay_marked() -> None:
    view = only(read(shared("kineto/a100_ddp_rank0.json.gz")))
    assert (view.step_kind, view.window_reason) == ("torch.profiler schedule", "3 steps (torch.profiler schedule)")


@pytest.mark.parametrize(("name", "blocks", "apart"), [
    ("before", 16, "; set apart: 8 cut off at the start, 116 at the end"), ("after", 15, "; set apart: 11 at the end")])
def test_both_exports_have_repetitions(name: str, blocks: int, apart: str) -> None:
    explanation = explain(read_all([shared(f"nsys/mfu_2gpu_{name}.sqlite")]), what_ifs=())
    for device in explanation.devices:
        view = device.view
        assert (view.step_kind, len(view.steps)) == (REPETITION, blocks)
        assert {step.activities for step in view.steps} == {157}
        assert view.unclassified_share <= 0.01
        assert device.replay is not None
        assert device.replay.error < 0.05
    assert explanation.devices[0].view.window_reason == (
        f"{blocks} repetitions of 157 activities, found, not marked{apart}")


SINGLE = ("kineto/h800_moe_ep64_train.json.gz", "kineto/h100_qwen15_05b.json.gz", "kineto/b200_vllm_tp8_eager.json.gz")


@pytest.mark.parametrize("name", SINGLE)
def test_one_step_is_said_to_be_one_and_five_copies_are_five(name: str) -> None:
    trace = unmarked(read(shared(name)))
    one = only(trace)
    assert (one.step_kind, one.window) == (None, "all")
    assert one.window_reason.startswith("no step is marked in the file, and its kernels hold one step at most")
    view = only(repeated(trace, 5))
    tables = [getattr(trace, t) for t in TABLES if len(getattr(trace, t).ts_ns)]
    stride = max(int(t.end_ns.max()) for t in tables) - min(int(t.ts_ns.min()) for t in tables) + 100_000
    starts = [step.window[0] for step in view.steps if step.window]
    assert [b - a for a, b in pairwise(starts)] == [stride] * 4
    assert (view.step_kind, view.steps[0].activities) == (REPETITION, len(trace.activities.ts_ns))


def test_every_v100_rank_holds_one_step() -> None:
    for trace in read_all([shared("kineto/v100_dlrm_8rank/dlrm_kineto")]):
        assert "one step at most" in only(unmarked(trace)).window_reason


# ---- small ones


def test_layers_of_one_step_are_not_steps(tmp_path: Path) -> None:
    view = ran(tmp_path, [LOSS, *LAYER * 8, ADAM])
    assert view.steps == ()
    assert view.window_reason == ("no step is marked in the file, and its kernels hold one step at most "
                                  "(5 repeat 8 times inside it, as layers do)")
    assert [r.why for r in view.refusals if r.what == "figures per step"] == [view.window_reason]


def test_steps_of_layers_are_steps_and_windows_join(tmp_path: Path) -> None:
    #  3 steps of 12 kernels, 1.2 µs each, 500 ns between them
    step = [LOSS, *LAYER * 2, ADAM]
    view = ran(tmp_path, step * 3, pause={12: 500, 24: 500})
    low = view.timeline.span[0]
    assert [(s.window[0] - low, s.window[1] - low) for s in view.steps if s.window] == [
        (0, 1_700), (1_700, 3_400), (3_400, 4_600)]
    assert (view.budget.window_ns, view.budget.idle_ns) == (4_600, 1_000)
    assert view.budget["idle: outside a step"] == 0          # the pauses belong to the steps


def test_what_is_cut_off_is_set_apart_and_said_everywhere(tmp_path: Path) -> None:
    step = [LOSS, *LAYER, ADAM]
    view = ran(tmp_path, [*step[-2:], *step * 2, step[0]], pause={2: 300, 9: 300, 16: 300})
    reason = "2 repetitions of 7 activities, found, not marked; set apart: 2 cut off at the start, 1 at the end"
    assert view.window_reason == reason
    low = view.timeline.span[0]
    assert view.windows == ((low + 500, low + 2_500),)         # to the start of what is cut off behind
    explanation = explain(view.trace, what_ifs=())
    assert document(explanation)["devices"][0]["window_reason"] == reason
    assert reason in markdown(explanation)


def test_a_warm_up_is_set_apart(tmp_path: Path) -> None:
    step = [LOSS, *LAYER, ADAM]
    head = [LOSS, NORM, "void cublasLt_init(int)", GEMM, "void autotune(int)", GELU, "void autotune(float)"]
    view = ran(tmp_path, [*head, *step * 4], pause=dict.fromkeys((7, 14, 21, 28), 200))
    assert view.window_reason == "4 repetitions of 7 activities, found, not marked; set apart: 7 of warm-up"


def test_a_cpu_only_run_without_marks_has_its_repetitions(tmp_path: Path) -> None:
    #  two steps of four operators, and the beginning of a third
    k = Kineto(device_name=None)
    names = ("aten::embedding", "aten::linear", "aten::gelu", "aten::cross_entropy_loss", "aten::optimizer")
    now = 0
    for name in [*names, *names, names[0]]:
        k.op(name, now, now + 1_000)
        k.op("aten::empty", now + 100, now + 200)
        now += 3_500 if name == names[-1] else 1_500
    view = only(read(k.write(tmp_path / "t.json")))
    assert (view.step_kind, len(view.steps), view.window) == (REPETITION, 2, "step")
    assert view.window_reason == "2 repetitions of 5 operators, found, not marked; set apart: 1 at the end"
    assert view.budget.window_ns == 19_000                     # from the first to where the third begins
