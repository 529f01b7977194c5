"""Latent attention (MLA, absorbed) of one new token a sequence: values are the first `rank` columns of the keys."""

IMPLEMENTATIONS = ("torch_forms",)
