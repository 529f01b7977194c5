"""This file knows about where the code of a kernel lies: in a module of ours, or in a user's file.

A user's file is never imported by the process that judges: only its bytes are hashed there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.kernels.kernel import Kernel

CODE = (".py", ".cpp", ".hpp", ".cu")
OF_FILE = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel: its name, and the module that offers it in KERNELS, or the file that has it at its top level: a
    Kernel, or a function (inputs, outputs) that fills the outputs."""

    op: str
    name: str
    module: str | None = None
    path: str | None = None
    where: str = "cpu"

    def to_json(self) -> dict[str, Any]:
        return {"op": self.op, "name": self.name, "module": self.module, "path": self.path, "where": self.where}

    @property
    def source(self) -> str:
        """A hash of the code: of a user's file, that file; of ours, all files that a kernel of the operator may use.
        Raises InputError where it cannot be read."""
        files = [Path(self.path)] if self.path else _ours(str(self.module))
        found = hashlib.sha256()
        try:
            for path in files:
                found.update(path.name.encode() + b"\0" + path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot read the kernel's file {error.filename}: {error.strerror}") from None
        return found.hexdigest()[:16]

    def load(self) -> Kernel:
        """Import the code. Only for the process that runs it."""
        from sublight.kernels.kernel import Kernel

        if self.path is None:
            offered = import_module(str(self.module)).KERNELS
            ours: Kernel = next(kernel for kernel in offered if (kernel.op, kernel.name, kernel.where) == (
                self.op, self.name, self.where))
            return ours
        found = getattr(_module(self.path), self.name)
        if isinstance(found, Kernel):
            return found
        if not callable(found):
            raise TypeError(f"{self.name} is a {type(found).__name__}, expected a Kernel or a function")
        return Kernel(self.op, self.name, build=lambda shape, constants: found, refuses=lambda shape: None)


def _ours(module: str) -> list[Path]:
    """The operator's folder, what kernels share (`kernels/*.py`, `native`, `launch`)."""
    folder = Path(import_module(module).__file__ or "").parent
    near = [folder, *(folder.parent / name for name in ("native", "launch"))]
    return sorted(path for place in near for path in place.glob("*") if path.suffix in CODE) + sorted(
        folder.parent.glob("*.py"))


def _module(path: str) -> Any:
    import sys
    from importlib import util

    sys.path.insert(0, str(Path(path).resolve().parent))
    spec = util.spec_from_file_location(f"sublight_kernel_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def listed(op: str, *, where: str = "cpu") -> tuple[Entry, ...]:
    """All kernels of ours for an operator on this kind of device."""
    package = f"sublight.kernels.{op}"
    modules = [f"{package}.{name}" for name in import_module(package).IMPLEMENTATIONS]
    return tuple(Entry(op, kernel.name, module=module, where=where)
                 for module in modules for kernel in import_module(module).KERNELS if kernel.where == where)


def entry(op: str, text: str, *, where: str = "cpu") -> Entry:
    """What --kernel means: a name of ours, or FILE.py:NAME. Raises InputError naming those that there are."""
    if match := OF_FILE.fullmatch(text):
        path = Path(match["path"])
        if not path.is_file():
            raise InputError(f"no such file: {path}; --kernel takes a name, or FILE.py:NAME")
        return Entry(op, match["name"], path=str(path.resolve()), where=where)
    ours = listed(op, where=where)
    for found in ours:
        if found.name == text:
            return found
    names = ", ".join(found.name for found in ours) or "none on this kind of device"
    raise InputError(f"no kernel '{text}' for {op}; there are: {names}; or FILE.py:NAME")
