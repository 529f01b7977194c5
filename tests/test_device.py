"""The catalog against the data sheets, devices found by what a file says of them, bounds against hand-computed ones,
and a measured machine read back."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from conftest import KINETO, shared
from hypothesis import given
from hypothesis import strategies as st

import sublight.bound
from sublight.bound import Bound, bound, charged_bytes, link_bytes
from sublight.cli import main
from sublight.device import OPTIONAL, REQUIRED, SOURCES, Device, DeviceInfo, Limits, by_key, catalog, find, load, named
from sublight.errors import InputError
from sublight.observe import calibrate
from sublight.observe.read import read
from sublight.work import Message, Work

ROOT = Path(__file__).parent.parent
ROWS: dict[str, Any] = tomllib.loads(
    resources.files("sublight.catalog").joinpath("devices.toml").read_text("utf-8"))
GIB = 1 << 30


# ---- the catalog against the sheets


def sheet_figures() -> Iterator[tuple[str, str, str, float, float | None]]:
    """(key, unit, number format, TFLOP/s on the sheet, MHz that it is stated at)."""
    for key, row in ROWS.items():
        for sheet in row.get("sheet", []):
            for unit in ("tensor", "vector"):
                for form, tflops in sheet.get(unit, {}).items():
                    yield key, unit, form, tflops, sheet.get("clock_mhz")


FIGURES = list(sheet_figures())


def agrees(per_clock: float, sms: int, tflops: float, sheet_mhz: float | None, max_mhz: float) -> bool:
    """Whether FLOPs a clock and SM give the sheet's figure: within 1 % at its clock, else just below the peak."""
    if sheet_mhz is None:
        return 0.99 <= per_clock * sms * max_mhz / 1e6 / tflops <= 1.2
    return abs(per_clock * sms * sheet_mhz / 1e6 / tflops - 1) <= 0.01


@pytest.mark.parametrize(("key", "unit", "form", "tflops", "mhz"), FIGURES)
def test_a_rate_gives_the_figure_of_the_sheet(key: str, unit: str, form: str, tflops: float, mhz: float | None) -> None:
    row = ROWS[key]
    assert agrees(row[unit][form], row["sms"], tflops, mhz, row["max_clock_mhz"]), (
        f"{row[unit][form] * row['sms'] * (mhz or row['max_clock_mhz']) / 1e6:.1f} TFLOP/s")


@pytest.mark.parametrize(("key", "unit", "form", "tflops", "mhz"), FIGURES)
def test_a_figure_with_sparsity_would_be_noticed(
    key: str, unit: str, form: str, tflops: float, mhz: float | None
) -> None:
    row = ROWS[key]
    assert not agrees(2 * row[unit][form], row["sms"], tflops, mhz, row["max_clock_mhz"])
    assert not agrees(row[unit][form], row["sms"], 2 * tflops, mhz, row["max_clock_mhz"])


def test_every_device_with_rates_was_checked_against_a_sheet() -> None:
    checked = {(key, unit) for key, unit, *_ in FIGURES}
    assert {d.key for d in catalog() if d.limits.max_clock_hz is None} == {"h20", "v100-sxm3-32"}
    assert [d.key for d in catalog() if d.limits.max_clock_hz
            and not {(d.key, "tensor"), (d.key, "vector")} <= checked] == []


def test_the_devices_that_we_must_know_are_there() -> None:
    keys = {device.key for device in catalog()}
    assert keys >= {
        "v100-sxm2-16", "v100-sxm2-32", "v100-pcie-16", "v100-pcie-32", "a100-sxm-40", "a100-sxm-80", "a100-pcie-40",
        "a100-pcie-80", "a10", "a30", "l4", "l40s", "rtx-4090", "h100-sxm", "h100-pcie", "h100-nvl", "h200", "h800",
        "h20", "gh200-96", "gh200-144", "b200", "b300", "gb200", "gb300", "rtx-pro-6000",
    }


@pytest.mark.parametrize("device", catalog(), ids=lambda d: d.key)
def test_every_number_has_a_source(device: Device) -> None:
    limits = device.limits
    known = {
        "sms": True, "clock": limits.max_clock_hz is not None, "memory": limits.memory_bytes_per_second is not None,
        "tensor": bool(limits.tensor_flops_per_clock), "vector": bool(limits.vector_flops_per_clock), "l2": True,
        "link": limits.link_bytes_per_second is not None,
    }
    assert set(known) == set(SOURCES)
    assert set(device.sources) == {group for group, there in known.items() if there}
    for group, text in device.sources.items():
        assert text.startswith(("stated: ", "measured: ", "upper limit: ")), f"{group}: {text}"
        assert len(text) > 20, text


@pytest.mark.parametrize("key", list(ROWS))
def test_an_entry_has_the_keys_of_a_device_file_and_a_sheet_never_beats_it(key: str) -> None:
    assert ROWS[key].keys() - REQUIRED - OPTIONAL == set()
    for entry, unit, form, tflops, _ in FIGURES:
        if entry == key:
            peak = by_key(key).limits.flops_per_second(unit, form)
            assert peak is not None
            assert peak >= 0.99 * tflops * 1e12


# ---- found by what a file says


@pytest.mark.parametrize(("name", "key"), [
    ("h800", "h800"), ("b200", "b200"), ("a100", "a100-sxm-40"),
])
def test_the_devices_of_the_shared_traces_are_found(name: str, key: str) -> None:
    infos = read(shared(KINETO[name])).devices
    assert infos
    assert {device.key for info in infos.values() if (device := find(info))} == {key}


def test_the_v100_of_the_eight_rank_set_is_found() -> None:
    folder = shared("kineto/v100_dlrm_8rank/dlrm_kineto")
    infos = read(sorted(folder.glob("*.json"))[0]).devices
    assert {device.key for info in infos.values() if (device := find(info))} == {"v100-sxm2-32"}


@pytest.mark.parametrize(("name", "sms", "gib", "key"), [
    ("NVIDIA H800", 132, 79.1, "h800"),
    ("NVIDIA H100 80GB HBM3", 132, 79.2, "h100-sxm"),
    ("NVIDIA H100 PCIe", 114, 79.1, "h100-pcie"),
    ("NVIDIA H100 NVL", 132, 93.0, "h100-nvl"),
    ("NVIDIA H20", 78, 95.0, "h20"),
    ("NVIDIA H200", 132, 139.8, "h200"),
    ("NVIDIA H200 NVL", 132, 139.8, "h200-nvl"),
    ("NVIDIA GH200 480GB", 132, 94.5, "gh200-96"),
    ("NVIDIA GH200 144G HBM3e", 132, 139.0, "gh200-144"),
    ("NVIDIA B200", 148, 178.4, "b200"),
    ("NVIDIA GB200", 152, 184.0, "gb200"),
    ("NVIDIA B300 SXM6 AC", 148, 268.0, "b300"),
    ("NVIDIA GB300", 152, 277.0, "gb300"),
    ("Tesla V100-SXM2-16GB", 80, 15.8, "v100-sxm2-16"),
    ("Tesla V100-PCIE-32GB", 80, 31.7, "v100-pcie-32"),
    ("NVIDIA A100-SXM4-80GB", 108, 79.1, "a100-sxm-80"),
    ("NVIDIA A100 80GB PCIe", 108, 79.1, "a100-pcie-80"),
    ("NVIDIA A10", 72, 22.0, "a10"),
    ("NVIDIA L4", 58, 22.0, "l4"),
    ("NVIDIA L40S", 142, 44.4, "l40s"),
    ("NVIDIA GeForce RTX 4090", 128, 23.6, "rtx-4090"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 94.9, "rtx-pro-6000"),
])
def test_a_device_is_found(name: str, sms: int, gib: float, key: str) -> None:
    found = find(DeviceInfo(name, sms, int(gib * GIB)))
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize(("name", "sms", "gib"), [
    ("NVIDIA H100 80GB HBM3", 114, 79.2),                 # the SMs of a PCIe board
    ("NVIDIA H100 PCIe", 132, 79.1),                      # the SMs of an SXM part
    ("NVIDIA H800", 132, 94.0),                           # the memory of another part
    ("NVIDIA H20", 132, 95.0),                            # the SMs of another part
    ("NVIDIA H20-3e", 78, 139.0),
    ("NVIDIA H800 PCIe", None, None),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 9.8),       # slices
    ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", None, None),
    ("NVIDIA A100-SXM4-40GB", 108, 79.1),
    ("NVIDIA A100-SXM4-40GB", 14, 4.8),
    ("NVIDIA GH200 480GB", None, None),                   # 96 or 144 GB: the name does not tell
    ("NVIDIA B200", 152, 178.4),
    ("NVIDIA GeForce RTX 4090 D", None, None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
    ("NVIDIA A10G", None, None),
    ("AMD Instinct MI300X", 304, 192.0),
    (None, 132, 79.2),
])
def test_a_near_miss_is_no_device(name: str | None, sms: int | None, gib: float | None) -> None:
    assert find(DeviceInfo(name, sms, None if gib is None else int(gib * GIB))) is None


def test_the_export_parts_have_less_of_what_was_cut() -> None:
    h100, h800, h20 = (by_key(key).limits for key in ("h100-sxm", "h800", "h20"))
    assert (h100.link_bytes_per_second, h800.link_bytes_per_second, h20.link_bytes_per_second) == (450e9, 200e9, 450e9)
    assert h800.flops_per_second("tensor", "bf16") == h100.flops_per_second("tensor", "bf16")
    assert h800.flops_per_second("vector", "fp64") is None
    assert h20.flops_per_second("tensor", "bf16") is None


# ---- bounds by hand

H100 = by_key("h100-sxm").limits


def gemm(m: int, n: int, k: int, form: str = "bf16", size: int = 2) -> Work:
    return Work.of(flops={("tensor", form): 2 * m * n * k}, bytes_read=size * (m * k + k * n),
                   bytes_written=size * m * n)


def least(work: Work, limits: Limits = H100, sms: int | None = None) -> Bound:
    found = bound(work, limits, sms=sms)
    assert found is not None
    return found


def test_a_large_gemm_is_bound_by_the_tensor_cores() -> None:
    # 2 x 8192^3 / (4096 x 132 x 1.98e9) s; memory: (256 + 128 MiB - 2 x 50 MiB) / 3.35 TB/s is a tenth of that
    found = least(gemm(8192, 8192, 8192))
    assert found.limiter == "tensor bf16"
    assert found.seconds == pytest.approx(1.0271e-3, rel=1e-4)
    assert found.terms["memory"] == pytest.approx(284 * 2**20 / 3352.4e9)


def test_a_copy_is_bound_by_memory() -> None:
    # 1 GiB read and written, L2 off each: 2 x (1024 - 50) MiB / 3352.4 GB/s
    found = least(Work.of(bytes_read=GIB, bytes_written=GIB))
    assert found.limiter == "memory"
    assert found.seconds == pytest.approx(609.3e-6, rel=1e-4)


def test_what_fits_into_the_l2_is_not_charged() -> None:
    assert least(Work.of(bytes_read=50 << 20, bytes_written=50 << 20)) == Bound(0.0, "nothing", {})
    assert "memory" not in least(gemm(128, 128, 128)).terms
    assert charged_bytes(Work.of(bytes_read=(50 << 20) + 7, bytes_written=1), H100) == 7


def test_the_l2_can_hold_inputs_at_the_start_and_results_at_the_end() -> None:
    """A cache played by hand: 4 lines, write-back, least recently used. A kernel that reads 4 lines which are there
    and writes 4 others touches no memory while it runs, though it moves twice the cache."""
    cache, traffic = ["a", "b", "c", "d"], 0
    for line in ("a", "b", "c", "d"):
        traffic += line not in cache
    for line in ("w", "x", "y", "z"):
        cache.pop(0)                                     # clean: dropped without traffic
        cache.append(line)                               # dirty: written back only after the kernel
    assert traffic == 0
    tiny = dataclasses.replace(H100, l2_bytes=4)
    assert charged_bytes(Work.of(bytes_read=4, bytes_written=4), tiny) == traffic


def test_an_all_reduce_in_the_switch_sends_its_data_once() -> None:
    found = least(Work.of(messages=(Message("all_reduce", 8, 450_000_000),)))
    assert found.limiter == "link"
    assert found.seconds == pytest.approx(1e-3)


@pytest.mark.parametrize(("collective", "group", "nbytes", "expected"), [
    ("all_reduce", 2, 800, 800), ("all_reduce", 8, 800, 800), ("all_reduce", 1, 800, 0),
    ("reduce_scatter", 8, 800, 700), ("all_gather", 8, 800, 700), ("all_to_all", 8, 800, 700),
    ("broadcast", 8, 800, 800), ("reduce", 8, 800, 800), ("send_recv", 2, 800, 800), ("barrier", 8, 0, 0),
])
def test_the_least_that_a_collective_moves(collective: str, group: int, nbytes: int, expected: float) -> None:
    assert link_bytes((Message(collective, group, nbytes),)) == pytest.approx(expected)


def test_links_run_in_both_directions_at_once() -> None:
    # reduce-scatter sends 7/8 and gets 1/8; all-gather the other way round: together 1 each way, not 14/8
    both = (Message("reduce_scatter", 8, 800), Message("all_gather", 8, 800))
    assert link_bytes(both) == pytest.approx(800)
    # one broadcast may be sent while another is received
    assert link_bytes((Message("broadcast", 8, 800),) * 2) == pytest.approx(800)
    assert link_bytes((Message("broadcast", 8, 800),) * 4) == pytest.approx(1600)


def test_fewer_sms_slow_arithmetic_only() -> None:
    work = gemm(8192, 8192, 8192)
    half = least(work, sms=66)
    assert half.terms["tensor bf16"] == pytest.approx(2 * least(work).terms["tensor bf16"])
    assert half.terms["memory"] == least(work).terms["memory"]
    assert least(work, sms=1_000) == least(work)
    with pytest.raises(ValueError, match="at least 1"):
        bound(work, H100, sms=0)


@pytest.mark.parametrize(("work", "limits"), [
    (gemm(64, 64, 64, "fp4"), H100),                                          # a format that it does not have
    (gemm(64, 64, 64), by_key("h20").limits),                                 # a clock that is not known
    (Work.of(messages=(Message("all_twist", 8, 1),)), H100),                  # a collective that is not known
    (Work.of(messages=(Message("all_reduce", 8, 1),)), dataclasses.replace(H100, link_bytes_per_second=None)),
    (Work.of(bytes_read=GIB), by_key("v100-sxm3-32").limits),                 # a memory rate that is not known
])
def test_what_is_not_known_has_no_bound(work: Work, limits: Limits) -> None:
    assert bound(work, limits) is None


def test_the_example_of_the_docstring_is_right() -> None:
    assert doctest.testmod(sublight.bound) == (0, 4)


# ---- properties

BOTH_WAYS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def works_of(*collectives: str) -> st.SearchStrategy[Work]:
    message = st.builds(Message, st.sampled_from(collectives), st.integers(1, 64), st.integers(0, 10**9))
    return st.builds(
        lambda flops, vector, reads, writes, messages: Work.of(
            flops={("tensor", "bf16"): flops, ("vector", "fp32"): vector}, bytes_read=reads, bytes_written=writes,
            messages=tuple(messages)),
        st.integers(0, 10**15), st.integers(0, 10**13), st.integers(0, 10**10), st.integers(0, 10**10),
        st.lists(message, max_size=4),
    )


works = works_of(*BOTH_WAYS, "broadcast", "reduce", "send_recv")
NO_L2 = dataclasses.replace(H100, l2_bytes=0)
L2_SECONDS = 2 * H100.l2_bytes / 3352.4e9


@given(works, works)
def test_both_at_once_never_take_longer_than_one_after_the_other(a: Work, b: Work) -> None:
    apart = least(a, NO_L2).seconds + least(b, NO_L2).seconds
    assert least(a + b, NO_L2).seconds <= apart * (1 + 1e-12)
    # with an L2, each alone may find its data there: once more than the sum
    assert least(a + b).seconds <= (least(a).seconds + least(b).seconds + L2_SECONDS) * (1 + 1e-12)


@given(works, works)
def test_more_work_never_takes_less(a: Work, b: Work) -> None:
    assert least(a + b).seconds >= max(least(a).seconds, least(b).seconds) * (1 - 1e-12)


@given(works, st.integers(1, 132), st.integers(1, 132))
def test_more_sms_never_take_longer(work: Work, some: int, others: int) -> None:
    few, many = sorted((some, others))
    assert least(work, sms=many).seconds <= least(work, sms=few).seconds


# Not those that go one way: of two broadcasts, one may be sent while the other is received.
@given(works_of(*BOTH_WAYS), st.integers(1, 100))
def test_beyond_the_l2_the_bound_grows_with_the_work(work: Work, times: int) -> None:
    assert least(times * work, NO_L2).seconds == pytest.approx(times * least(work, NO_L2).seconds)
    assert least(times * work).seconds >= times * least(work).seconds * (1 - 1e-9)
    if work.bytes_read >= H100.l2_bytes and work.bytes_written >= H100.l2_bytes:
        more, once = (least(n * work).terms["memory"] for n in (times + 1, times))
        assert more - once == pytest.approx(work.bytes_total / 3352.4e9, rel=1e-6)


# ---- calibrate


@pytest.fixture(scope="module")
def measured() -> calibrate.Calibration:
    return calibrate.calibrate(seconds=0.01, array_bytes=1 << 20, matrix=64)


def test_a_measured_machine_is_read_back(measured: calibrate.Calibration, tmp_path: Path) -> None:
    path = tmp_path / "cpu.toml"
    path.write_text(calibrate.toml(measured), "utf-8")
    device = named(str(path))
    assert (device.key, device.title, device.sms) == ("cpu", measured.cpu.title, measured.cpu.cores)
    assert device.capability is None
    assert device.memory_bytes == pytest.approx(measured.cpu.memory_bytes, rel=1e-3)
    best = max(rate.best for rate in measured.memory)
    assert device.limits.memory_bytes_per_second == pytest.approx(best, rel=1e-5)
    assert {"fp32", "fp64"} <= set(measured.matrix)
    for form, rate in measured.matrix.items():
        assert device.limits.flops_per_second("tensor", form) == pytest.approx(rate.best, rel=1e-5)
    assert device.sources["memory"].startswith("measured: ")
    assert "best of " in device.sources["tensor"]
    assert device.limits.link_bytes_per_second is None
    assert least(Work.of(bytes_read=10 * GIB), device.limits).limiter == "memory"


def test_sampling_ends_when_it_is_stable_or_the_time_is_over() -> None:
    def rate(durations: list[float]) -> calibrate.Rate:
        now = [0.0]
        left = iter([1.0, *durations])                   # the first is the run that warms up

        def run() -> None:
            now[0] += next(left)

        return calibrate.sampled("x", "B/s", 100.0, run, seconds=50.0, clock=lambda: now[0])

    steady = rate([1.0] * 10)
    assert (len(steady.samples), steady.best, steady.spread) == (5, 100.0, 0.0)
    wild = rate([4.0, 1.0, 4.0] * 20)
    assert wild.best == 100.0
    assert wild.spread == pytest.approx(0.75)
    assert len(wild.samples) == 17                       # 16 take 49 s of the 50


def test_noise_is_refused(measured: calibrate.Calibration) -> None:
    quiet = tuple(calibrate.Rate(r.name, r.unit, (90.0, 100.0, 95.0)) for r in measured.memory)
    calm = dataclasses.replace(measured, memory=quiet, matrix={"fp32": quiet[0]})
    calibrate.check_noise(calm)
    loud = dataclasses.replace(calm, memory=(calibrate.Rate("memory, copy", "B/s", (100.0, 60.0, 50.0)), *quiet))
    with pytest.raises(InputError, match="40% below the best, more than 30%: other load on this machine"):
        calibrate.check_noise(loud)
    calibrate.check_noise(loud, 0.5)


def test_arrays_are_well_beyond_the_caches() -> None:
    cpu = calibrate.Cpu("x", 8, 32 << 20, 64 << 30, 3000.0)
    assert calibrate.fitting_array(cpu) == 128 << 20
    assert calibrate.fitting_array(dataclasses.replace(cpu, cache_bytes=None)) == 64 << 20
    assert calibrate.fitting_array(dataclasses.replace(cpu, memory_bytes=GIB, cache_bytes=GIB)) == GIB // 8


def test_the_command_writes_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch, measured: calibrate.Calibration) -> None:
    monkeypatch.setattr(calibrate, "calibrate", lambda **_: measured)
    target = tmp_path / "cpu.toml"
    assert main(["calibrate", "--max-spread", "100", "-o", str(target)]) == 0
    assert load(target).sms == measured.cpu.cores
    assert main(["calibrate", "--max-spread", "100%"]) == 0
    assert capsys.readouterr().out == target.read_text("utf-8")
    assert main(["calibrate", "-o", str(tmp_path / "cpu.txt")]) == 2
    assert "ends in .toml" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["calibrate", "--seconds", "0"])


GOOD = "[box]\ntitle = 'a box'\nsms = 4\nmemory_gib = 8\nl2_mib = 4\n[box.sources]\nsms = 'stated: the box'\n"


@pytest.mark.parametrize(("text", "said"), [
    ("sms = ", "is not TOML"),
    ("", "got 0 entries"),
    (GOOD + "[crate]\n", "got 2 entries"),
    ("box = 4\n", "expected one table"),
    (GOOD.replace("sms = 4\n", ""), "lacks sms"),
    (GOOD.replace("sms = 4", "sms = 4\nspeed = 9"), "has unknown speed"),
    (GOOD.replace("sms = 4", "sms = -4"), "sms is not of the form"),
    (GOOD.replace("sms = 4", "sms = true"), "sms is not of the form"),
    (GOOD.replace("sms = 4", "sms = 4\ntensor = { bf16 = 'fast' }"), "tensor is not of the form"),
    (GOOD.replace("memory_gib = 8", "memory_gib = nan"), "memory_gib is not of the form"),
    (GOOD.replace("a box", "[red]a box"), "title is not of the form"),
    (GOOD.replace("[box", "['<b>'"), "the name of the table is not of the form"),
])
def test_a_device_file_that_is_none_says_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=said.replace("[", r"\[")):
        named(str(path))


def test_a_device_file_may_say_little(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text(GOOD, "utf-8")
    device = named(str(path))
    assert (device.key, device.sms, device.limits.memory_bytes_per_second) == ("box", 4, None)
    with pytest.raises(InputError, match="cannot read the device file gone"):
        named(str(tmp_path / "gone.toml"))
    assert named("H100-SXM").key == "h100-sxm"


# ---- the page


def test_the_tables_of_the_page_are_those_of_the_catalog() -> None:
    spec = importlib.util.spec_from_file_location("make_devices", ROOT / "docs/make_devices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs/devices.md").read_text("utf-8")
    assert module.made(page) == page, "run python docs/make_devices.py"
    assert page.count("| `h100-sxm` |") == 2
    assert module.made(page.replace("1,070.5", "1,979")) == page
