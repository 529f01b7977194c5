"""This file knows about building our C++ kernels: which compiler, which flags, and where the library is kept.

A library is compiled at its first use and kept under $XDG_CACHE_HOME/sublight/native, keyed on its sources, the
compiler, the flags and the processor's features; nothing is written anywhere else.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sublight.errors import InputError
from sublight.kernels.native import machine

HERE = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
# Vectors of 32 and 64 bytes are passed between inlined functions only: what -Wpsabi warns of cannot happen.
COMMON = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-Wall", "-Wextra",
          "-Wno-psabi", "-Wno-unknown-pragmas")
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its path, and the first line that it says of itself."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for. `native` is this machine; tests build others: no vector instructions, emulated AMX tiles."""

    name: str = "native"
    flags: tuple[str, ...] = ("-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native",)
    openmp: bool = True


NATIVE = Target()


def compiler() -> Compiler | None:
    """The compiler that is used: $CXX, else the first of c++, g++ and clang++ on the path; None: there is none."""
    named = os.environ.get("CXX")
    return _found((named,) if named else COMPILERS, os.environ.get("PATH", ""))


@functools.cache
def _found(names: tuple[str, ...], path: str) -> Compiler | None:
    for name in names:
        where = shutil.which(name, path=path)
        if where:
            said = subprocess.run([where, "--version"], capture_output=True, text=True, check=False, timeout=SECONDS)
            if said.returncode == 0 and said.stdout:
                return Compiler(where, said.stdout.splitlines()[0])
    return None


def refusal() -> str | None:
    """Why our CPU kernels cannot be built on this machine; None: they can."""
    if platform.system() != "Linux":
        return f"our CPU kernels are built on Linux only, and this is {platform.system()}"
    if compiler() is None:
        if named := os.environ.get("CXX"):
            return f"our CPU kernels are compiled at first use, and CXX={named} is no compiler that runs here"
        return ("our CPU kernels are compiled at first use, and there is no C++ compiler: install g++ (12 or newer) or "
                "clang++, or set CXX")
    return None


def key(source: Path, target: Target | None = None) -> Mapping[str, str]:
    """What the library of a source depends on: its sources' hash, the compiler, the flags, the processor."""
    target = target or NATIVE
    text = hashlib.sha256()
    for file in (source, *sorted(HERE.glob("*.hpp"))):
        text.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    found = compiler()
    return {"source": text.hexdigest()[:16], "compiler": found.version if found else "none",
            "flags": " ".join((*COMMON, *target.flags, *(("-fopenmp",) if target.openmp else ()))),
            "processor": machine.described()}


def library(source: Path, target: Target | None = None) -> ctypes.CDLL:
    """The compiled library of a C++ file, from the cache or built now (some seconds).

    Raises InputError, one sentence, where there is no compiler or where it refuses the source.
    """
    return _opened(built(source, target or NATIVE))


@functools.cache
def _opened(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def built(source: Path, target: Target) -> Path:
    """The path of the compiled library; compiles it where the cache has none of this key."""
    cannot = refusal()
    if cannot:
        raise InputError(cannot)
    digest = hashlib.sha256(repr(sorted(key(source, target).items())).encode()).hexdigest()[:20]
    path = cache_folder() / f"{source.parent.name}-{source.stem}-{target.name}-{digest}.so"
    if not path.exists():
        _compile(source, path, target)
    return path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/sublight/native, else ~/.cache/sublight/native."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "sublight" / "native"


def _compile(source: Path, path: Path, target: Target) -> None:
    """Compile beside the place and rename: another process never sees half a library, and who comes last wins."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            _run(source, made, target)
            made.replace(path)
    except OSError as error:
        raise InputError(f"the compiled kernels cannot be kept under {path.parent}: {error.strerror}; set "
                         "XDG_CACHE_HOME to a folder that can be written to") from None


def _run(source: Path, made: Path, target: Target) -> None:
    found = compiler()
    assert found is not None
    openmp = ("-fopenmp",) if target.openmp else ()
    command = [found.path, *COMMON, *target.flags, *openmp, f"-I{HERE}", str(source), "-o", str(made)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(f"{found.path} did not finish {source.name} within {SECONDS} s") from None
    if said.returncode:
        errors = [line for line in said.stderr.splitlines() if "error" in line.lower()] or said.stderr.splitlines()
        raise InputError(f"{found.version} refused {source.parent.name}/{source.name}: "
                         f"{errors[0] if errors else f'exit code {said.returncode}'}")
