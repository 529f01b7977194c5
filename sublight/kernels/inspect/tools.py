"""This file knows about NVIDIA's binary tools: where they may lie, and which of them can read a cubin.

Resources never need one. Instructions do: nvdisasm. An old one refuses a new cubin and a new one an old cubin ("old ELF
format"), so each that is found is tried.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sublight.errors import InputError

SECONDS = 120                    # for one cubin; the largest seen here takes 5
ADVICE = "pip install nvidia-cuda-nvdisasm, or triton (which brings one), or set CUDA_HOME"


class UnreadableError(Exception):
    """No nvdisasm reads this cubin. The message says what the first said, or that there is none."""


def find(name: str) -> Path:
    """The first place that has a tool. Raises InputError, with what to install, where none has."""
    for place in places(name):
        return place
    raise InputError(f"no {name} found on PATH, in CUDA_HOME, in a triton wheel or in NVIDIA's wheels; {ADVICE}")


@cache
def places(name: str) -> tuple[Path, ...]:
    """Every place that has a tool, each once."""
    file = f"{name}.exe" if sys.platform == "win32" else name
    found = (folder / file for folder in _folders())
    return tuple(dict.fromkeys(path.resolve() for path in found if path.is_file() and os.access(path, os.X_OK)))


def _folders() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin"
    if on_path := shutil.which("nvdisasm"):
        yield Path(on_path).parent
    yield from (Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder)
    for package, pattern in (("triton", "backends/nvidia/bin"), ("nvidia", "*/bin")):
        spec = find_spec(package)                    # looks for it; runs nothing of it
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(Path(root).glob(pattern))
    yield Path("/usr/local/cuda/bin")


def disassembly(image: bytes, *, lines: bool = True) -> str:
    """What `nvdisasm -c` prints of a cubin. lines: with source lines where it has them. Raises UnreadableError."""
    said = ""
    with tempfile.TemporaryDirectory(prefix="sublight-") as folder:
        file = Path(folder) / "image.cubin"
        file.write_bytes(image)
        for tool in places("nvdisasm"):
            for options in (("-c", "-g"), ("-c",))[not lines:]:      # a bad line table must not cost the code
                text, error = _run(tool, (*options, str(file)))
                if text is not None:
                    return text
                said = said or error
    raise UnreadableError(f"no nvdisasm here reads it: {said}" if said else f"needs nvdisasm: {ADVICE}")


def _run(tool: Path, options: tuple[str, ...]) -> tuple[str | None, str]:
    """Its text, or what it complains of in one line without paths."""
    try:
        done = subprocess.run([tool, *options], capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None, f"took more than {SECONDS} s"
    except OSError as error:
        return None, error.strerror or "cannot be started"
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0 and "/*0000*/" in text:
        return text, ""
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines() or ["no instructions in it"]
    return None, re.sub(r"\S*/\S*", "the file", lines[-1]).strip()[:200]
