"""This file knows about where a command's output goes: a format, a file or standard output, and progress."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sublight.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from sublight.explain import Explanation


FORMATS = ("table", "json", "md", "svg", "html", "perfetto")
FOR_FILES = {"html": "page.html", "perfetto": "trace.json", "trace": "trace.json"}  # megabytes


def check_writable(path: str | None, form: str = "table") -> None:
    """Raises InputError before the long work if the output cannot be written, or is not for a terminal."""
    if path is None:
        if form in FOR_FILES and sys.stdout.isatty():
            raise InputError(f"--format {form} is not for a terminal; expected a file or a pipe: -o {FOR_FILES[form]}")
        return
    folder = Path(path).resolve().parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: expected a file name in a folder that exists and can be written")


@contextmanager
def progress() -> Iterator[Callable[[str, int], None] | None]:
    """Shows how much was read, on standard error and only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn as ReadColumn
    from rich.progress import Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    with Progress(TextColumn("{task.description}"), ReadColumn(), TransferSpeedColumn(), TimeElapsedColumn(),
                  console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, int] = {}

        def report(name: str, read: int) -> None:
            from sublight.observe.source import label

            if name not in tasks:
                tasks[name] = bars.add_task(f"reading {label(name)}", total=None)
            bars.update(tasks[name], completed=read)  # type: ignore[arg-type]

        yield report


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows that something is at work whose end nobody can tell, on standard error and only on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Shows how many of how many are done, on standard error and only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(what), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True),
                  transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def say_speed(events: int, text_bytes: int, since: float) -> None:
    """What reading cost, on standard error and only on a terminal."""
    if not sys.stderr.isatty():
        return
    import resource
    import time

    seconds = max(time.process_time() - since, 1e-6)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1 << 20)
    print(f"{events:,} events, {text_bytes / 1e6:,.1f} MB of text in {seconds:.2f} CPU seconds "
          f"({events / seconds / 1e6:.2f} M events/s), peak memory {peak_mib:,.0f} MiB", file=sys.stderr)


def console(*, file: IO[str] | None = None, width: int | None = 80) -> Console:
    """Where tables go, standard output if no file is named: without any escape code in files, in pipes and where
    NO_COLOR is set."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:         # rich's own would exit with 1, which says that a gate failed
            raise BrokenPipeError

    plain = file is not None or not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR"))
    return Quiet(file=file, width=width, highlight=False, color_system=None if plain else "auto")


def write(explanation: Explanation, form: str, path: str | None) -> None:
    """Show an explanation in one of FORMATS; to a file, nothing half-written is left behind."""
    if form == "table":
        from sublight.show.terminal import print_explanation

        write_table(partial(print_explanation, explanation), path, width=None if sys.stdout.isatty() else 80)
        return
    text = _text(explanation, form)
    if path is None:
        sys.stdout.writelines(text)
    else:
        with replaced(path) as file:
            file.writelines(text)


def _text(explanation: Explanation, form: str) -> Iterable[str]:
    """The output in pieces."""
    if form == "perfetto":
        from sublight.show.perfetto import perfetto

        return perfetto(explanation)
    return (_whole(explanation, form),)


def _whole(explanation: Explanation, form: str) -> str:
    if form == "html":
        from sublight.show.html import html

        return html(explanation)
    if form == "json":
        from sublight.show.json import document

        return json_text(document(explanation))
    if form == "svg":
        from sublight.show.svg import svg

        return svg(explanation)
    from sublight.show.markdown import markdown

    return markdown(explanation)


def json_text(document: object) -> str:
    """A document as every command writes it."""
    import json

    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_table(
    show: Callable[[Console], None], path: str | None, *, width: int | None = 80, in_file: int = 80,
) -> None:
    """What `show` prints, to standard output (width None: as wide as it is), or to a file that is replaced only when
    all of it was written."""
    if path is None:
        show(console(width=width))
        return
    with replaced(path) as file:
        show(console(file=file, width=in_file))


def write_text(text: str, path: str | None) -> None:
    """To standard output, or to a file that is replaced only when all of it was written."""
    if path is None:
        sys.stdout.write(text)
        return
    with replaced(path) as file:
        file.write(text)


@contextmanager
def replaced(path: str) -> Iterator[Any]:
    """A file that takes the place of `path` only when it was written whole."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.resolve().parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        Path(name).unlink(missing_ok=True)
