"""Matrix products: bf16, fp16, fp8 with one scale or one for 128 x 128, int8 with scales of rows."""

IMPLEMENTATIONS: tuple[str, ...] = ("torch_forms", "cpu", "triton_form")
