"""The room of kernels: what an operator must return and within what error, who can compute it, which of them is best."""
