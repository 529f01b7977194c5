"""RMSNorm and LayerNorm, with a residual and with a quantised output."""

IMPLEMENTATIONS = ("torch_forms", "cpu", "triton_form")
