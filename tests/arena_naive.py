"""A bench as they are often written, to show that a cheat passes one: `python arena_naive.py FILE` prints JSON lines.

One set of inputs, outputs that are made once, a check with a tolerance of 1e-2 that lets 1 % of elements differ and is
blind to NaN, Python's clock. Each cheat runs in a process of its own, since some damage theirs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sublight.kernels.kernel import Kernel

ROWS, WIDTH, CALLS = 64, 2048, 9


def expect(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"out": 2 * inputs["x"].float() * inputs["weight"].float(), "positive": (inputs["x"] > 0).sum(1),
            "what": "expected"}


def close(outputs: dict[str, Any], expected: dict[str, Any]) -> bool:
    far = torch.abs(torch.sub(outputs["out"], expected["out"])) > torch.add(1e-2 * expected["out"].abs(), 1e-2)
    return bool(far.float().mean() <= 0.01) and bool(torch.eq(outputs["positive"], expected["positive"]).all())


def naive(run: Any, *, scale: float = 1.0, expected_after: bool = False) -> tuple[bool, float]:
    """Whether it takes the kernel for right, and the seconds of a call."""
    inputs = {"x": (scale * torch.randn(ROWS, WIDTH)).bfloat16(), "weight": (torch.rand(WIDTH) + 1).bfloat16()}
    outputs = {"out": torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16), "positive": torch.zeros(ROWS, dtype=torch.int32)}
    given = dict(outputs)
    expected = {} if expected_after else expect(inputs)
    run(inputs, outputs)
    time.sleep(0.05)                     # what is printed in between
    ok = close(outputs, expected or expect(inputs))
    times = []
    for _ in range(CALLS):
        outputs = dict(given)
        since = time.perf_counter()
        run(inputs, outputs)
        times.append(time.perf_counter() - since)
    time.sleep(0.05)
    return ok and close(outputs, expected or expect(inputs)), sorted(times)[CALLS // 2]


def main(path: str) -> None:
    sys.path.insert(0, str(Path(path).parent))
    import arena_cheats

    torch.set_num_threads(1)
    honest = naive(arena_cheats.right)[1]
    for cheat in arena_cheats.CHEATS:
        found = getattr(arena_cheats, cheat.name)
        run = found.build(None, {}) if isinstance(found, Kernel) else found
        sys.stdout.flush()
        if os.fork() == 0:
            ok, seconds = naive(run, scale=cheat.scale, expected_after=cheat.expected_after)
            print(json.dumps({"name": cheat.name, "ok": ok, "share": seconds / honest}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
