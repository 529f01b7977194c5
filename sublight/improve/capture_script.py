"""This file knows about Python programs that use torch.profiler: what their recordings will lack, told from the source.
Nothing is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from sublight.improve.capture import Lack

MOST_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Script:
    profiles: bool                       # does it call torch.profiler.profile?
    has: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()


def of_script(path: Path) -> Script | None:
    """None where the file cannot be read, or is no Python."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError, UnicodeDecodeError, RecursionError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    profiles = [call for call in calls if _name(call.func).endswith(("profiler.profile", "profile"))
                and not _name(call.func).startswith(("cProfile", "memory_profiler"))]
    if not profiles or "torch" not in _modules(tree):
        return Script(False)
    given = {keyword.arg: keyword.value for keyword in profiles[0].keywords if keyword.arg}
    if any(keyword.arg is None for keyword in profiles[0].keywords):
        return Script(True, ("options that the source does not spell out",))
    return Script(True, *_checked(given, calls, tree))


def _checked(
    given: dict[str, ast.expr], calls: list[ast.Call], tree: ast.AST,
) -> tuple[tuple[str, ...], tuple[Lack, ...]]:
    names = [_name(call.func) for call in calls]
    text = {word for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.Name | ast.Attribute)
            for word in [_word(node)]}
    has, lacks = list[str](), list[Lack]()

    def check(there: bool, what: str, serves: str, do: str) -> None:
        if there:
            has.append(what)
        else:
            lacks.append(Lack(what, serves, do))

    activities = given.get("activities")
    check(activities is None or {"CPU", "CUDA"} <= {_word(node) for node in ast.walk(activities)},
          "both activities", "SL201 to SL206, operators", "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
    check(_true(given.get("record_shapes")), "shapes", "SL302, SL303, SL306, bounds", "record_shapes=True")
    scheduled = given.get("schedule")
    check(scheduled is not None, "a schedule", "figures per step; warm-up stays out",
          "schedule=torch.profiler.schedule(wait=1, warmup=3, active=4, repeat=1)")
    if isinstance(scheduled, ast.Call):
        active = next((_number(k.value) for k in scheduled.keywords if k.arg == "active"), None)
        check(active is None or active >= 3, "several steps", "diff's verdict, SL004", "active=4")
    check(any(name.endswith(".step") and "optim" not in name and "sched" not in name for name in names),
          "profiler.step() after each step", "figures per step", "profiler.step()")
    check("export_chrome_trace" in text or "tensorboard_trace_handler" in text, "a file", "everything",
          'on_trace_ready=lambda p: p.export_chrome_trace(f"rank{rank}.json.gz")')
    if any("init_process_group" in name for name in names):
        check("tensorboard_trace_handler" in text or bool({"rank", "RANK", "get_rank", "local_rank"} & text),
              "the rank in the name", "SL103 to SL106", 'f"rank{rank}.json.gz"')
    return tuple(has), tuple(lacks)


def _modules(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in whole | parts}


def _name(node: ast.expr) -> str:
    """torch.profiler.profile"""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _word(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else \
        str(node.value) if isinstance(node, ast.Constant) else ""


def _true(node: ast.expr | None) -> bool:
    """True, or something that only the run tells."""
    return node is not None and not (isinstance(node, ast.Constant) and not node.value)


def _number(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None
