"""A big trace from a small one: its events again and again, each copy later and with ids of its own.

    python bench/repeat_trace.py IN.json[.gz] OUT.json TARGET_MB

Each compute and communication figure of the big trace is a whole multiple of the small one's: times are
shifted in integer nanoseconds and written as decimal text, never through a float; correlation, External and
flow ids do not meet between copies, so each launch still finds its own kernel. Metadata, instant events and
the profiler's own span are written once. The layout is Kineto's: two-space indent, `args` on its own lines.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]

GAP_NS = 100_000    # from the end of one copy to the start of the next
ID_ARGS = ("correlation", "External id", "Ev Idx", "Record function id", "Sequence number",
           "Python id", "Python parent id")
KINETO_LINES = (("ph", "id", "cat", "name", "pid", "tid"), ("ts", "dur"), ("s", "bp"))


def nanoseconds(micros: Decimal | int) -> int:
    ns = Decimal(micros) * 1000
    if ns != int(ns):
        raise ValueError(f"expected microseconds with at most 3 decimals, got {micros}")
    return int(ns)


def microseconds(ns: int, *, whole: bool) -> str:
    return str(ns // 1000) if whole else f"{ns // 1000}.{ns % 1000:03d}"


def as_json(value: object, *, indent: int | None = None) -> str:
    # A Decimal that gets here is a property such as `blocks per SM`, never a time.
    return json.dumps(value, indent=indent, default=float, ensure_ascii=False)


def is_id(value: object) -> bool:
    return type(value) is int and value > 0     # 0 says that there is none


@dataclass(frozen=True, slots=True)
class Template:
    """An event's text with `%s` for, in this order: its flow id, its time, the ids among its args."""

    text: str
    flow_ids: tuple[int, ...]   # one or none
    ts_ns: int
    arg_ids: tuple[int, ...]
    whole: bool                 # whole microseconds, as Kineto wrote until 2024

    def shifted(self, ns: int, ids: int) -> str:
        ts = microseconds(self.ts_ns + ns, whole=self.whole)
        return self.text % (*[i + ids for i in self.flow_ids], ts, *[i + ids for i in self.arg_ids])


def fields(pairs: Iterator[tuple[str, str]]) -> str:
    return ", ".join(f'"{key}": {value}' for key, value in pairs)


def template(event: Event, *, whole: bool) -> Template:
    def value(key: str) -> str:
        if key == "ts" or (key == "id" and is_id(event[key])):
            return "%s"
        if key == "dur":
            return microseconds(nanoseconds(event[key]), whole=whole)
        return as_json(event[key]).replace("%", "%%")

    known = [key for line in KINETO_LINES for key in line]
    others = tuple(key for key in event if key not in known and key != "args")
    lines = [fields((key, value(key)) for key in line if key in event) for line in (*KINETO_LINES, others)]
    args = event.get("args") or {}
    arg_ids = {key: args[key] for key in args if key in ID_ARGS and is_id(args[key])}
    if args:
        texts = ((as_json(key)[1:-1].replace("%", "%%"),
                  "%s" if key in arg_ids else as_json(args[key]).replace("%", "%%")) for key in args)
        lines.append('"args": {\n      ' + fields(texts) + "\n    }")
    return Template(
        text="  {\n    " + ",\n    ".join(line for line in lines if line) + "\n  }",
        flow_ids=(event["id"],) if is_id(event.get("id")) else (),
        ts_ns=nanoseconds(event["ts"]),
        arg_ids=tuple(arg_ids.values()),
        whole=whole,
    )


def read(path: Path) -> tuple[Event, list[Event]]:
    """(everything beside the events, the events); numbers with decimals as Decimal."""
    raw = path.read_bytes()
    trace = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw, parse_float=Decimal)
    if not isinstance(trace, dict) or not trace.get("traceEvents"):
        raise ValueError(f"expected a JSON object with traceEvents in {path.name}; is it a profiler trace?")
    return trace, trace.pop("traceEvents")


def is_repeated(event: Event) -> bool:
    return event.get("ph") not in ("M", "i") and event.get("cat") != "Trace"


def copies(events: list[Event]) -> Iterator[str]:
    """The text of one copy after another, without end."""
    whole = all(isinstance(event[key], int) for event in events for key in ("ts", "dur") if key in event)
    templates = [template(event, whole=whole) for event in events]
    first = min(t.ts_ns for t in templates)
    last = max(t.ts_ns + nanoseconds(e.get("dur", 0)) for t, e in zip(templates, events, strict=True))
    stride = 1 + max((i for t in templates for i in (*t.flow_ids, *t.arg_ids)), default=0)
    copy = 0
    while True:
        ns, ids = copy * (last - first + GAP_NS), copy * stride
        yield ",\n".join([t.shifted(ns, ids) for t in templates])
        copy += 1


def write(out: Path, header: Event, once: list[Event], repeated: list[Event], target_bytes: int) -> int:
    """The number of copies written."""
    with out.open("wb") as file:
        file.write(as_json(header, indent=2).removesuffix("\n}").encode())
        file.write(b',\n  "traceEvents": [\n' if header else b'\n  "traceEvents": [\n')
        for event in once:
            file.write(("  " + as_json(event) + ",\n").encode())
        for count, text in enumerate(copies(repeated), start=1):
            file.write(text.encode())
            if file.tell() >= target_bytes:
                file.write(b"\n  ]\n}\n")
                return count
            file.write(b",\n")
    raise AssertionError("copies() does not end")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("small", type=Path, metavar="IN", help="a PyTorch profiler trace, .json or .json.gz")
    parser.add_argument("big", type=Path, metavar="OUT", help="the trace to write, plain JSON")
    parser.add_argument("target_mb", type=float, metavar="TARGET_MB",
                        help="the copy that gets there is the last")
    args = parser.parse_args()

    header, events = read(args.small)
    once = [event for event in events if not is_repeated(event)]
    repeated = [event for event in events if is_repeated(event)]
    if not repeated:
        parser.error(f"{args.small} has no event to repeat")
    count = write(args.big, header, once, repeated, int(args.target_mb * 1e6))
    size_mb = args.big.stat().st_size / 1e6
    print(f"{count} copies, {len(once) + count * len(repeated)} events, {size_mb:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
