"""Operators on concrete sizes and number formats, one file per family; each must say its own work."""

from sublight.ops.attention import Attention
from sublight.ops.collective import Communication
from sublight.ops.convolution import Convolution
from sublight.ops.elementwise import CacheWrite, Elementwise, Gather, Rotary
from sublight.ops.fused import Gated, RotaryWrite
from sublight.ops.gemm import Gemm, GroupedGemm
from sublight.ops.index import IndexScores
from sublight.ops.moe import Experts, Permute, Routing
from sublight.ops.normalisation import Normalisation
from sublight.ops.op import Op, Operand
from sublight.ops.optimizer import OptimizerStep
from sublight.ops.recurrent import Recurrence, ShortConvolution
from sublight.ops.reduction import CrossEntropy, NegativeLogLikelihood, Reduction, Softmax
from sublight.ops.scaled_gemm import ScaledGemm

OPS: tuple[type[Op], ...] = (
    Gemm, GroupedGemm, ScaledGemm, Convolution,
    Attention, IndexScores,
    Recurrence, ShortConvolution,
    Normalisation,
    Elementwise, Gather, Rotary, CacheWrite, Gated, RotaryWrite,
    Reduction, Softmax, CrossEntropy, NegativeLogLikelihood,
    Routing, Permute, Experts,
    OptimizerStep,
    Communication,
)

__all__ = [
    "OPS", "Attention", "CacheWrite", "Communication", "Convolution", "CrossEntropy", "Elementwise", "Experts",
    "Gated", "Gather", "Gemm", "GroupedGemm", "IndexScores", "NegativeLogLikelihood", "Normalisation", "Op", "Operand",
    "OptimizerStep", "Permute", "Recurrence", "Reduction", "Rotary", "RotaryWrite", "Routing", "ScaledGemm",
    "ShortConvolution", "Softmax",
]
