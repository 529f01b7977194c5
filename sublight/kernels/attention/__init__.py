"""Attention of a whole sequence: softmax(Q·Kᵀ/√dim)·V, causal or not, with a window, with grouped queries."""

IMPLEMENTATIONS = ("torch_forms", "triton_form")
