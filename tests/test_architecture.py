"""Imports point one way, heavy ones wait until they are needed, and names say what a file knows about."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "sublight"
FILES = sorted(path for path in ROOT.rglob("*.py"))

# Each room may import from itself and from the rooms before its own line; rooms on one line do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("nouns",), ("engines",), ("ops",), ("models",), ("observe", "comm"), ("predict", "kernels"), ("explain",),
    ("improve", "guard"), ("show",), ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FRONT_DOORS = {"__init__", "__main__"}          # the package's own names; they may look into every room
NOUNS = {"work", "device", "cluster", "bound", "trace", "budget", "finding", "result", "plan", "shift", "verdict",
         "errors"}
HEAVY = {"torch", "triton", "pandas", "polars", "pyarrow", "matplotlib", "plotly", "ray", "mpi4py", "scipy"}
NO_NUMPY = {"__init__.py", "__main__.py", "errors.py", "finding.py", "budget.py", "device.py", "cluster.py",
            "result.py"}
VAGUE = {"core", "common", "utils", "util", "base", "manager", "helpers", "misc"}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else "front door" if path.stem in FRONT_DOORS else "nouns"


def room_of_module(module: str) -> str:
    parts = module.split(".")
    if len(parts) == 1:
        return "front door"
    return "nouns" if parts[1] in NOUNS else parts[1]


def imports(tree: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Modules that a file imports: at its own level, or (everywhere) inside functions too. Imports for the type
    checker alone run nothing, but point somewhere all the same: they count everywhere."""
    nodes = ast.walk(tree) if everywhere else top_level(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "sublight" else (module,)


def top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements that run on import: not those of functions, nor those for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from top_level(node)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def at_once(path: Path) -> set[str]:
    """Modules that importing a file imports, and what it takes from them, which may be modules too."""
    nodes = [node for node in top_level(parsed(path)) if isinstance(node, ast.ImportFrom)]
    return set(imports(parsed(path), everywhere=False)) | {
        f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


# Modules of kernels work on tensors and may import these at their top: whoever needs one imports it inside functions.
ON_TENSORS = {path for path in FILES if room_of(path) == "kernels"
              and {module.split(".")[0] for module in at_once(path)} & {"torch", "triton"}}


def wrong_way(room: str, modules: Iterator[str]) -> list[str]:
    """Modules of sublight that a room must not import."""
    out = []
    for module in modules:
        if module.split(".")[0] != "sublight" or module.split(".")[1:2] in (["__version__"], []):
            continue
        target = room_of_module(module)
        if target != room and LEVEL.get(target, len(LAYERS)) >= LEVEL[room]:
            out.append(module)
    return out


def named(path: Path) -> str:
    return str(path.relative_to(ROOT.parent))


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) != "front door"], ids=named)
def test_imports_point_one_way(path: Path) -> None:
    assert room_of(path) in LEVEL, f"{named(path)} stands in no known room"
    assert wrong_way(room_of(path), imports(parsed(path), everywhere=True)) == []


@pytest.mark.parametrize(("room", "line"), [
    ("nouns", "from sublight.observe.read import read"),
    ("observe", "def f():\n    from sublight.explain import explain"),
    ("explain", "from sublight.show.rows import waterfall"),
    ("show", "import sublight.cli.output"),
    ("observe", "from sublight import comm"),
])
def test_an_import_the_wrong_way_is_noticed(room: str, line: str) -> None:
    assert wrong_way(room, imports(ast.parse(line), everywhere=True)) != []


@pytest.mark.parametrize(("room", "line"), [
    ("show", "from sublight.explain.words import ms"),
    ("cli", "from sublight.show.svg import svg"),
    ("explain", "from sublight.observe.kernel_name import classify"),
    ("show", "from sublight import __version__"),
    ("explain", "from sublight.explain.view import View"),
])
def test_an_import_the_right_way_is_not(room: str, line: str) -> None:
    assert wrong_way(room, imports(ast.parse(line), everywhere=True)) == []


def test_every_noun_is_a_file_of_its_own() -> None:
    top = {path.stem for path in ROOT.glob("*.py")} - FRONT_DOORS
    assert top <= NOUNS, "a file at the top is a noun"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_heavy_imports_wait_until_they_are_needed(path: Path) -> None:
    loaded = {module.split(".")[0] for module in at_once(path)}
    if path not in ON_TENSORS:
        assert loaded & HEAVY == set()
    if room_of(path) == "cli" or (path.parent == ROOT and path.name in NO_NUMPY):
        assert "numpy" not in loaded
        assert "rich" not in loaded


def test_what_needs_torch_is_imported_where_it_is_needed() -> None:
    """Whoever imports at its top a module that needs torch needs it as well: none such may stand outside kernels."""
    names = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
             for path in FILES}
    needs = {names[path] for path in ON_TENSORS}
    while more := {name for path, name in names.items() if name not in needs and needs & at_once(path)}:
        needs |= more
    assert needs
    assert {name for name in needs if not name.startswith("sublight.kernels.")} == set()


@pytest.mark.parametrize("arguments", [["-c", "import sublight"], ["-m", "sublight", "--help"]])
def test_starting_loads_no_numpy(arguments: list[str]) -> None:
    started = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True,
                             check=True, cwd=ROOT.parent)
    loaded = {line.rsplit("|", 1)[-1].strip() for line in started.stderr.splitlines() if "|" in line}
    assert "sublight" in loaded
    assert loaded & {"numpy", "rich", "msgspec", "zstandard", "cxxfilt", *HEAVY} == set()


def test_names_say_what_a_file_knows_about() -> None:
    names = {path.stem for path in FILES} | {path.parent.name for path in FILES}
    assert names & VAGUE == set()


def test_the_catalog_holds_no_code() -> None:
    kinds = {path.suffix for path in (ROOT / "catalog").rglob("*") if path.is_file()}
    assert kinds <= {".toml", ".json"}
