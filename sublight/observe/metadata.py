"""This file knows about the metadata around a trace's events: an allow-list, and what each entry must look like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from sublight.device import DeviceInfo
from sublight.observe.events import Tally

# What may be shown must look like what it is for.
DEVICE_NAME = re.compile(
    r"(?i:nvidia|tesla|quadro|geforce|titan|grid|amd|instinct|radeon|intel|ascend|gfx|[a-z]{1,2}\d{2,4}[a-z]?\b)"
    r"[\w .()/+-]{0,56}"
)
ONE_BACKEND = r"(?:(?:cpu|cuda|hip|xpu):)?(?:nccl|gloo|mpi|ucc|hccl|xccl|rccl)"
BACKEND = re.compile(f"{ONE_BACKEND}(?:,{ONE_BACKEND})*")


class Head(msgspec.Struct):
    """The allow-list of metadata. Nothing else of a file's head is kept, let alone shown: public traces have
    carried host names, command lines and access tokens."""

    deviceProperties: Any = None                                   # noqa: N815   (the file's own spelling)
    distributedInfo: Any = None                                    # noqa: N815
    baseTimeNanoseconds: Any = None                                # noqa: N815
    record_shapes: Any = None
    with_stack: Any = None
    profile_memory: Any = None
    cuda_runtime_version: Any = None
    cuda_driver_version: Any = None
    cupti_version: Any = None


def flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def metadata(tally: Tally) -> Head:
    """The allow-listed keys around the list of events. A damaged head gives up what can still be read of it."""
    head = Head()
    for text in ((tally.head or b"{").rstrip().rstrip(b",") + b"}", b'{"_":0' + tally.tail):
        try:
            part = msgspec.json.decode(text, type=Head)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            part = _metadata_by_key(text)
            if text.strip() not in (b"{}", b'{"_":0'):
                tally.repaired["metadata read key by key"] += 1
        for f in msgspec.structs.fields(Head):
            if getattr(part, f.name) is not None:
                setattr(head, f.name, getattr(part, f.name))
    return head


def _metadata_by_key(text: bytes) -> Head:
    head = Head()
    plain = text.decode("utf-8", "replace")
    for f in msgspec.structs.fields(Head):
        found = re.search(rf'"{f.encode_name}"\s*:\s*', plain)
        if found:
            try:
                value, _ = json.JSONDecoder(strict=False).raw_decode(plain, found.end())
            except (ValueError, RecursionError):
                continue
            setattr(head, f.name, value)
    return head


def devices(properties: Any) -> dict[int, DeviceInfo]:
    out: dict[int, DeviceInfo] = {}
    rows: Iterable[Any] = properties if isinstance(properties, list) else []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("id"), int):
            continue
        name = row.get("name")
        major, minor = row.get("computeMajor"), row.get("computeMinor")
        out[row["id"]] = DeviceInfo(
            name=_device_name(name), sms=_positive(row.get("numSms")),
            memory_bytes=_positive(row.get("totalGlobalMem")),
            capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) else None,
        )
    return out


def versions(head: Head) -> tuple[tuple[str, str], ...]:
    """(what, version) of the software below the run, each as it is usually written: ("CUDA driver", "12.9")."""
    info = head.distributedInfo if isinstance(head.distributedInfo, dict) else {}
    numbered = (("CUDA runtime", head.cuda_runtime_version), ("CUDA driver", head.cuda_driver_version))
    out = [(what, f"{n // 1000}.{n % 1000 // 10}") for what, value in numbered if (n := _positive(value))]
    if (cupti := _positive(head.cupti_version)) is not None:
        out.append(("CUPTI", str(cupti)))
    nccl = info.get("nccl_version")
    if isinstance(nccl, str) and re.fullmatch(r"\d{1,3}(\.\d{1,5}){1,3}", nccl):
        out.append(("NCCL", nccl))
    return tuple(out)


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _device_name(value: Any) -> str | None:
    """A device's name, if it looks like one: a maker or a model, then letters, digits, spaces and a few signs."""
    if isinstance(value, str) and DEVICE_NAME.fullmatch(value):
        return value
    return None


def rank_of(info: Any, name: str) -> tuple[int | None, str, int | None, str | None]:
    """(rank, where it is from, world size, backend): from the metadata, else from the file's name."""
    found = info if isinstance(info, dict) else {}
    backend = found.get("backend")
    backend = backend if isinstance(backend, str) and BACKEND.fullmatch(backend) else None
    world = _positive(found.get("world_size"))
    rank = found.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank, "metadata", world, backend
    by_name = re.search(r"(?:rank|worker)[-_]?(\d+)", name, re.IGNORECASE) or re.search(r"-TP-(\d+)", name)
    if by_name:
        return int(by_name[1]), "file name", world, backend
    return None, "order", world, backend
