"""This file knows about the cubins of the examples: tiles.cu, compiled by nvcc 13.0 in two ways and into a fatbin.

    python docs/examples/make_cubins.py [FOLDER]         # into docs/examples; needs nvcc, and nvdisasm for the listings

tiles_before.cubin asks for 8 blocks an SM of running_sums, tiles_after.cubin for 16: what a well-meant change of
__launch_bounds__ does. Beside each lies its listing (nvdisasm -c), for machines without nvdisasm.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from sublight.kernels.inspect import tools

HERE = Path(__file__).parent
NVCC = ("nvcc", "-O3")
BUILDS = {"tiles_before.cubin": ("-arch=sm_90a", "-DBLOCKS=8", "-cubin"),
          "tiles_after.cubin": ("-arch=sm_90a", "-DBLOCKS=16", "-cubin"),
          "tiles.fatbin": ("--compress-mode=size", "-gencode", "arch=compute_80,code=[sm_80,compute_80]", "-gencode",
                           "arch=compute_90a,code=sm_90a", "-DBLOCKS=8", "-fatbin")}


def main(folder: Path) -> None:
    """Write them all."""
    if not shutil.which("nvcc"):
        raise SystemExit("make_cubins.py: nvcc not found; expected CUDA 13.0's on PATH")
    for name, options in BUILDS.items():
        subprocess.run([*NVCC, *options, "-o", str(folder / name), "tiles.cu"], cwd=HERE, check=True)
        if name.endswith(".cubin"):
            listing = tools.disassembly((folder / name).read_bytes(), lines=False)
            (folder / name).with_suffix(".sass").write_text(shortened(listing), "utf-8")


def shortened(listing: str) -> str:
    """Without columns, empty lines and comments."""
    lines = (" ".join(line.split()) for line in listing.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
