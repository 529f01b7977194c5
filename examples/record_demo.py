"""Record the CPU demo: a small language model trained by two ranks, with a fault of known size planted in it.

    python examples/record_demo.py --out sublight/demo --steps 4 --stall-ms 25

Two processes train the same decoder-only model on the CPU, one thread each, and all-reduce their gradients
over gloo. Rank 0's data loader sleeps for `--stall-ms` in every step and says so nowhere: in rank 0's trace
it is a gap between two operators, and in rank 1's a wait in the all-reduce. Needs torch; writes one
`cpu_lm_rank<r>.json.gz` for each rank, without names of machines, paths or environment.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RANKS = 2
WARM_UP = 3
LAYERS, WIDTH, HEADS, VOCABULARY = 2, 192, 4, 512
BATCH, LENGTH = 4, 64

# What a trace may keep. Anything else (host name, paths, environment, log lines) stays out.
KEEP = ("schemaVersion", "deviceProperties", "record_shapes", "displayTimeUnit", "baseTimeNanoseconds")
KEEP_DISTRIBUTED = ("backend", "rank", "world_size")
KEEP_ARGS = (
    "External id", "Record function id", "Ev Idx", "Sequence number", "Fwd thread id", "Op count",
    "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "name", "labels", "sort_index",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the CPU demo traces.")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives cpu_lm_rank<r>.json.gz")
    parser.add_argument("--steps", type=int, default=4, help="recorded steps, after the warm-up (4)")
    parser.add_argument(
        "--stall-ms", type=float, default=25.0, help="rank 0's sleep in each step, in ms (25)"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            spawn.Process(target=train, args=(rank, Path(folder), args.steps, args.stall_ms))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed; nothing written")
        for rank in range(RANKS):
            recorded = json.loads((Path(folder) / f"rank{rank}.json").read_text())
            path = args.out / f"cpu_lm_rank{rank}.json.gz"
            path.write_bytes(gzip.compress(text(scrub(recorded)).encode(), 9, mtime=0))
            print(f"{path}: {path.stat().st_size:,} bytes")


def train(rank: int, folder: Path, steps: int, stall_ms: float) -> None:
    """Train for the warm-up and `steps` steps as one rank, and leave its raw trace in `folder`."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS)
    weights = parameters()
    gradients = torch.zeros_like(weights)
    views = split(weights, gradients)
    weights.grad = gradients
    optimizer = torch.optim.AdamW([weights], lr=1e-3, fused=True)
    tokens = batches(rank, stall_ms if rank == 0 else 0.0)

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=WARM_UP, active=steps, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank{rank}.json")),
        record_shapes=True,
    ) as profiler:
        for _ in range(WARM_UP + steps):
            gradients.zero_()
            loss = loss_of(views, next(tokens))
            loss.backward()
            dist.all_reduce(gradients)  # waits for the slowest rank
            gradients /= RANKS
            optimizer.step()
            profiler.step()
    print(f"rank {rank}: loss {loss.item():.3f} after {WARM_UP + steps} steps")
    dist.destroy_process_group()


def batches(rank: int, stall_ms: float) -> Iterator[Any]:
    """Rows of counting tokens [BATCH, LENGTH + 1], each after the planted sleep."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    while True:
        if stall_ms:
            time.sleep(stall_ms / 1000)
        first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        yield (first + torch.arange(LENGTH + 1)) % VOCABULARY


def shapes() -> dict[str, tuple[int, ...]]:
    d = WIDTH
    attention = {"norm1": (d,), "qkv": (3 * d, d), "out": (d, d)}
    layer = {**attention, "norm2": (d,), "up": (4 * d, d), "down": (d, 4 * d)}
    layers = {f"{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"embed": (VOCABULARY, d), **layers, "norm": (d,)}


def parameters() -> Any:
    """All weights in one buffer, as Megatron keeps them: one all-reduce and one optimiser call a step."""
    import torch

    parts = [torch.ones(s) if len(s) == 1 else torch.randn(s) / math.sqrt(s[1]) for s in shapes().values()]
    return torch.cat([p.flatten() for p in parts])


def split(weights: Any, gradients: Any) -> dict[str, Any]:
    """The named weights as views of the buffer; backward adds into the same places of `gradients`."""
    sizes = [math.prod(shape) for shape in shapes().values()]
    views = {}
    for (name, shape), w, g in zip(
        shapes().items(), weights.split(sizes), gradients.split(sizes), strict=True
    ):
        views[name] = w.view(shape).detach().requires_grad_()
        views[name].grad = g.view(shape)
    return views


def loss_of(w: dict[str, Any], tokens: Any) -> Any:
    """Next-token cross entropy of a pre-norm decoder. b batch, s length, d width, h heads."""
    from torch.nn import functional as fn

    d, heads = WIDTH, HEADS
    x = fn.embedding(tokens[:, :-1], w["embed"])  # [b, s, d]
    b, s, _ = x.shape
    for i in range(LAYERS):
        qkv = fn.linear(fn.layer_norm(x, (d,), w[f"{i}.norm1"]), w[f"{i}.qkv"])
        q, k, v = qkv.view(b, s, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind()  # [b, h, s, d/h]
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + fn.linear(mixed.transpose(1, 2).reshape(b, s, d), w[f"{i}.out"])
        hidden = fn.gelu(fn.linear(fn.layer_norm(x, (d,), w[f"{i}.norm2"]), w[f"{i}.up"]))
        x = x + fn.linear(hidden, w[f"{i}.down"])
    logits = fn.linear(fn.layer_norm(x, (d,), w["norm"]), w["embed"])  # tied embedding: [b, s, vocabulary]
    return fn.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def scrub(recorded: dict[str, Any]) -> dict[str, Any]:
    """The trace with only what the allow-lists above name; every event stays, with its times unchanged."""
    kept = {key: recorded[key] for key in KEEP if key in recorded}
    distributed = recorded["distributedInfo"]
    kept["distributedInfo"] = {key: distributed[key] for key in KEEP_DISTRIBUTED}
    kept["traceEvents"] = [scrub_event(event) for event in recorded["traceEvents"]]
    return kept


def scrub_event(event: dict[str, Any]) -> dict[str, Any]:
    if "args" not in event:
        return event
    return event | {"args": {key: value for key, value in event["args"].items() if key in KEEP_ARGS}}


def text(document: dict[str, Any]) -> str:
    """JSON with an event a line. Python's floats hold these time stamps to the nanosecond."""
    head = json.dumps({key: value for key, value in document.items() if key != "traceEvents"})
    events = ",\n".join(json.dumps(event) for event in document["traceEvents"])
    return f'{head[:-1]}, "traceEvents": [\n{events}\n]}}\n'


if __name__ == "__main__":
    main()
