"""Where the real traces lie, and what to do where they do not."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

# Several workers share the cores: threads that wait do not spin, and each has one. Read when the libraries load.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# What takes minutes more and says little more than its neighbours.
EVERYTHING = bool(os.environ.get("SUBLIGHT_EVERYTHING"))
minutes_more = pytest.mark.skipif(not EVERYTHING, reason="takes minutes more: SUBLIGHT_EVERYTHING=1 runs it")

DATA = Path(os.environ.get("SUBLIGHT_DATA", Path(__file__).parent.parent / "../shared/data")).resolve()

KINETO = {
    "h800": "kineto/h800_moe_ep64_train.json.gz",
    "b200": "kineto/b200_vllm_tp8_eager.json.gz",
    "a100": "kineto/a100_ddp_rank0.json.gz",
    "h100": "kineto/h100_qwen15_05b.json.gz",
}


def shared(relative: str) -> Path:
    """A file of the shared data; the test skips, saying why, where it is absent."""
    path = DATA / relative
    if not path.exists():
        pytest.skip(f"{relative} is not there: set SUBLIGHT_DATA to the folder of the real traces")
    return path


def all_kineto() -> list[str]:
    """Every shared Kineto trace, as paths relative to the data folder; the known ones where it is absent."""
    found = [str(p.relative_to(DATA)) for p in sorted((DATA / "kineto").rglob("*.json*"))]
    return found or list(KINETO.values())


def loaded(path: Path) -> ModuleType:
    """A script of docs or bench as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
