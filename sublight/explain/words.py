"""This file knows about saying times, shares and kernels in claims and evidence, the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import KernelRow, View
from sublight.ops.written import PREFIX


def ms(ns: float) -> str:
    """Nanoseconds in the unit that reads best: 1.234 ms, 12.3 µs, 456 ns."""
    if abs(ns) >= 1e9:
        return f"{ns / 1e9:,.3f} s"
    if abs(ns) >= 1e5:
        return f"{ns / 1e6:,.3f} ms"
    if abs(ns) >= 1e3:
        return f"{ns / 1e3:.1f} µs"
    return f"{ns:.0f} ns"


def percent(share: float) -> str:
    """A share with one decimal; small ones with two. Nothing that is there reads as zero, nothing short of all as
    100 %."""
    if share == 0:
        return "0 %"
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share:.2%}".replace("%", " %") if 0 < share < 0.01 else f"{share:.1%}".replace("%", " %")


def of_window(view: View, ns: int) -> str:
    """A time and its share of the window."""
    return f"{ms(ns)} ({percent(view.share(ns))} of the window)"


def top(rows: Iterable[KernelRow], count: int = 3) -> tuple[str, ...]:
    """The longest kernels, one line each."""
    return tuple(f"{cut(row.short, 60)}: {ms(row.ns)} in {number(row.count, 'run')}" for row in list(rows)[:count])


def cut(text: str, width: int) -> str:
    """Text that fits, with an ellipsis where it was cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def number(count: int, what: str) -> str:
    """A count with its noun: 1 run, 2,300 runs, 4 copies."""
    if count == 1:
        return f"1 {what}"
    return f"{count:,} {what[:-1] + 'ies' if what.endswith('y') else what + ('es' if what.endswith('ch') else 's')}"


def units(view: View) -> str:
    """What the device's processors are called."""
    return "CUs" if view.amd else "SMs"


def graphs(view: View) -> str:
    """How to replay kernels without launching each, for the kind of run that this is."""
    kind = "HIP graphs" if view.amd else "CUDA graphs"
    if view.engine == "vLLM":
        return f"{kind} (run without --enforce-eager)"
    if view.engine == "SGLang":
        return f"{kind} (run without --disable-cuda-graph)"
    return f'{kind} (torch.compile mode="reduce-overhead", torch.cuda.graph)'


def recorded_extras(view: View) -> list[str]:
    """What was recorded that slows the host down: stacks, shapes. A predicted trace has ops without that."""
    recording, ops = view.trace.recording, view.trace.ops
    if len(ops.name) and view.trace.names[int(ops.name[0])].startswith(PREFIX):
        return []
    return [name for name, on in (("stacks", recording.stacks), ("shapes", recording.shapes)) if on]


def recording_caveats(view: View) -> tuple[str, ...]:
    """Recording shapes and stacks slows the host down, and so inflates every time that the host causes."""
    what = recorded_extras(view)
    if not what:
        return ()
    return (f"recorded with {' and '.join(what)}, which slows the host: the real cost is smaller. "
            "Record again without them to size it",)
