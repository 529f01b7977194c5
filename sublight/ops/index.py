"""This file knows about indexers: small heads that score every cached key, so that attention reads only the best."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, matrix_unit, nbytes
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class IndexScores(Op):
    """Scores of `pairs` (query, key) pairs and the choice of `chosen` keys a query.

    2·heads·d operations a pair on matrix hardware, and a weighted sum over heads, 2·heads vector operations a pair.
    Scores may stay on the chip: written are the indices of what was chosen.
    Source: DeepSeek-V3.2-Exp report, equation 1 (ReLU of q·k, weighted by head); DeepGEMM, fp8_mqa_logits.
    """

    queries: int
    keys: int                            # distinct ones, over all sequences
    pairs: int                           # unmasked (query, key) pairs
    heads: int
    d: int
    chosen: int                          # keys (or blocks of keys) of one query
    form: str = "fp8"                    # of queries and keys; each key with an fp32 scale where it is fp8

    def work(self) -> Work:
        scales = Operand(self.keys if self.form == "fp8" else 0, "fp32")
        reads = [Operand(self.queries * self.heads * self.d, self.form), Operand(self.keys * self.d, self.form),
                 scales, Operand(self.queries * self.heads, "fp32")]
        return Work.of(
            flops={matrix_unit(self.form, self.form): 2 * self.heads * self.d * self.pairs,
                   ("vector", "fp32"): 2 * self.heads * self.pairs},
            bytes_read=nbytes(reads), bytes_written=Operand(self.queries * self.chosen, "int32").nbytes,
        )
