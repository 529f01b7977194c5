"""`sublight kernel inspect`: what compiled GPU code tells without a GPU."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.kernels.inspect.code import Launch
    from sublight.kernels.inspect.figures import Figures
    from sublight.show.predict_rows import Table

FORMATS = ("table", "json", "md", "html")
Skipped = tuple[tuple[str, int], ...]


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "inspect", help="registers, occupancy, spills and what binds each loop, from cubins and PTX",
        description="What compiled GPU code tells without a GPU: resources, occupancy and its limiter, spills and in "
                    "which loop, instruction mix, tensor-core instructions, and for each loop what binds it and the "
                    "upper limit of the tensor rate that follows.",
    )
    add_code(command)
    command.add_argument("--shape", metavar="MxN", help="of the result: waves of its tiles on --device")
    command.add_argument("--tile", metavar="MxN", help="of a block, for --shape")
    command.add_argument("--split", type=int, default=1, metavar="N", help="parts along K of each tile (default 1)")
    command.add_argument("--device", metavar="GPU", help="of the catalog, whose SMs, for --shape: h200, b200 …")
    add_output(command, FORMATS)
    command.set_defaults(run=run)


def add_code(command: Any, names: tuple[str, ...] = ("code",)) -> None:
    """Options that say which code, and how it is launched."""
    for name in names:
        command.add_argument(name, metavar="FILE|DIR" if name == "code" else name.upper(),
                             help="a cubin, PTX, a fatbin, a program or library with CUDA code, an entry of Triton's "
                                  "cache, or a folder of them")
    command.add_argument("--kernel", metavar="PATTERN", help="only kernels whose name matches (* and ?)")
    command.add_argument("--resources-only", action="store_true",
                         help="registers, memory and occupancy alone: nothing is disassembled")
    command.add_argument("--warps", type=int, metavar="N", help="of a block, where the code does not say")
    command.add_argument("--dynamic-shared", type=int, metavar="BYTES",
                         help="of a block, where the code does not say (Triton's cache does)")


def add_output(command: Any, formats: tuple[str, ...]) -> None:
    """Options of where it goes."""
    command.add_argument("--format", choices=formats, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")


def run(options: argparse.Namespace) -> int:
    """Read, and say."""
    from sublight.show import inspected

    output.check_writable(options.output, options.format)
    _check_waves(options)
    kernels, skipped = figures_of(options.code, options)
    if options.format == "json":
        from sublight.kernels.inspect.figures import as_document

        document = as_document(kernels, skipped)
        output.write_text(output.json_text(document | _wave_document(options, kernels)), options.output)
        return 0
    show = {"table": inspected.text, "md": inspected.as_markdown, "html": inspected.html}[options.format]
    output.write_text(show(kernels, skipped, _wave_table(options, kernels)), options.output)
    return 0


def figures_of(path: str, options: argparse.Namespace) -> tuple[tuple[Figures, ...], Skipped]:
    """Figures of the kernels in a file or folder that the options ask for."""
    from sublight.kernels.inspect.inspected import figures
    from sublight.kernels.inspect.read import found

    launch = asked_launch(options)
    with output.counting("files") as report:
        code = found(path, progress=report, instructions=not options.resources_only)
    kernels = tuple(figures(unit, function, launch) for unit in code.units for function in unit.functions)
    return chosen(kernels, options.kernel), code.skipped


def chosen(kernels: tuple[Figures, ...], pattern: str | None) -> tuple[Figures, ...]:
    """Those whose name, as the linker or as C++ spells it, matches."""
    import fnmatch

    from sublight.show.inspect_rows import short

    if pattern is None:
        return kernels
    kept = tuple(kernel for kernel in kernels
                 if any(fnmatch.fnmatchcase(name, pattern) for name in (kernel.name, short(kernel.name))))
    if not kept:
        names = ", ".join(sorted({short(kernel.name) for kernel in kernels})[:8])
        raise InputError(f"--kernel {pattern}: no kernel of that name; expected one of {names}")
    return kept


def asked_launch(options: argparse.Namespace) -> Launch:
    """What the user says of the launch. Raises InputError beyond what a block can have."""
    from sublight.kernels.inspect.code import Launch

    if options.warps is not None and not 1 <= options.warps <= 32:
        raise InputError(f"--warps {options.warps}: expected 1 to 32")
    if options.dynamic_shared is not None and options.dynamic_shared < 0:
        raise InputError(f"--dynamic-shared {options.dynamic_shared}: expected 0 or more")
    return Launch(options.warps, options.dynamic_shared)


# ---- waves


def _check_waves(options: argparse.Namespace) -> None:
    named = [name for name in ("shape", "tile", "device") if getattr(options, name)]
    if named and len(named) < 3:
        raise InputError(f"--{named[0]}: waves need --shape MxN, --tile MxN and --device GPU")
    if named:
        _size(options.shape, "--shape")
        _size(options.tile, "--tile")


def _size(text: str, option: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})[x×](\d{1,9})", text)
    if not found or not int(found[1]) or not int(found[2]):
        raise InputError(f"{option} {text}: expected two sizes such as 4096x7168")
    return int(found[1]), int(found[2])


def _waves(options: argparse.Namespace, kernels: tuple[Figures, ...]) -> list[tuple[Figures, Any]]:
    """Waves of each kernel whose occupancy is known."""
    from sublight.device import named
    from sublight.kernels.inspect.waves import waves

    if not options.shape:
        return []
    device = named(options.device)
    m, n = _size(options.shape, "--shape")
    tile_m, tile_n = _size(options.tile, "--tile")
    fit = [kernel for kernel in kernels if kernel.occupancy and kernel.occupancy.blocks]
    if not fit:
        raise InputError("--shape: the occupancy of no kernel is known; expected --warps N")
    _check_device(device.capability, device.title, fit)
    return [(kernel, waves(m, n, tile_m=tile_m, tile_n=tile_n, sms=device.limits.sms, split=options.split,
                           blocks_per_sm=kernel.occupancy.blocks, cluster=kernel.cluster or 1))
            for kernel in fit if kernel.occupancy]


def _check_device(capability: tuple[int, int] | None, title: str, kernels: list[Figures]) -> None:
    from sublight.kernels.inspect.occupancy import limits_of

    wrong = {kernel.arch for kernel in kernels
             if capability and limits_of(kernel.arch).capability.split(".")[0] != str(capability[0])}
    if wrong:
        raise InputError(f"--device {title}: code for {', '.join(sorted(wrong))} does not run there; expected a device "
                         "of its architecture")


def _wave_table(options: argparse.Namespace, kernels: tuple[Figures, ...]) -> Table | None:
    from sublight.show.inspect_rows import short, wave_rows

    found = _waves(options, kernels)
    if not found:
        return None
    title = (f"{options.shape} in tiles of {options.tile} on {options.device}, blocks of equal time; "
             "idle: share of slots x time without a block")
    return wave_rows([(short(kernel.name), one) for kernel, one in found], title)


def _wave_document(options: argparse.Namespace, kernels: tuple[Figures, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    found = _waves(options, kernels)
    rows = [{"kernel": kernel.name, "arch": kernel.arch} | asdict(one) for kernel, one in found]
    return {"waves": rows} if rows else {}


