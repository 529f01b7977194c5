"""Make the tables of docs/devices.md from the catalog.

    python docs/make_devices.py
"""

from __future__ import annotations

from pathlib import Path

from sublight.device import Device, catalog

PAGE = Path(__file__).parent / "devices.md"
BEGIN, END = "<!-- {}: made by docs/make_devices.py -->", "<!-- end -->"
UNKNOWN = "–"


def number(value: float | None, scale: float, digits: int = 0) -> str:
    """A value in units of `scale`, without needless zeros."""
    if value is None:
        return UNKNOWN
    text = f"{value / scale:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def peak(device: Device, unit: str, form: str) -> str:
    """Dense TFLOP/s at the maximum clock."""
    return number(device.limits.flops_per_second(unit, form), 1e12, 1)


def sizes() -> str:
    """What identifies each device, and its rates that are not arithmetic."""
    rows = ["| key | device | SMs | memory, GiB | clock, MHz | memory, GB/s | L2, MiB | link, GB/s |",
            "|:--|:--|--:|--:|--:|--:|--:|--:|"]
    rows += [f"| `{d.key}` | {d.title} | {d.sms} | {number(d.memory_bytes, 2**30)} | "
             f"{number(d.limits.max_clock_hz, 1e6)} | {number(d.limits.memory_bytes_per_second, 1e9, 1)} | "
             f"{number(d.limits.l2_bytes, 2**20, 1)} | {number(d.limits.link_bytes_per_second, 1e9)} |"
             for d in catalog()]
    return "\n".join(rows)


def peaks() -> str:
    """Dense peaks at the maximum clock."""
    tensor, vector = ("fp64", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"), ("fp64", "fp32", "fp16")
    rows = ["| key | " + " | ".join((*tensor, *(f"vector {form}" for form in vector))) + " |",
            "|:--|" + "--:|" * (len(tensor) + len(vector))]
    rows += [f"| `{d.key}` | " + " | ".join([*(peak(d, "tensor", f) for f in tensor),
                                             *(peak(d, "vector", f) for f in vector)]) + " |" for d in catalog()]
    return "\n".join(rows)


def made(page: str) -> str:
    """The page with its tables made anew."""
    for name, text in (("sizes", sizes()), ("peaks", peaks())):
        before, _, rest = page.partition(BEGIN.format(name))
        page = f"{before}{BEGIN.format(name)}\n\n{text}\n\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text("utf-8")), "utf-8")
