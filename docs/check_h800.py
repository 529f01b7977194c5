"""Communication in flight and exposed, from the raw file alone: python docs/check_h800.py train.json"""
import json
import sys
from pathlib import Path


def union(spans):  # length of the time that at least one span covers
    total = until = 0
    for start, end in sorted(spans):
        total, until = total + max(0, end - max(start, until)), max(until, end)
    return total


events = json.loads(Path(sys.argv[1]).read_bytes())["traceEvents"]
kernels = [(e["name"], (e["ts"], e["ts"] + e["dur"])) for e in events if e.get("cat") == "kernel"]
for what, skip in (("with", "nothing"), ("without", "get_dispatch_layout")):
    comm = [span for name, span in kernels if "dpsk::ep::" in name and skip not in name]
    rest = [span for name, span in kernels if "dpsk::ep::" not in name or skip in name]
    ms = union(comm) / 1000, (union(comm + rest) - union(rest)) / 1000
    print(f"{what} the 4 layout kernels: {ms[0]} ms in flight, {ms[1]:.3f} ms exposed")
