"""This file knows about the time of latent attention: unfolded in prefill, absorbed in decode, sparse by an indexer.

The form is attention.py's: one cached key and value serves all heads, so the heads of a rank are rows of one product.
Constants: catalog/operators/latent.toml, from tables of the attention kernels alone. The tables of whole modules, which
hold the projections too, are not used: their parts are operators of their own here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import log

from sublight.device import by_key
from sublight.errors import InputError
from sublight.models.step import Batch
from sublight.ops.attention import Attention
from sublight.predict.machine import Machine
from sublight.predict.operators import attention, measured, silicon
from sublight.predict.operators.fitted import LIBRARIES, Fitted, fitted, nearest

RANK, ROPE, NOPE, VALUES = 512, 64, 128, 128         # DeepSeek-V3, whose kernels were measured
CHOSEN = 2048                                        # keys a query reads in the sparse tables (DeepSeek-V3.2, GLM-5)
TABLES = {"decode": ("mla", "generation_mla_perf", "step"), "prefill": ("mla", "context_mla_perf", "isl"),
          "sparse": ("sparse_attention", "glm5_dsa_attn_module_perf", "isl")}
# SGLang's tables on Hopper hold another operator: prefill was absorbed (3.4 times the products of what the engine
# runs), and with an fp8 cache decode converted the whole pool. Large points take that much longer than a sibling's.
SLOWER = 2.0
SIBLING = 0.10                           # ln spread more for another library's kernel: bench/fit_attention.py, modules
KEYS = ("num_heads", "kv_cache_dtype")
FORMS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}


def is_latent(op: Attention) -> bool:
    """One key of its own width for all heads, or keys and values of unequal widths in every head."""
    return op.kv_width is not None or (op.heads == op.kv_heads and op.d_qk != op.d_v)


def phase(op: Attention) -> str:
    """"decode", "prefill", or "sparse": a prefill whose queries read keys of their own choice."""
    if attention.is_decode(op):
        return "decode"
    return "sparse" if attention.is_sparse(op) else "prefill"


def kinds(op: Attention) -> tuple[str, ...]:
    own = phase(op)
    return tuple(dict.fromkeys((f"{own} {op.kv}", f"{own} fp8", f"{own} bf16", "prefill bf16")))


def ours(op: Attention, where: Machine) -> tuple[Fitted, measured.Near | None]:
    """Constants, and ratios where the kernel was measured at that or a like number of heads."""
    constants = fitted("latent", kinds(op), where)
    if constants is None:
        raise InputError("latent attention: expected constants in catalog/operators, got none; bench/fit_attention.py "
                         "writes them")
    if not where.tables or op.backward or not silicon.available() or constants.device != where.device.key:
        return constants, None
    version = where.version if constants.library == where.library else None
    near = _surface(constants.device, constants.library, version, phase(op), op.heads, op.kv)
    if near is not None and constants.library != where.library:
        near = replace(near, spread=near.spread + SIBLING)
    return constants, near


def as_op(kind: str, heads: int, kv: str, b: int, x: int) -> Attention:
    """The operator of a row of the tables: x is the keys of a decode, the new tokens of a prefill."""
    if kind == "prefill":
        batch = Batch(b, x)
        return Attention(batch.pairs(), batch.rows, batch.keys(), heads, heads, NOPE + ROPE, VALUES, kv=kv, sequences=b)
    if kind == "decode":
        batch = Batch(b, 1, x - 1, decode=True)
        return Attention(batch.pairs(), batch.rows, batch.keys(), heads, 1, RANK + ROPE, RANK, kv=kv,
                         kv_width=RANK + ROPE, sequences=b)
    batch = Batch(b, x, CHOSEN)
    return Attention(batch.pairs(window=CHOSEN), batch.rows, batch.chosen(CHOSEN), heads, 1, RANK + ROPE, RANK, kv=kv,
                     kv_width=RANK + ROPE, sequences=b, chosen=CHOSEN)


Points = dict[tuple[int, str], dict[tuple[float, float], float]]


@lru_cache(maxsize=64)
def measured_points(device: str, library: str, version: str | None, kind: str) -> Points:
    """(heads, format of the cache) -> (B, n or L) -> seconds, without formats whose kernel was another one."""
    own = all_points(device, library, version, kind)
    others = [all_points(device, other, None, kind) for other in LIBRARIES if other != library]
    doubted = {kv for kv in {key[1] for key in own} if any(slower(own, other, kv) > SLOWER for other in others)}
    return {key: points for key, points in own.items() if key[1] not in doubted}


def slower(own: Points, other: Points, kv: str) -> float:
    """How many times longer the larger half of the points takes, in the middle; 0 where none is common."""
    common = sorted((value, value / other[key][at]) for key, points in own.items() if key[1] == kv and key in other
                    for at, value in points.items() if at in other[key])
    ratios = sorted(ratio for _, ratio in common[len(common) // 2:])
    return ratios[len(ratios) // 2] if ratios else 0.0


def all_points(device: str, library: str, version: str | None, kind: str) -> Points:
    family, name, axis = TABLES[kind]
    for table in measured.tables(device, family, library, name, version, KEYS):
        found = {}
        for (heads, kv), rows in table.groups.items():
            if kind == "sparse":         # the kernel reads as many keys whatever the prefix
                rows = rows[(table.columns["step"][rows] >= CHOSEN) & (table.columns["isl"][rows] > attention.DRAFTS)]
            points = table.points(rows, "batch_size", axis)
            more = 1 if kind == "decode" else 0
            found[int(heads), FORMS.get(kv, kv)] = {(b, x + more): value for (b, x), value in points.items()}
        return found
    return {}


@lru_cache(maxsize=256)
def _surface(
    device: str, library: str, version: str | None, kind: str, heads: int, kv: str,
) -> measured.Near | None:
    found = {key: points for key, points in measured_points(device, library, version, kind).items() if points}
    if not found:
        return None

    def apart(key: tuple[int, str]) -> float:
        return 0.5 * abs(log(key[0] / heads)) + (key[1] != kv)

    best = min(found, key=apart)
    return measured.near(device, library, apart(best), {
        (b, x): (value, as_op(kind, *best, int(b), int(x))) for (b, x), value in found[best].items()}, model)


def model(op: Attention, device: str, library: str) -> float:
    """Seconds of the form with the constants of a device and a library, caches warm as tables were measured."""
    of = by_key(device)
    c = nearest("latent", kinds(op), of, library)
    assert c is not None
    return attention.seconds(c.values, attention.load(op, of.limits))
