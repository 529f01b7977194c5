"""Matrix products of rows with the matrix of their group: bf16 and block-scaled fp8."""

IMPLEMENTATIONS: tuple[str, ...] = ("torch_forms",)
