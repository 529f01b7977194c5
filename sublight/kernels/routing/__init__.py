"""Which experts a token goes to: softmax over all of them, then the top k."""

IMPLEMENTATIONS = ("torch_forms", "triton_form")
