"""The room of kernels: what an operator must return and within what error, who computes it, which of them is best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sublight.kernels.swap import apply, decode_attention

__all__ = ["apply", "decode_attention"]


def __getattr__(name: str) -> Any:
    """`apply` and `decode_attention` need torch, which is imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import util

    from sublight.errors import InputError

    if util.find_spec("torch") is None:
        raise InputError(f"sublight.kernels.{name} works on torch's modules, and torch is not installed: "
                         "pip install 'sublight[torch]'")
    from sublight.kernels import swap

    return getattr(swap, name)
