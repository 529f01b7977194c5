"""`sublight explain -` and `sublight explain notes.txt`: pasted text instead of a trace: an issue, a log, a command, a
benchmark's summary, in any mix."""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path
from typing import Any

from sublight.errors import InputError

FORMATS = ("table", "json", "md")
HEAD_BYTES = 64 << 10
SHORT_BYTES = 512                        # a pipe that hands over so little has more to say
ARCHIVES = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
TRACE = re.compile(rb'"(traceEvents|schemaVersion|deviceProperties|displayTimeUnit|ph)"\s*:')
RESULT = re.compile(rb'"(num_prompts|tokenizer_id|request_throughput|output_throughput|aiperf_version|request_latency|'
                    rb'time_to_first_token|server_info|random_input_len|machine_info|benchmarks|real_time|'
                    rb'guidellm_version|system_output_throughput_tok_s)"\s*:')
JSON = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*(?:\{|\[\s*(?:[{\[\]]|$))")     # not "[2026-03-01 10:00:00] …" of a log
OF_TEXT = ("gpus", "isl", "osl", "concurrency")
OF_TRACES = ("device", "whatif", "on", "exchange", "tokens", "layers", "phase", "sequences", "context", "ep", "tp")


def add(command: Any) -> None:
    """Options of pasted text."""
    group = command.add_argument_group("pasted text", "a launch command, log lines, a benchmark's summary or JSON, an "
                                       "issue, in any mix, from standard input (-) or a text file; what is said here "
                                       "wins")
    group.add_argument("--gpus", metavar="CLUSTER", help="8xH200, 2x8xH100, where the text does not name them")
    for name, words in (("isl", "tokens of a prompt"), ("osl", "tokens of an answer"),
                        ("concurrency", "requests at once")):
        group.add_argument(f"--{name}", type=int, metavar="N", help=words)


def is_text(head: bytes) -> bool:
    """Whether an input that begins so is pasted text or a benchmark's JSON, not a trace.

    >>> is_text(b"vllm serve m"), is_text(b'{"traceEvents": ['), is_text(b'{"date": 1, "num_prompts": 5'), is_text(b"")
    (True, False, True, False)
    >>> is_text(b"[2026-03-01 10:00] Decode batch"), is_text(b"[ {"), is_text(b"[")
    (True, False, False)
    """
    if not head.strip() or head.startswith(ARCHIVES) or b"\0" in head:
        return False
    if JSON.match(head) is not None:
        return TRACE.search(head) is None and RESULT.search(head) is not None
    return not head.lstrip().startswith((b"<", b"SQLite format 3", b"%PDF", b"\x89PNG", b"BZh", b"\xfd7zXZ",
                                         b"\xff\xfe", b"\xfe\xff", b"\n\x8b"))


def text_of(paths: list[str]) -> str | None:
    """The text of the one input, where it is pasted text; None where it is a trace, a folder, a URL or several."""
    if len(paths) != 1:
        return None
    if paths[0] == "-":
        return _of_standard_input()
    path = Path(paths[0])
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not (is_text(head) or head.startswith(ARCHIVES)):
        return None
    return _unpacked(str(path))


def _unpacked(path: str) -> str | None:
    """A file's text, where what it unpacks to is text."""
    from sublight.observe.results import text_of as read_text
    from sublight.observe.source import Damage, open_bytes

    try:
        first = next(open_bytes(path, Damage()), b"")
    except InputError:
        return None
    return read_text(path)[0] if is_text(first[:HEAD_BYTES]) else None


def _of_standard_input() -> str | None:
    """Standard input, if it is text; a trace is left where it is, unread."""
    source = sys.stdin.buffer
    head = source.peek(HEAD_BYTES) if isinstance(source, io.BufferedReader) else b""
    short = bool(head) and (not head.strip() or (len(head) < SHORT_BYTES and JSON.match(head) is not None
                                                 and TRACE.search(head) is None))
    if not is_text(head) and not short:
        return None
    data = source.read()
    if not is_text(data[:HEAD_BYTES]):           # the first bytes of a slow pipe were not enough to tell
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
        return None
    return data.decode("utf-8", errors="replace").removeprefix("\ufeff")


def refuse_of_text(options: argparse.Namespace) -> None:
    """Options of pasted text say nothing about a trace. Raises InputError naming the one that does."""
    wrong = [name for name in OF_TEXT if getattr(options, name) is not None]
    if wrong:
        raise InputError(f"--{wrong[0]} is of pasted text; of a trace say --device (a GPU) or --on (a cluster)")


def run(text: str, options: argparse.Namespace) -> int:
    """Recognise, answer, show."""
    wrong = [name for name in OF_TRACES if getattr(options, name) is not None]
    if wrong:
        raise InputError(f"--{wrong[0]} is of a trace; the input is text: say --gpus, --model, --isl, --osl or "
                         "--concurrency")
    if options.format not in FORMATS:
        raise InputError(f"--format {options.format} is of a trace; of text expected {', '.join(FORMATS)}")
    from sublight.observe.kernel_sums import is_kernel_sums

    if is_kernel_sums(text):
        return _kernel_sums(text, options)
    from sublight.cli import output
    from sublight.explain.answers import NOTHING, Given, answer
    from sublight.observe.pasted import recognise
    from sublight.observe.source import label

    with output.working("answering"):
        held = recognise(text)
        if held.empty:
            raise InputError(f"{label(options.trace[0])}: {NOTHING}")
        found = answer(held, Given(options.gpus, options.model, options.isl, options.osl, options.concurrency))
    if options.format == "table":
        from sublight.show.pasted import print_answer

        output.write_table(lambda console: print_answer(found, console), options.output,
                           width=None if sys.stdout.isatty() else 120, in_file=120)
        return 0
    output.write_text(_text(found, options.format), options.output)
    return 0


def _kernel_sums(text: str, options: argparse.Namespace) -> int:
    """What `nsys stats` summed up: kernels without a time line."""
    from dataclasses import replace

    from sublight.cli import output
    from sublight.observe.kernel_sums import read, without
    from sublight.observe.pasted import recognise
    from sublight.observe.source import label
    from sublight.show import kernel_sums as show

    sums, name = read(text), label(options.trace[0])
    if not recognise(without(text)).empty:
        sums = replace(sums, notes=(*sums.notes, "the text holds a command, a log or a summary, too, which is not read "
                                                 "beside sums of kernels: paste that apart"))
    if options.format == "table":
        output.write_table(lambda console: show.print_sums(sums, name, console), options.output)
    elif options.format == "json":
        output.write_text(output.json_text(show.document(sums, name)), options.output)
    else:
        output.write_text(show.markdown(sums, name), options.output)
    return 0


def _text(found: Any, form: str) -> str:
    from sublight.show.pasted import document, markdown

    if form == "md":
        return markdown(found)
    from sublight.cli import output

    return output.json_text(document(found))
