"""A gated feed-forward layer of experts, with the routing given."""

IMPLEMENTATIONS: tuple[str, ...] = ("torch_forms", "cpu")
