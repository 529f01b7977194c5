"""Cross entropy of logits and the right class, row by row."""

IMPLEMENTATIONS = ("torch_forms", "cpu", "triton_form")
