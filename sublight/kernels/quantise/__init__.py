"""From 16-bit numbers to fp8 or int8, with dynamic scales of a tensor, rows or groups of 128."""

IMPLEMENTATIONS: tuple[str, ...] = ("torch_forms",)
