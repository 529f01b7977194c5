"""This file knows about the events of Kineto's JSON: their categories, the fields that are kept of each, and how a
chunk of their text becomes values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Union

import msgspec

from sublight.observe.events import Buffer
from sublight.trace import KERNEL, MEMCPY, MEMSET

# Categories by table; the capitalised ones are those of 2021.
DEVICE_KINDS = {
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": MEMCPY, "Memcpy": MEMCPY,
    "gpu_memset": MEMSET, "Memset": MEMSET, "concurrent_kernel": KERNEL,
}
CALL_KINDS = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "Driver", "hip_runtime", "hip_driver"})
OP_KINDS = frozenset({"cpu_op", "Operator"})
ANNOTATION_KINDS = frozenset({"user_annotation", "UserAnnotation"})
OVERHEAD_KINDS = frozenset({"overhead", "Overhead"})
KEPT = frozenset(DEVICE_KINDS) | CALL_KINDS | OP_KINDS | ANNOTATION_KINDS | OVERHEAD_KINDS
# Read, counted, and not needed for time accounting.
KNOWN_IGNORED = frozenset({
    "python_function", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "gpu_user_annotation", "Trace",
    "cpu_instant_event", "forward_backward", "cuda_sync", "cuda_event", "mtia_ccp_events", "mtia_runtime",
    "xpu_runtime", "privateuse1_runtime", "hpu_op", "collective_comm",
})
PHASES = {"M": "metadata", "i": "instant", "I": "instant", "s": "flow", "f": "flow", "t": "flow", "C": "counter",
          "B": "begin/end", "E": "begin/end", "b": "begin/end", "e": "begin/end", "n": "begin/end"}

SHAPES_KEY = re.compile(rb'"Input [Dd]ims"')
SHAPES_FLAG = re.compile(rb'"record_shapes"\s*:\s*(?:1|true)')
SHAPES_WITHIN = 100_000                  # events: where operators have shapes, one of the first ones has
NOT_RECORDED = msgspec.Raw(b"")


ID_KEYS = {"external_id": "External id", "external_id_2021": "external id"}
RENAMED_KEYS = ID_KEYS | {
    "nbytes": "bytes", "graph_node": "graph node id", "collective": "Collective name", "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems", "group_size": "Group size", "group": "Process Group Name",
    "ranks": "Process Group Ranks",
}
ARGUMENT_KEYS = {
    "dims": "Input Dims", "dims_2021": "Input dims", "types": "Input type", "strides": "Input Strides",
    "concrete": "Concrete Inputs",
}


class DeviceFields(msgspec.Struct, gc=False, rename=RENAMED_KEYS):
    correlation: Any = None
    external_id: Any = None
    external_id_2021: Any = None
    device: Any = None
    stream: Any = None
    grid: Any = None
    block: Any = None
    nbytes: Any = None
    graph_node: Any = None
    collective: Any = None
    dtype: Any = None
    elements_in: Any = None
    elements_out: Any = None
    group_size: Any = None
    group: Any = None
    ranks: Any = None


class CallFields(msgspec.Struct, gc=False):
    correlation: Any = None


class OpFields(msgspec.Struct, gc=False, rename=ID_KEYS):
    external_id: Any = None
    external_id_2021: Any = None


class OpFieldsWithArguments(OpFields, gc=False, rename=ID_KEYS | ARGUMENT_KEYS):
    """Arguments stay text (msgspec.Raw): few of them are distinct, and most are never looked at."""

    dims: msgspec.Raw = NOT_RECORDED
    dims_2021: msgspec.Raw = NOT_RECORDED
    types: msgspec.Raw = NOT_RECORDED
    strides: msgspec.Raw = NOT_RECORDED
    concrete: msgspec.Raw = NOT_RECORDED


class AnyFields(DeviceFields, gc=False, rename=RENAMED_KEYS | ARGUMENT_KEYS):
    dims: msgspec.Raw = NOT_RECORDED
    dims_2021: msgspec.Raw = NOT_RECORDED
    types: msgspec.Raw = NOT_RECORDED
    strides: msgspec.Raw = NOT_RECORDED
    concrete: msgspec.Raw = NOT_RECORDED


class Event(msgspec.Struct, gc=False):
    """An event of any category: the tolerant way, for chunks that the typed way refuses."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: AnyFields | None = None


class ExactTime(msgspec.Struct, gc=False):
    """Time stamps of an event to the last digit, for files whose stamps outgrow a double."""

    ts: Decimal | None = None
    dur: Decimal | None = None


DEVICE_KEYS = [(f.name, f.encode_name) for f in msgspec.structs.fields(DeviceFields)]
decode_any = msgspec.json.Decoder(list[Event]).decode
decode_exact = msgspec.json.Decoder(list[ExactTime]).decode


class Decoder:
    """Decodes chunks by category; learns categories that it has not met, so that they cost one slow chunk each.

    Arguments of operators are decoded only from files that record them: their text must be kept for it.
    """

    MOST_CATEGORIES = 200

    def __init__(self) -> None:
        self.category_of: dict[type, str] = {}
        self.with_arguments = False
        self._seen = 0
        self._learn(KEPT | KNOWN_IGNORED)

    def _learn(self, categories: Iterable[str]) -> None:
        self.category_of |= {self._struct(category): category for category in sorted(categories)}
        union: Any = Union[tuple(self.category_of)]  # noqa: UP007   (made at run time)
        self._typed = msgspec.json.Decoder(list[union]).decode

    def _struct(self, category: str) -> type[msgspec.Struct]:
        """The struct of one category: only the fields that its table needs, none for those only counted."""
        fields: list[Any] = []
        if category in KEPT:
            # Whatever has a start and a length is a span: the phase need not be decoded.
            fields = [("name", str), ("ts", int | float), ("dur", int | float), ("pid", Any, None), ("tid", Any, None)]
            args: Any = (DeviceFields if category in DEVICE_KINDS else CallFields if category in CALL_KINDS else
                         (OpFieldsWithArguments if self.with_arguments else OpFields) if category in OP_KINDS else None)
            if args is not None:
                fields.append(("args", args | None, None))
        return msgspec.defstruct("Typed", fields, tag_field="cat", tag=category, gc=False)

    def expect_arguments(self) -> None:
        """Decode operators' arguments from here on."""
        if not self.with_arguments:
            categories = set(self.category_of.values())
            self.with_arguments = True
            self.category_of.clear()
            self._learn(categories)

    def __call__(self, text: Buffer) -> list[Any]:
        if not self.with_arguments and self._seen < SHAPES_WITHIN and SHAPES_KEY.search(text):
            self.expect_arguments()
        if self.with_arguments:
            text = bytes(text)                    # arguments point into it, and the reader's buffer is filled again
        try:
            batch = self._typed(text)
        except msgspec.ValidationError:
            batch = decode_any(bytes(text))
            known = set(self.category_of.values())
            new = {e.cat for e in batch if isinstance(e.cat, str)} - known
            if new and len(known) + len(new) <= self.MOST_CATEGORIES:
                self._learn(new)
        self._seen += len(batch)
        return batch


def convert(value: dict[str, Any]) -> Event | None:
    """An event from parsed JSON; None if it says no phase. Arguments of a wrong form are dropped."""
    if not isinstance(value.get("ph"), str):
        return None
    if isinstance(value.get("name"), str):        # half of an escaped pair cannot be written again
        value["name"] = value["name"].encode("utf-8", "replace").decode()
    args = value.get("args")
    event: Event = msgspec.convert({k: v for k, v in value.items() if k != "args"}, Event)
    if isinstance(args, dict):
        # json, not msgspec: it writes halves of escaped pairs, too.
        texts = {f: msgspec.Raw(json.dumps(args[key], default=float).encode())
                 for f, key in ARGUMENT_KEYS.items() if key in args}
        event.args = AnyFields(**{f: args[key] for f, key in DEVICE_KEYS if key in args}, **texts)
    return event
