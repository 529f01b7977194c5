"""Kernel names that were labelled by hand, without looking at the rules: how often the rules agree."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from sublight.observe.kernel_name import CATEGORIES, classify

DATA = Path(__file__).parent / "data"
FILES = [path for path in (DATA / "kernel_names.tsv", DATA / "kernel_names_2.tsv") if path.exists()]
PRECISION, RECALL, SAME_LIBRARY = 0.98, 0.97, 0.90

# One code base under the names that different people give it, or one that ships inside the other.
SAME = (
    {"flashattention", "flashattn"},
    {"flashlinearattention", "fla"},
    {"mscclpp", "msccl"},
    {"cub", "thrust", "cubthrust", "cccl"},
    {"rocclr", "clr", "rocm", "hip"},
    {"cutedsl", "cutlass"},
    {"trtllmgen", "tensorrtllm", "trtllm"},
    {"userbuffers", "transformerengine", "te"},
    {"megatron", "megatronlm"},
    {"mamba", "mambassm"},
    {"inductor", "torchinductor"},
    {"xla", "jax"},
    {"ggml", "llamacpp"},
    {"aphrodite", "vllm"},
    {"lmdeploy", "turbomind"},
    {"liger", "ligerkernel"},
    {"hipblaslt", "tensile", "rocblas"},
    {"deepspeed", "fastgen"},
    {"tritonkernels", "triton"},
)


@dataclass(frozen=True)
class Label:
    name: str
    categories: tuple[str, ...]
    library: str
    family: str
    source: str


def labels(path: Path) -> list[Label]:
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            Label(row["name"], tuple(row["category"].split("|")), row["library"], row["family"], row["source"])
            for row in rows
        ]


def plain(library: str) -> set[str]:
    """The spellings of a library that mean the same."""
    word = re.sub(r"[^a-z]", "", library.lower())
    return next((group for group in SAME if word in group), {word})


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def labelled(request: pytest.FixtureRequest) -> list[Label]:
    return labels(request.param)


def test_the_labels_cover_enough_and_come_from_elsewhere(labelled: list[Label]) -> None:
    assert len({label.name for label in labelled}) >= 300
    assert {category for label in labelled for category in label.categories} <= set(CATEGORIES)
    traced = {label.library for label in labelled if label.source.startswith("trace:")}
    elsewhere = [label for label in labelled if label.library not in traced]
    assert len(elsewhere) >= len(labelled) / 2


def test_category(labelled: list[Label]) -> None:
    misses, told, right, tells, found = [], 0, 0, 0, 0
    for label in labelled:
        got = classify(label.name)
        agrees = got.category in label.categories
        told += got.category != "unclassified"
        right += got.category != "unclassified" and agrees
        tells += "unclassified" not in label.categories
        found += "unclassified" not in label.categories and agrees
        if not agrees:
            misses.append(f"{'|'.join(label.categories)} -> {got.category} ({got.rule}): {label.name[:120]}")
    shown = "\n".join(misses)
    assert right >= PRECISION * told, f"precision {right / told:.2%}\n{shown}"
    assert found >= RECALL * tells, f"recall {found / tells:.2%}\n{shown}"


def test_library(labelled: list[Label]) -> None:
    """Of the names where both say a library; a copy of another project's kernel may be either."""
    both = [(label, got) for label in labelled if label.library != "-" and (got := classify(label.name)).library]
    misses = [
        f"{label.library} -> {got.library} ({got.rule}): {label.name[:120]}"
        for label, got in both
        if got.library
        and plain(got.library).isdisjoint(plain(label.library))
        and got.library.lower() not in label.family.lower()
    ]
    assert len(both) - len(misses) >= SAME_LIBRARY * len(both), "\n".join(misses)
