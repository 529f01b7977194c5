"""Operators on concrete sizes and number formats, one file per family; each must say its own work."""

from sublight.ops.attention import Attention
from sublight.ops.collective import Communication
from sublight.ops.convolution import Convolution
from sublight.ops.elementwise import CacheWrite, Elementwise, Gather, Rotary
from sublight.ops.gemm import Gemm, GroupedGemm
from sublight.ops.moe import Experts, Permute, Routing
from sublight.ops.normalisation import Normalisation
from sublight.ops.op import Op, Operand
from sublight.ops.optimizer import OptimizerStep
from sublight.ops.reduction import CrossEntropy, NegativeLogLikelihood, Reduction, Softmax

OPS: tuple[type[Op], ...] = (
    Gemm, GroupedGemm, Convolution,
    Attention,
    Normalisation,
    Elementwise, Gather, Rotary, CacheWrite,
    Reduction, Softmax, CrossEntropy, NegativeLogLikelihood,
    Routing, Permute, Experts,
    OptimizerStep,
    Communication,
)

__all__ = [
    "OPS", "Attention", "CacheWrite", "Communication", "Convolution", "CrossEntropy", "Elementwise", "Experts",
    "Gather", "Gemm", "GroupedGemm", "NegativeLogLikelihood", "Normalisation", "Op", "Operand", "OptimizerStep",
    "Permute", "Reduction", "Rotary", "Routing", "Softmax",
]
