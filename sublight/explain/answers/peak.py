"""This file knows about utilisation: reported FLOP/s against the right dense peak, sparse peaks, peaks of other
devices, and shares of time that are no measure of work."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from sublight.device import Device, catalog
from sublight.explain.answers.answer import Judged, Point
from sublight.observe.pasted import Pasted
from sublight.plan import Training

NEAR = 0.012
LIKELY = ("h100-sxm", "a100-sxm-80", "h200", "b200", "h100-pcie", "a100-pcie-80", "v100-sxm2-32", "l40s", "rtx-4090",
          "h800")

COPIED = ("a100-sxm-80", "h100-sxm", "b200")     # peaks that scripts hold as a constant, most usual first: judgement


def points(pasted: Pasted, cases: tuple[Judged, ...]) -> Iterator[Point]:
    """Of the text as a whole: what it reports, and what of."""
    devices = [found.case.where.device for found in cases if found.case.where is not None]
    devices += [device for gpu in pasted.gpus if gpu.key and (device := _by_key(gpu.key)) is not None]
    device = devices[0] if devices else None
    rates = _rates(pasted, cases)
    peaks = [figure.value for figure in pasted.figures if figure.what == "quotient below"]
    shares = [figure.value for figure in pasted.figures if figure.what == "MFU"]
    titan = [log.facts["peak_flops"] for log in pasted.logs if "peak_flops" in log.facts]
    if device is not None:
        yield from _against(device, rates, peaks, shares, titan, _format(cases))
    elif rates or shares:
        yield Point("peak", "MFU needs the GPU's dense peak: the text names no GPU that the catalog has",
                    action="say --gpus, as 8xH100")
    yield from _time(pasted)


def _by_key(key: str) -> Device | None:
    return next((device for device in catalog() if device.key == key), None)


def _format(cases: tuple[Judged, ...]) -> str:
    plan = next((found.case.plan for found in cases if isinstance(found.case.plan, Training)), None)
    return "fp8" if plan is not None and "fp8" in plan.precision else "bf16"


def _rates(pasted: Pasted, cases: tuple[Judged, ...]) -> list[tuple[float, str]]:
    """FLOP/s of a GPU that were reached, and who says it."""
    out = []
    for log in pasted.logs:
        held = log.values("flops_per_second")
        if held and log.engine in ("megatron", "torchtitan"):
            out.append((median(held[1:] or held), f"{log.engine}'s log"))
    quotients = [figure.value for figure in pasted.figures if figure.what == "quotient above"]
    peaks = {figure.value for figure in pasted.figures if figure.what == "quotient below"}
    said = [figure.value for figure in pasted.figures if figure.what == "TFLOP/s"]
    out += [(value, "the text") for value in dict.fromkeys([*quotients, *said])
            if value not in peaks and not any(abs(value / known - 1) < NEAR for known in _known_peaks(LIKELY))]
    del cases
    return out[:3]


def _known_peaks(keys: tuple[str, ...]) -> dict[float, str]:
    """Peaks that people divide by: dense and sparse, of common devices, FLOP/s -> what it is."""
    out: dict[float, str] = {}
    for key in keys:
        device = _by_key(key)
        for form in ("bf16", "fp16", "fp8") if device else ():
            dense = device.stated_flops_per_second("tensor", form) if device else None
            if device and dense:
                out.setdefault(dense, f"the dense {form} peak of {device.title}")
                if device.capability and device.capability >= (8, 0):
                    out.setdefault(2 * dense, f"the {form} peak of {device.title} with 2:4 sparsity, which no dense "
                                   "model reaches")
    return out


def what_is(peak: float, own: Device | None = None) -> str | None:
    """Which peak a number is, the device's own first.

    >>> what_is(1979e12), what_is(312e12)
    ('the bf16 peak of NVIDIA H100 SXM5 80 GB with 2:4 sparsity, which no dense model reaches', \
'the dense bf16 peak of NVIDIA A100 SXM4 80 GB')
    """
    keys = (*((own.key,) if own else ()), *LIKELY)
    near = [(abs(peak / known - 1), words) for known, words in _known_peaks(keys).items()]
    close = [words for off, words in near if off < NEAR]
    return close[0] if close else None


def _against(device: Device, rates: list[tuple[float, str]], peaks: list[float], shares: list[float],
             titan: list[float], form: str) -> Iterator[Point]:
    dense = device.stated_flops_per_second("tensor", form)
    if dense is None:
        return
    fast = device.limits.flops_per_second("tensor", form) or dense
    base = (f"dense {form} peak of {device.title}: {dense / 1e12:,.0f} TFLOP/s stated"
            + (f", {fast / 1e12:,.0f} at the maximum clock" if abs(fast / dense - 1) > 0.01 else ""),)
    for rate, who in rates:
        yield Point("peak", f"MFU: {rate / 1e12:,.0f} TFLOP/s a GPU ({who}) are {rate / dense:.1%} of the dense {form} "
                    "peak", base)
    for peak in dict.fromkeys([*peaks, *titan]):
        words = what_is(peak, device)
        if words is None or abs(peak / dense - 1) < NEAR:
            continue
        yield Point("peak", f"{peak / 1e12:,.0f} TFLOP/s is {words}: the right divisor here is {dense / 1e12:,.0f}, so "
                    f"that an MFU taken of it is {peak / dense:.2g}x the printed one", base,
                    f"divide by {dense / 1e12:,.0f} TFLOP/s")
    for share in shares:
        yield from _share(share, device, dense, base)


def _share(share: float, device: Device, dense: float, base: tuple[str, ...]) -> Iterator[Point]:
    """An MFU above 100 % was divided by another device's peak."""
    if share <= 1:
        return
    others = [(words, share * other) for key in COPIED for other, words in _known_peaks((key,)).items()
              if other < dense and share * other <= dense and words.startswith("the dense bf16")]
    if not others:
        return
    words, rate = others[0]
    yield Point("peak", f"an MFU of {share:.0%} cannot be: it was divided by another peak than that of {device.title}",
                (*base, f"if it was {words}, {rate / 1e12:,.0f} TFLOP/s were reached: {rate / dense:.1%} here"),
                f"divide by {dense / 1e12:,.0f} TFLOP/s; the constant in the script is of another GPU")


def _time(pasted: Pasted) -> Iterator[Point]:
    held = [figure.value for figure in pasted.figures if figure.what == "utilisation" and figure.value <= 1]
    if held:
        yield Point("peak", f"a GPU utilisation of {held[0]:.0%} is the share of time in which some kernel ran, no "
                    "measure of speed: compare tokens a second with what is expected",
                    action="read SM_ACTIVE, TENSOR_ACTIVE and DRAM_ACTIVE of DCGM for shares of the device")
