"""Attention of one new token a sequence over a KV cache in pages."""

IMPLEMENTATIONS = ("torch_forms", "cpu")
