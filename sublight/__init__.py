"""Where a large language model's run spends its time, measured against the speed of light.

    >>> import sublight
    >>> from sublight.explain import explain
    >>> trace = sublight.read("trace.json.gz")             # doctest: +SKIP
    >>> explain(trace).devices[0].view.budget              # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Budget": "sublight.budget", "Part": "sublight.budget", "Communication": "sublight.budget",
    "Device": "sublight.device", "Finding": "sublight.finding", "Trace": "sublight.trace",
    "InputError": "sublight.errors",
    "record": "sublight.observe.recording", "read": "sublight.observe.read", "read_all": "sublight.observe.read",
}

if TYPE_CHECKING:
    from sublight.budget import Budget, Communication, Part
    from sublight.device import Device
    from sublight.errors import InputError
    from sublight.finding import Finding
    from sublight.observe.read import read, read_all
    from sublight.observe.recording import record
    from sublight.trace import Trace

__all__ = ["Budget", "Communication", "Device", "Finding", "InputError", "Part", "Trace", "read", "read_all",
           "record"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: `import sublight` loads neither numpy nor anything else."""
    if name not in _WHERE:
        raise AttributeError(f"module 'sublight' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
