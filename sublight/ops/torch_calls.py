"""This file knows which rule each of PyTorch's operators (aten::) follows. Positions of arguments are those of
native_functions.yaml."""

from __future__ import annotations

from sublight.ops import torch_elements as e
from sublight.ops import torch_products as p
from sublight.ops import torch_reductions as r
from sublight.ops.answer import Rule

UNARY = (
    "abs", "neg", "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
    "tan", "tanh", "sigmoid", "erf", "erfc", "square", "silu", "gelu", "relu", "relu6", "hardtanh", "hardswish",
    "softplus", "elu", "leaky_relu", "mish", "clamp", "clamp_min", "clamp_max", "pow", "floor", "ceil", "round",
    "trunc", "sign", "threshold", "logit", "nan_to_num",
)
BINARY = (
    "add", "sub", "mul", "div", "true_divide", "rsub", "atan2", "fmod", "remainder", "hypot", "maximum", "minimum",
    "floor_divide",
)
LOGICAL = (
    "bitwise_and", "bitwise_or", "bitwise_xor",
)
COMPARING = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "isclose",
)
TESTING = (
    "logical_not", "isnan", "isinf", "isfinite", "signbit",
)
BACKWARD = (
    "threshold_backward", "silu_backward", "gelu_backward", "tanh_backward", "sigmoid_backward",
    "hardtanh_backward", "leaky_relu_backward", "elu_backward",
)
FILLING = (
    "fill", "zero", "random", "uniform", "normal", "exponential", "bernoulli", "cauchy", "log_normal", "geometric",
)
UNCOUNTED = frozenset({"abs", "neg", "relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "floor", "ceil",
                       "round", "trunc", "sign", "threshold", "nan_to_num", "maximum", "minimum", "threshold_backward",
                       "hardtanh_backward"})                            # sign bits, comparisons and selections
VIEWS = (
    "view", "_unsafe_view", "reshape", "slice", "select", "as_strided", "expand", "expand_as", "permute",
    "transpose", "t", "squeeze", "unsqueeze", "narrow", "split", "split_with_sizes", "chunk", "unbind", "detach",
    "alias", "view_as", "flatten", "unflatten", "movedim", "diagonal", "_reshape_alias", "numpy_T", "real", "imag",
    "empty", "empty_like", "empty_strided", "new_empty", "resize_", "set_", "detach_", "_local_scalar_dense",
    "item", "is_nonzero", "result_type", "lift_fresh", "unfold", "swapaxes", "view_dtype",
)


def _table() -> dict[str, Rule]:
    rules: dict[str, Rule] = {
        "mm": p.mm, "bmm": p.mm, "matmul": p.mm, "mv": p.mm, "dot": p.mm, "addmm": p.addmm, "baddbmm": p.addmm,
        "addmv": p.addmm, "linear": p.linear, "_scaled_mm": p.scaled_mm, "_int_mm": p.int_mm, "einsum": p.einsum,
        "addmm_": p.addmm, "baddbmm_": p.addmm, "_addmm_activation": p.addmm,
        "convolution": p.convolve, "_convolution": p.convolve, "cudnn_convolution": p.cudnn_convolve,
        "convolution_backward": p.convolve_back,
        "scaled_dot_product_attention": p.attend, "_scaled_dot_product_flash_attention": p.attend_flash,
        "_scaled_dot_product_efficient_attention": p.attend_efficient,
        "_scaled_dot_product_cudnn_attention": p.attend_efficient,
        "_flash_attention_forward": p.flash, "_efficient_attention_forward": p.efficient,
        "_flash_attention_backward": p.flash_back(2, 11, 6),
        "_scaled_dot_product_flash_attention_backward": p.flash_back(1, 11, None),
        "_scaled_dot_product_efficient_attention_backward": p.flash_back(1, 11, None),
        "_scaled_dot_product_cudnn_attention_backward": p.flash_back(1, 14, None),
        "copy_": e.copy, "clone": e.clone, "contiguous": e.clone, "_to_copy": e.cast, "masked_fill_": e.masked_fill,
        "cat": e.cat, "where": e.where, "arange": e.arange, "_cat": e.cat,
        "embedding": e.embedding, "index_select": e.index_select, "gather": e.gather,
        "embedding_dense_backward": e.embedding_back,
        "scatter_": e.scatter_in_place, "scatter_add_": e.scatter_in_place,
        "native_layer_norm": r.norm("mean", weight_at=2, bias_at=3),
        "layer_norm": r.norm("mean", weight_at=2, bias_at=3),
        "rms_norm": r.norm("rms", weight_at=2, bias_at=None),
        "_fused_rms_norm": r.norm("rms", weight_at=2, bias_at=None),
        "native_batch_norm": r.norm("mean", weight_at=1, bias_at=2, channels_at=1),
        "cudnn_batch_norm": r.norm("mean", weight_at=1, bias_at=2, channels_at=1),
        "native_group_norm": r.norm("mean", weight_at=1, bias_at=2, channels_at=1),
        # grad_out, input, normalized_shape, mean, rstd, weight, bias
        "native_layer_norm_backward": r.norm_back("mean", x_at=1, weight_at=5, bias_at=6),
        # grad_out, input, normalized_shape, rstd, weight
        "_fused_rms_norm_backward": r.norm_back("rms", x_at=1, weight_at=4, bias_at=None),
        # grad_out, input, weight, …
        "native_batch_norm_backward": r.norm_back("mean", x_at=1, weight_at=2, bias_at=None),
        # input, grad_output, weight, …
        "cudnn_batch_norm_backward": r.norm_back("mean", x_at=0, weight_at=2, bias_at=None),
        "sum": r.reduce(dtype_at=3), "mean": r.reduce(dtype_at=3), "amax": r.reduce(operations=0),
        "amin": r.reduce(operations=0), "max": r.reduce(one=True, operations=0, also="int64"),
        "min": r.reduce(one=True, operations=0, also="int64"), "argmax": r.reduce(one=True, out="int64", operations=0),
        "argmin": r.reduce(one=True, out="int64", operations=0), "any": r.reduce(one=True, out="bool", operations=0),
        "all": r.reduce(one=True, out="bool", operations=0), "prod": r.reduce(over_at=None),
        "norm": r.reduce(over_at=2),
        "linalg_vector_norm": r.reduce(over_at=2), "var": r.reduce(), "std": r.reduce(), "logsumexp": r.reduce(),
        "count_nonzero": r.reduce(out="int64", operations=0), "nansum": r.reduce(dtype_at=3),
        "cumsum": r.scan, "cumprod": r.scan, "sort": r.sort, "argsort": r.sort, "topk": r.topk,
        "_softmax": r.softmax, "_log_softmax": r.softmax, "_softmax_backward_data": r.softmax_back,
        "_log_softmax_backward_data": r.softmax_back, "cross_entropy_loss": r.cross_entropy,
        "nll_loss_forward": r.nll(backward=False), "nll_loss_backward": r.nll(backward=True),
        "addcmul": e.mapped(3, operations=2), "addcmul_": e.mapped(3, operations=2, in_place=True),
        "addcdiv": e.mapped(3, operations=2), "addcdiv_": e.mapped(3, operations=2, in_place=True),
        "lerp": e.mapped(2, operations=2), "lerp_": e.mapped(2, operations=2, in_place=True),
        "_fused_adam_": e.fused_optimizer(3), "_fused_adamw_": e.fused_optimizer(3),
        "_fused_sgd_": e.fused_optimizer(1),
        "_fused_adagrad_": e.fused_optimizer(1), "bernoulli": e.mapped(1, operations=0),
        "isin": e.mapped(1, out="bool"),
    }
    for name in UNARY:
        count = 0 if name in UNCOUNTED else 1
        rules[name], rules[f"{name}_"] = e.mapped(1, operations=count), e.mapped(1, operations=count, in_place=True)
        rules[f"_foreach_{name}"] = e.foreach(1, in_place=False, operations=count)
        rules[f"_foreach_{name}_"] = e.foreach(1, in_place=True, operations=count)
    for name in BINARY:
        count = 0 if name in UNCOUNTED else 1
        rules[name], rules[f"{name}_"] = e.mapped(2, operations=count), e.mapped(2, operations=count, in_place=True)
        rules[f"_foreach_{name}"] = e.foreach(2, in_place=False, operations=count)
        rules[f"_foreach_{name}_"] = e.foreach(2, in_place=True, operations=count)
    for name in ("addcmul", "addcdiv", "lerp"):
        lists = 2 if name == "lerp" else 3
        rules[f"_foreach_{name}"] = e.foreach(lists, in_place=False, operations=2)
        rules[f"_foreach_{name}_"] = e.foreach(lists, in_place=True, operations=2)
    for name in LOGICAL:
        rules[name], rules[f"{name}_"] = e.mapped(2, operations=0), e.mapped(2, operations=0, in_place=True)
    for name in COMPARING:
        rules[name] = e.mapped(2, operations=0, out="bool")
        rules[f"{name}_"] = e.mapped(2, operations=0, in_place=True)
    for name in TESTING:
        rules[name] = e.mapped(1, operations=0, out="bool")
    for name in BACKWARD:
        rules[name] = e.mapped(2, operations=0 if name in UNCOUNTED else 1)
    for name in FILLING:
        rules[f"{name}_"] = e.fill
    for name in ("bitwise_not",):
        rules[name], rules[f"{name}_"] = e.mapped(1, operations=0), e.mapped(1, operations=0, in_place=True)
    for name in VIEWS:
        rules[name] = lambda a, c: ()
    return {f"aten::{name}": rule for name, rule in rules.items()}


RULES = _table()
