"""Rotary embedding of queries and keys, and the write of keys and values to a KV cache in pages."""

IMPLEMENTATIONS = ("torch_forms", "triton_form")
