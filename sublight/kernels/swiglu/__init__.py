"""The gate of a gated feed-forward layer: silu(gate)·up, with a quantised output."""

IMPLEMENTATIONS = ("torch_forms", "cpu", "triton_form")
