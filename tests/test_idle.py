"""One planted gap per cause of idle time, recovered to the nanosecond. Times are ns after the trace's base."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto import Kineto

from sublight.budget import IDLE, Budget
from sublight.explain import explain
from sublight.observe.read import read

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"


def budget(trace: Kineto, tmp_path: Path, window: str = "all") -> Budget:
    return explain(read(trace.write(tmp_path / "trace.json")), window=window).devices[0].view.budget


def idle(found: Budget) -> dict[str, int]:
    return {part: found[part] for part in IDLE if found[part]}


def test_blocked_is_the_part_of_a_gap_that_a_synchronising_call_covers(tmp_path: Path) -> None:
    #  device  ███████─────────────████      0..1000, 5000..6000
    #  host    [sync     ]   [launch]        sync 500..3000, launch 4500
    #                 blocked 1000..3000, then the launch came too late: 3000..5000
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.call("cudaStreamSynchronize", 500, 3_000)
    k.kernel(GEMM, 5_000, 6_000, launch=(4_500, 4_600))

    assert idle(budget(k, tmp_path)) == {"idle: blocked": 2_000, "idle: launch-starved": 2_000}


def test_a_synchronising_call_on_another_thread_blocks_nothing(tmp_path: Path) -> None:
    #  thread 1 launches; thread 2 waits for the device all the while (a watchdog)
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.call("cudaEventSynchronize", 500, 4_000, thread=2)
    k.kernel(GEMM, 5_000, 6_000, launch=(4_500, 4_600))

    assert idle(budget(k, tmp_path)) == {"idle: launch-starved": 4_000}


def test_a_synchronising_call_blocks_nothing_that_was_launched_before_it(tmp_path: Path) -> None:
    #  device  ███────███        0..1000, 4000..5000
    #  host  [launch][sync    ]  both launches first, then the host waits 500..6000: something else holds B back
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 4_000, 5_000, launch=(-300, -200), stream=20)
    k.call("cudaDeviceSynchronize", 500, 6_000)

    assert idle(budget(k, tmp_path)) == {"idle: dependency": 3_000}


def test_a_synchronising_call_after_the_launch_held_nothing_up(tmp_path: Path) -> None:
    #  device  ███─────────────████      0..1000, 6000..7000
    #  host     [launch][sync        ]   launched 1500, then the host waits 2000..7500 for that very kernel
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 6_000, 7_000, launch=(1_500, 1_600))
    k.call("cudaDeviceSynchronize", 2_000, 7_500)

    assert idle(budget(k, tmp_path)) == {"idle: launch-starved": 5_000}


def test_a_kernel_launched_before_the_recording_began_was_launched_in_time(tmp_path: Path) -> None:
    #  correlation ids count up: 5 is below all ids of the file's calls, 99 is not
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400), correlation=50)
    k.kernel(GEMM, 2_000, 3_000, correlation=5)
    k.kernel(GEMM, 4_000, 5_000, correlation=99)
    k.call("cudaDeviceSynchronize", 500, 3_200, correlation=60)

    assert idle(budget(k, tmp_path)) == {
        "idle: dependency": 1_000, "idle: blocked": 200, "idle: unexplained": 800}


@pytest.mark.parametrize("correlation", [0, -1])
def test_a_correlation_id_that_counts_nothing_says_nothing_of_the_launch(tmp_path: Path, correlation: int) -> None:
    #  device  ███────███     0..1000, 2000..3000: the second has no id to count by, though 0 is below all of them
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400), correlation=50)
    k.kernel(GEMM, 2_000, 3_000, correlation=correlation)

    assert idle(budget(k, tmp_path)) == {"idle: unexplained": 1_000}


def test_a_wait_ends_where_the_launch_of_the_next_activity_begins(tmp_path: Path) -> None:
    #  host     [sync 500..3000  ]              one call waits while another thread-1 call has begun: crossing records
    #  host               [launch 2000..2100]
    #  device   ███────────────────████         0..1000, 5000..6000; blocked 1000..2000 only
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.call("cudaStreamSynchronize", 500, 3_000)
    k.kernel(GEMM, 5_000, 6_000, launch=(2_000, 2_100))

    assert idle(budget(k, tmp_path)) == {"idle: blocked": 1_000, "idle: launch-starved": 3_000}


def test_time_inside_and_after_the_launch_call_is_launch_starved(tmp_path: Path) -> None:
    #  device  ███──────────────────███      0..1000, 6000..7000
    #  host         [launch   ]              2000..4000: before, inside and after the call alike
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 6_000, 7_000, launch=(2_000, 4_000))

    assert idle(budget(k, tmp_path)) == {"idle: launch-starved": 5_000}


def test_a_free_on_the_host_is_no_wait(tmp_path: Path) -> None:
    #  device  ███──────██████       0..1000, 3000..6000; cudaFree 500..3000 is the host's own work for most of its time
    for name, cause in (("cudaFree", "idle: launch-starved"), ("cudaStreamSynchronize", "idle: blocked")):
        k = Kineto()
        k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
        k.call(name, 500, 3_000)
        k.kernel(GEMM, 3_000, 6_000, launch=(3_000, 3_100))

        assert idle(budget(k, tmp_path)) == {cause: 2_000}


def test_launch_starved_is_a_gap_whose_next_launch_was_issued_after_it_began(tmp_path: Path) -> None:
    #  device  ███──────███     0..1000, 4000..5000
    #  host          [launch]   issued at 1000, the very instant the device went idle
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 4_000, 5_000, launch=(1_000, 1_100))

    assert idle(budget(k, tmp_path)) == {"idle: launch-starved": 3_000}


def test_dependency_is_a_gap_whose_next_launch_was_issued_before_it_began(tmp_path: Path) -> None:
    #  one nanosecond earlier, and the launch was in time: something else held the kernel back
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 4_000, 5_000, launch=(999, 1_100), stream=20)

    assert idle(budget(k, tmp_path)) == {"idle: dependency": 3_000}


def test_gaps_inside_a_graph_replay_are_dependencies(tmp_path: Path) -> None:
    #  one launch at -500 for three kernels; before the replay the device waits for the launch
    k = Kineto()
    k.kernel(GEMM, -3_000, -2_000, launch=(-4_000, -3_900))
    k.graph_launch((-500, -400), [(GEMM, 0, 1_000, 7), (GEMM, 1_200, 2_000, 7), (GEMM, 2_500, 3_000, 7)])

    assert idle(budget(k, tmp_path)) == {"idle: launch-starved": 2_000, "idle: dependency": 700}


def test_outside_a_step_is_idle_between_steps_before_a_kernel_whose_launch_is_not_in_the_file(tmp_path: Path) -> None:
    #  step 1 on the device 0..1000, step 2 3000..4000; the kernel at 6000 has no launch
    k = Kineto()
    k.step(1, -600, -100)
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 6_000, 7_000)

    assert idle(budget(k, tmp_path)) == {"idle: outside a step": 5_000}


def test_profiler_overhead_is_idle_inside_a_step_while_the_profiler_works(tmp_path: Path) -> None:
    #  step on the device 0..9000; the kernel at 5000 has no launch; the profiler works 2000..2700
    k = Kineto()
    k.step(1, -600, 100)
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.overhead("Activity Buffer Request", 2_000, 2_700)
    k.kernel(GEMM, 5_000, 6_000)
    k.kernel(GEMM, 6_000, 9_000, launch=(-300, -200))

    assert idle(budget(k, tmp_path)) == {"idle: profiler overhead": 700, "idle: unexplained": 3_300}


def test_several_streams_are_one_device(tmp_path: Path) -> None:
    #  stream 7   ███────███       0..1000, 3000..4000
    #  stream 20     ███───        800..2000: the device is idle only 2000..3000
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 800, 2_000, launch=(-300, -200), stream=20)
    k.kernel(GEMM, 3_000, 4_000, launch=(2_500, 2_600))

    assert idle(budget(k, tmp_path)) == {"idle: launch-starved": 1_000}


def test_a_thread_is_idle_while_other_threads_run_operators_or_while_none_does(tmp_path: Path) -> None:
    #  thread 1   ├ mm ┤                           ├ mm ┤      0..1000, 6000..7000
    #  thread 2        ├ add ┤                                 1500..2500, and a second one across its end:
    #  thread 3            ├ add ┤                             2000..3000, so that others run 1500..3000
    #  thread 4                       ├ gloo ┤                 4000..4500: a collective is communication, not idle
    k = Kineto(device_name=None, backend="gloo")
    k.op("aten::mm", 0, 1_000)
    k.op("aten::mm", 6_000, 7_000)
    k.op("aten::add", 1_500, 2_500, thread=2)
    k.op("aten::add", 2_000, 3_000, thread=3)
    k.annotate("gloo:all_reduce", 4_000, 4_500, thread=4)
    views = [d.view for d in explain(read(k.write(tmp_path / "trace.json")), window="all").devices]
    main = next(v for v in views if v.budget["gemm"])

    assert idle(main.budget) == {"idle: other threads run operators": 1_500, "idle: outside operators": 3_000}
    assert main.budget["exposed communication"] == 500


def test_two_devices_are_accounted_apart(tmp_path: Path) -> None:
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=(-500, -400))
    k.kernel(GEMM, 2_000, 3_000, launch=(1_500, 1_600))
    k.kernel(GEMM, 1_000, 2_000, launch=(-300, -200), device=1)
    found = explain(read(k.write(tmp_path / "trace.json")), window="all").devices

    assert [d.view.device for d in found] == [0, 1]
    assert [d.view.budget.idle_ns for d in found] == [1_000, 0]


def test_a_step_window_is_what_was_launched_within_it_not_its_time_on_the_host(tmp_path: Path) -> None:
    #  host    [step 1   ][step 2   ]           0..1000, 1000..2000
    #  device        ██████████ ███████████     step 1: 900..2500, step 2: 2600..4000
    k = Kineto()
    k.step(1, 0, 1_000)
    k.step(2, 1_000, 2_000)
    k.kernel(GEMM, 900, 1_500, launch=(100, 200))
    k.kernel(GEMM, 1_500, 2_500, launch=(999, 1_050))
    k.kernel(GEMM, 2_600, 4_000, launch=(1_000, 1_100), thread=2)
    view = explain(read(k.write(tmp_path / "trace.json"))).devices[0].view

    assert [row.window_ns for row in view.step_rows] == [1_600, 1_400]
    assert view.window == "step"
    assert view.budget.window_ns == 3_000
    assert idle(view.budget) == {}


@pytest.mark.parametrize("window", ["all", "step"])
def test_steps_without_launches_make_all_the_default_and_are_refused(tmp_path: Path, window: str) -> None:
    from sublight.errors import InputError

    k = Kineto()
    k.step(1, 0, 1_000)
    k.step(2, 1_000, 2_000)
    k.kernel(GEMM, 900, 1_500, launch=(100, 200))
    trace = read(k.write(tmp_path / "trace.json"))

    assert explain(trace).devices[0].view.window == "all"
    assert explain(trace).devices[0].view.window_reason == (
        "1 of 2 marked steps have no linked activity on this device")
    if window == "step":
        with pytest.raises(InputError, match="use --window all"):
            explain(trace, window="step")
