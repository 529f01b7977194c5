"""This file knows about the time of attention: tiles and rows of prefill, cached bytes of decode, floors of both.

    B, n, L    sequences, new tokens of one, tokens that one sees
    tiles      blocks of 128 queries of one head: what a thread block of prefill computes
    rows       queries that share a key head; matrix hardware takes them in sixteens

    prefill    fixed + tile·tiles/SMs + p-norm(tensor, memory, vector)
    decode     fixed + tile·B·kv_heads/SMs + long·L/(L + 1024) + p-norm(tensor, memory)

The tensor term is no less than the last tile's own products on one SM; the vector term is the softmax. Cached keys and
values that fit the L2 were there when tables were measured; a step of a whole model finds them in memory:
Machine.cold.
Sources of the structure: Dao, FlashAttention-2, arXiv 2307.08691, sections 3.2 (tiles) and 3.3; Flash-Decoding
(split keys), pytorch.org/blog/flash-decoding. Constants: catalog/operators/attention.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import ceil, log

from sublight.device import Limits
from sublight.errors import InputError
from sublight.ops.attention import Attention
from sublight.predict.machine import Machine
from sublight.predict.operators import measured, silicon
from sublight.predict.operators.fitted import Fitted, fitted
from sublight.predict.optime import OpTime, combined
from sublight.work import BYTES

TILE = 128                               # queries of a thread block
ROWS = 16                                # of a matrix instruction
SPARSE_ROWS = 64                         # heads of one query in a tile of FlashMLA's sparse prefill
LONG = 1024.0                            # tokens from which keys are split over thread blocks
DRAFTS = 8                               # new tokens of a sequence up to which a step over a cache is a decode
# judgement: of the forward pass's (FlashAttention-3, arXiv 2407.08608, figures 5 and 6)
BACKWARD_EFFICIENCY = 0.8
EDGE = 4.0                               # how sharply data outgrows an L2


@dataclass(frozen=True, slots=True)
class Load:
    """What an attention asks of a device, in seconds at its peaks."""

    decode: bool
    sequences: float
    length: float                        # keys a query sees at most, on average over the sequences
    tensor: float                        # of padded tiles
    serial: float                        # products of the last tile alone, on one SM
    memory: float
    vector: float
    blocks: float                        # thread blocks over SMs
    kept: float                          # share of the bytes that an L2 holds from one call to the next
    least: float                         # the bound


def sequences_of(op: Attention) -> float:
    """Of equally long ones: those said, or those that a causal mask with so many pairs, queries and keys has.

    >>> sequences_of(Attention.dense(batch=3, q_length=64, kv_length=64, heads=1, kv_heads=1, d_qk=8, d_v=8,
    ...                              causal="end"))
    3
    """
    if op.sequences:
        return op.sequences
    q, k = op.q_tokens, op.kv_tokens
    free = op.pairs - q / 2
    return min(max((q * k - q * q / 2) / free, 1.0), q) if free > 0 else float(q)


def is_decode(op: Attention) -> bool:
    """A few new tokens of each sequence, over a cache."""
    return not op.backward and op.q_tokens <= DRAFTS * sequences_of(op) and op.pairs > op.q_tokens


def is_sparse(op: Attention) -> bool:
    """Queries read keys of their own choice, and there are more keys than they choose."""
    return op.chosen is not None and op.kv_width is not None and 2 * op.pairs >= op.q_tokens * op.chosen


def load(op: Attention, limits: Limits) -> Load:
    """Raises InputError where the device has no rate for the format of the queries."""
    form = (op.math or "tf32") if op.q == "fp32" else op.q
    peak, vector, rate = _rates(limits, form)
    b, sms, width = sequences_of(op), limits.sms, 2 * (op.d_qk + op.d_v)
    n = max(op.q_tokens / b, 1.0)
    decode = n <= DRAFTS and op.pairs > op.q_tokens and not op.backward
    if is_sparse(op) and not decode:     # each query has keys of its own: its heads are the rows of a tile
        length, rows = float(op.chosen or 0), ceil(op.heads / SPARSE_ROWS) * SPARSE_ROWS
        padded, last, blocks = rows * op.q_tokens * length, rows * length * width * sms / peak, float(op.q_tokens)
    elif decode:
        length = op.pairs / op.q_tokens
        rows = ceil(op.heads / op.kv_heads * n / ROWS) * ROWS
        padded, last, blocks = op.kv_heads * rows * op.pairs / n, 0.0, b * op.kv_heads
    else:
        length, tiles = op.kv_tokens / b, ceil(n / TILE)
        padded = op.heads * (op.pairs * min(tiles * TILE / n, 4.0) + op.q_tokens * TILE / 2)
        seen = min(length, (op.window or op.chosen or length) + TILE)
        last, blocks = TILE * seen * width * sms / peak, b * op.heads * tiles
    read, written, l2 = *_bytes(op), limits.l2_bytes
    kept = 1.0 / (1.0 + ((read + written) / l2) ** EDGE)
    factor, least = (2.5 / BACKWARD_EFFICIENCY, 2.5) if op.backward else (1.0, 1.0)
    charged = max(0, read - l2) + max(0, written - l2)
    return Load(decode, b, length, padded * width / peak * factor, last * factor, (read + written) / rate,
                padded / vector * factor, blocks / sms, kept,
                max(op.heads * op.pairs * width * least / peak, charged / rate))


def _bytes(op: Attention) -> tuple[float, float]:
    """Read and written, as op.work() has them (a test holds them together; a simulation asks thousands of times)."""
    if op.backward or op.mask is not None:
        work = op.work()
        return work.bytes_read, work.bytes_written
    width = op.kv_heads * (op.d_qk + op.d_v) if op.kv_width is None else op.kv_width
    return (op.q_tokens * op.heads * op.d_qk * BYTES[op.q] + op.kv_tokens * width * BYTES[op.kv],
            op.q_tokens * op.heads * op.d_v * BYTES[op.out])


def _rates(limits: Limits, form: str) -> tuple[float, float, float]:
    """Matrix and vector operations and bytes a second."""
    peak = limits.flops_per_second("tensor", form)
    vector = limits.flops_per_second("vector", "fp32")
    if peak is None or vector is None or limits.memory_bytes_per_second is None:
        raise InputError(f"attention in {form}: expected a device with a known rate of it, got one without; give "
                         "another format or add the rate to catalog/devices.toml")
    return peak, vector, limits.memory_bytes_per_second


def terms(c: Mapping[str, float], x: Load, *, cold: bool) -> tuple[float, dict[str, float]]:
    """(fixed seconds, seconds by rate) of the form above with constants c."""
    fast = 0.0 if cold else x.kept * c["kept"]
    memory = x.memory * (1.0 - fast) / c["memory"]
    if x.decode:
        fixed = c["fixed"] + c["tile"] * x.blocks + c["long"] * x.length / (x.length + LONG)
        return fixed, {"memory": memory, "tensor": x.tensor / c["tensor"]}
    tensor = (x.tensor ** 4 + x.serial ** 4) ** 0.25 / c["tensor"]
    return c["fixed"] + c["tile"] * x.blocks, {"memory": memory, "tensor": tensor, "vector": x.vector / c["vector"]}


def seconds(c: Mapping[str, float], x: Load, *, cold: bool = False) -> float:
    """Of the form, without ratio and what-ifs: what tables are held against."""
    fixed, parts = terms(c, x, cold=cold)
    p = c["p"]
    body: float = sum(part ** p for part in parts.values()) ** (1 / p)
    return fixed + body


def kinds(op: Attention) -> tuple[str, ...]:
    """Names of constants, best first: phase, width of a head, formats of queries and cache."""
    phase = "decode" if is_decode(op) else "prefill"
    wide = "64" if op.d_qk <= 64 else "128" if op.d_qk <= 128 else "256"
    own = f"{op.q}-{op.kv}"
    forms = dict.fromkeys((own, "bf16-fp8" if op.kv == "fp8" else "bf16-bf16", "bf16-bf16"))
    return tuple(f"{phase} {d} {form}" for form in forms for d in dict.fromkeys((wide, "128")))


def time(op: Attention, where: Machine) -> OpTime:
    """Of one layer's attention. Latent attention has constants and tables of its own: latent.py."""
    x = load(op, where.device.limits)
    geometry = (op.heads, op.kv_heads, op.d_qk, op.d_v, op.window, op.kv, op.q, op.kv_width, x.decode,
                op.chosen is not None and is_sparse(op))
    ours = where.memo.get(geometry)
    if ours is None:
        ours = where.memo[geometry] = _ours(op, where)
    constants, near = ours
    return told(op, x, where, constants, near)


def _ours(op: Attention, where: Machine) -> tuple[Fitted, measured.Near | None]:
    """Constants, and ratios where the geometry or a like one was measured."""
    from sublight.predict.operators import latent

    if latent.is_latent(op):
        return latent.ours(op, where)
    constants = fitted("attention", kinds(op), where)
    if constants is None:
        raise InputError("attention: catalog/operators/attention.toml has no constants; expected those of bench/"
                         "fit_attention.py")
    return constants, near_of(op, where)


def told(op: Attention, x: Load, where: Machine, c: Fitted, near: measured.Near | None) -> OpTime:
    """The time from constants and, where there are any, ratios of tables."""
    fixed, parts = terms(c.values, x, cold=where.cold)
    if near is None:
        return combined(parts, where, fixed=fixed, p=c.values["p"], spread=c.spread, basis=c.basis, least=x.least)
    # A prefill after a prefix was not measured: that with as many pairs a sequence stands for it.
    if op.chosen is not None and is_sparse(op):
        along = op.pairs / x.sequences if x.decode else op.q_tokens / x.sequences
    elif x.decode:
        along = op.kv_tokens / x.sequences
    else:
        pairs = op.pairs / x.sequences
        along = ((1 + 8 * pairs) ** 0.5 - 1) / 2 if op.window is None else op.q_tokens / x.sequences
    ratio = near.at(log(x.sequences), log(max(along, 1.0)))
    return combined(parts, where, fixed=fixed, p=c.values["p"], ratio=ratio, spread=near.spread, basis="table",
                    least=x.least)


# ---- tables --------------------------------------------------------------------------------------------------------


def near_of(op: Attention, where: Machine) -> measured.Near | None:
    """Measured over modelled at the same or the nearest geometry, between its measured (B, n) or (B, L)."""
    if not where.tables or op.backward or not silicon.available():
        return None
    geometry = Geometry(op.heads, op.kv_heads, op.d_qk, op.window or 0, op.kv, op.q)
    return _surface(where.device.key, where.library, where.version, is_decode(op), geometry)


@dataclass(frozen=True, slots=True)
class Geometry:
    heads: int
    kv_heads: int
    d: int
    window: int
    kv: str
    q: str

    def apart(self, other: Geometry) -> float:
        """Distance of two geometries, of which the ratio of measured to modelled is likely the same."""
        return (abs(log(self.heads / other.heads)) * 0.3 + abs(log(self.kv_heads / other.kv_heads)) * 0.3
                + abs(log(self.heads * other.kv_heads / (other.heads * self.kv_heads))) * 0.7
                + abs(log(self.d / other.d)) * 4 + (self.kv != other.kv) * 2 + (self.q != other.q) * 2
                + abs(log((self.window or 1 << 17) / (other.window or 1 << 17))) * 0.5)


KEYS = ("num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype", "attn_dtype")
FORMS = {"bfloat16": "bf16", "fp8": "fp8", "float16": "fp16"}


@lru_cache(maxsize=512)
def _surface(device: str, library: str, version: str | None, decode: bool, wanted: Geometry) -> measured.Near | None:
    name = "generation_attention_perf" if decode else "context_attention_perf"
    same = (("num_heads", wanted.heads), ("num_key_value_heads", wanted.kv_heads), ("head_dim", wanted.d))
    for table in chain(measured.tables(device, "attention", library, name, version, KEYS, same),
                       measured.tables(device, "attention", library, name, version, KEYS)):
        by_geometry = {Geometry(h, k, d, w, FORMS.get(kv, kv), FORMS.get(q, q)): rows
                       for (h, k, d, w, kv, q), rows in table.groups.items()}
        if not by_geometry:
            continue
        best = min(by_geometry, key=wanted.apart)
        points = table.points(by_geometry[best], "batch_size", "step" if decode else "isl")
        if decode:
            points = {(b, step + 1): value for (b, step), value in points.items()}
        return measured.near(device, library, wanted.apart(best), {
            (b, x): (value, as_op(best, int(b), int(x), decode=decode)) for (b, x), value in points.items()}, model)
    return None


def as_op(g: Geometry, b: int, x: int, *, decode: bool) -> Attention:
    """The operator of a row of the tables."""
    from sublight.models.step import Batch

    batch = Batch(b, 1, x - 1, decode=True) if decode else Batch(b, x)
    window = g.window or None
    return Attention(batch.pairs(window=window), batch.rows, batch.keys(window=window), g.heads, g.kv_heads, g.d, g.d,
                     q=g.q, kv=g.kv, sequences=b, window=window)


def model(op: Attention, device: str, library: str) -> float:
    """Seconds of the form with the constants of a device and a library, caches warm as tables were measured."""
    from sublight.device import by_key
    from sublight.predict.operators.fitted import nearest

    of = by_key(device)
    c = nearest("attention", kinds(op), of, library)
    assert c is not None
    return seconds(c.values, load(op, of.limits))
