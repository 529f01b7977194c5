"""SL415: ranks that are missing, repeated or partial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import first_of, gpu_name, lines
from sublight.finding import Finding

CODE, TITLE = "SL415", "ranks of the GPUs do not add up"


def find(box: Box) -> Iterable[Finding]:
    """Fires for two GPUs with one rank, ranks with gaps, and GPUs without a rank where others have one."""
    listed = [gpu for gpu in box.gpus if gpu.listed]
    ranks: Counter[int | None] = Counter(gpu.rank for gpu in listed if gpu.rank is not None and gpu.rank >= 0)
    if not ranks:
        return
    twice = [gpu for gpu in listed if ranks[gpu.rank] > 1]
    without = [gpu for gpu in listed if gpu.rank is None or gpu.rank < 0]
    used = sorted(rank for rank in ranks if rank is not None)
    gaps = sorted(set(range(used[0], used[-1])) - set(used))
    if not twice and not without and not gaps:
        return
    odd = [*twice, *without] or listed[:1]
    yield Finding(
        CODE, TITLE,
        f"{first_of([gpu_name(gpu) for gpu in odd])}: NCCL leaves out GPUs without a rank, and two with the same rank "
        "are one to it",
        lines((*(f"{gpu_name(gpu)}: rank {gpu.rank} is used {ranks[gpu.rank]} times" for gpu in twice),
               *(f"{gpu_name(gpu)}: no rank" for gpu in without),
               *([f"no GPU with rank {', '.join(map(str, gaps[:8]))}"] if gaps else []))),
        "Take the <gpu> elements out of a file that is meant as input: NCCL fills in dev and rank for those that "
        "take part",
        "medium" if twice or without else "low", None,
        ("a dump of a run on some GPUs of the box has gaps",) if gaps else (),
    )
