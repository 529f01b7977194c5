"""From fp8 or int8 with scales back to 16-bit numbers."""

IMPLEMENTATIONS: tuple[str, ...] = ("torch_forms",)
