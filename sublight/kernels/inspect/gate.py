"""This file knows about what compiled kernels must keep to: rules by kernel, and a baseline that must not get worse."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from sublight.errors import InputError
from sublight.kernels.inspect.compare import matched
from sublight.kernels.inspect.figures import Figures, kind_of, percent

POINT = 0.01                     # a limit of the tensor rate that falls by less is the same


@dataclass(frozen=True, slots=True)
class Rule:
    """What kernels whose name matches a pattern must keep to. None: not asked. Shares are between 0 and 1."""

    kernels: str = "*"                       # as the linker or as C++ spells it, with * and ?
    arch: str = "*"
    max_registers: int | None = None         # a thread
    max_stack: int | None = None             # bytes a thread
    max_shared: int | None = None            # bytes a block, static and dynamic, without the system's own
    max_spills: int | None = None            # loads and stores of local memory inside loops
    require_tensor: str | None = None        # a kind of tensor-core instruction: HGMMA, UTCHMMA, …
    min_tensor_limit: float | None = None    # of the main loop
    min_occupancy: float | None = None       # share of the SM's warps
    min_blocks: int | None = None            # an SM

    @property
    def needs_instructions(self) -> bool:
        """Whether resources alone do not answer it."""
        return any(asked is not None for asked in (self.max_spills, self.require_tensor, self.min_tensor_limit))


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that a kernel did not pass. unknown: it could not be checked, which a gate must not let pass."""

    kernel: str
    arch: str
    check: str                   # "max-registers 168", "baseline registers 168"
    got: str
    why: str = ""
    unknown: bool = False


def checked(kernels: Sequence[Figures], rules: Sequence[Rule], names: Sequence[str] = ()) -> tuple[Failure, ...]:
    """Every check of every rule that a kernel fails. names: as C++ spells the kernels, which patterns may match too.

    Raises InputError for a rule that matches no kernel: it would pass whatever happens."""
    spelled = names or [kernel.name for kernel in kernels]
    out: list[Failure] = []
    for rule in rules:
        mine = [kernel for kernel, name in zip(kernels, spelled, strict=True) if _matches(rule, kernel, name)]
        if not mine:
            raise InputError(f"the rule for {rule.kernels!r} on {rule.arch!r} matches none of {len(kernels)} kernels: "
                             f"{', '.join(sorted({kernel.name for kernel in kernels})[:5])} …")
        out += [failure for kernel in mine for failure in _failures(kernel, rule)]
    return tuple(out)


def _matches(rule: Rule, kernel: Figures, spelled: str) -> bool:
    return fnmatch.fnmatchcase(kernel.arch, rule.arch) and any(
        fnmatch.fnmatchcase(name, rule.kernels) for name in (kernel.name, spelled))


def _failures(kernel: Figures, rule: Rule) -> Iterator[Failure]:
    """In the order of the rule's fields."""
    unseen = "; ".join(kernel.notes)
    for name, most, got in (("max-registers", rule.max_registers, kernel.registers),
                            ("max-stack", rule.max_stack, kernel.stack),
                            ("max-shared", rule.max_shared, _shared(kernel, rule.max_shared)),
                            ("max-spills", rule.max_spills, kernel.hot_spills)):
        if most is not None and (got is None or got > most):
            yield _failure(kernel, f"{name} {most}", None if got is None else str(got),
                           _where_spilled(kernel) if name == "max-spills" and got else "",
                           kernel.unplaced if name == "max-spills" and kernel.unplaced else unseen)
    if rule.require_tensor is not None:
        yield from _without(kernel, rule.require_tensor, unseen)
    limit, least = kernel.tensor_limit, rule.min_tensor_limit
    if least is not None and (limit is None or limit < least - 1e-9):
        yield _failure(kernel, f"min-tensor-limit {percent(least)}", None if limit is None else percent(limit),
                       _why(kernel, "min-tensor-limit"), _no_limit(kernel) or unseen)
    yield from _occupied(kernel, rule, unseen)


def _shared(kernel: Figures, most: int | None) -> int | None:
    """Bytes of shared memory of a block. None: the dynamic ones are not known, and decide."""
    if kernel.shared is None:
        return None
    own = kernel.shared - kernel.reserved
    if kernel.dynamic_shared is None:
        return own if most is not None and own > most else None
    return own + kernel.dynamic_shared


def _no_limit(kernel: Figures) -> str:
    """Why a kernel whose instructions are known has no limit of the tensor rate; empty where they are not."""
    if kernel.instructions is None:
        return ""
    loop = kernel.main_loop
    if loop is None:
        return "no loop is found in it"
    if not loop.tensor:
        return "its loops have no tensor-core instructions"
    return "; ".join(loop.notes)


def _occupied(kernel: Figures, rule: Rule, unseen: str) -> Iterator[Failure]:
    """Occupancy. One that takes dynamic shared memory as none is an upper limit: it may fail, and never passes."""
    fit = kernel.occupancy
    for name, asked, least, got in (
            ("min-occupancy", rule.min_occupancy, percent(rule.min_occupancy or 0.0), fit.share if fit else None),
            ("min-blocks", rule.min_blocks, rule.min_blocks, fit.blocks if fit else None)):
        if asked is None:
            continue
        if fit and got is not None and got < asked - 1e-9:
            said = percent(fit.share) if name == "min-occupancy" else str(fit.blocks)
            yield Failure(kernel.name, kernel.arch, f"{name} {least}", said, _why(kernel, name))
        elif fit is None or kernel.at_most:
            yield _failure(kernel, f"{name} {least}", None, "", unseen)


def _failure(kernel: Figures, check: str, got: str | None, why: str, unseen: str) -> Failure:
    if got is None:
        return Failure(kernel.name, kernel.arch, check, "unknown", unseen or "this input does not tell", True)
    return Failure(kernel.name, kernel.arch, check, got, why)


def _without(kernel: Figures, kind: str, unseen: str) -> Iterator[Failure]:
    """The wanted kind of tensor-core instruction is not there."""
    if kernel.instructions is None:
        yield _failure(kernel, f"require-tensor {kind}", None, "", unseen)
    elif not any(kind_of(name).upper() == kind.upper() for name, _ in kernel.tensor):
        has = ", ".join(f"{count} {name}" for name, count in kernel.tensor) or "none"
        yield Failure(kernel.name, kernel.arch, f"require-tensor {kind}", has, "; ".join(kernel.fallbacks))


def _where_spilled(kernel: Figures) -> str:
    return ", ".join(f"{loop.spill_loads} loads and {loop.spill_stores} stores in the loop at {loop.start:#x}"
                     + (f" ({loop.line})" if loop.line else "")
                     for loop in kernel.loops if loop.hot and loop.spill_loads + loop.spill_stores)


def _why(kernel: Figures, check: str) -> str:
    if check == "min-tensor-limit":
        loop = kernel.main_loop
        return f"the loop at {loop.start:#x} is bound by {loop.binds}" if loop and loop.binds else ""
    return f"limited by {' and '.join(kernel.occupancy.limiters)}" if kernel.occupancy else ""


# ---- against a baseline


def renamed(before: Sequence[Figures], after: Sequence[Figures]) -> tuple[tuple[str, str], ...]:
    """Kernels of the baseline that are held against one of another name, the nearest."""
    return tuple((old.name, new.name) for old, new in matched(before, after)[0] if old.name != new.name)


def worse(before: Sequence[Figures], after: Sequence[Figures], *, instructions: bool = True) -> tuple[Failure, ...]:
    """What got worse of the baseline's kernels; one that is gone is a failure too, one that is new is none.
    instructions: those of either side are expected, and where they are not known that is a failure.

    Worse: more stack or more spills in loops, fewer blocks an SM, a kind of tensor-core instruction lost, the limit of
    the tensor rate down by a point; more registers count where they cost a block."""
    out: list[Failure] = []
    pairs, gone, _ = matched(before, after)
    for old, new in pairs:
        out += _worse(old, new)
        if instructions and old.instructions is None:
            out.append(Failure(new.name, new.arch, "baseline instructions", "unknown", "; ".join(old.notes) or
                               "the baseline was inspected with --resources-only", True))
    out += [Failure(old.name, old.arch, "baseline has it", "gone", "no kernel of that name or near it") for old in gone]
    return tuple(out)


def _worse(old: Figures, new: Figures) -> Iterator[Failure]:
    for name, was, now in (("stack", old.stack, new.stack), ("spills in loops", old.hot_spills, new.hot_spills)):
        if was is not None and (now is None or now > was):
            why = _where_spilled(new) if name != "stack" and now else ""
            yield _failure(new, f"baseline {name} {was}", None if now is None else str(now), why, "; ".join(new.notes))
    if old.occupancy and (new.occupancy is None or new.occupancy.blocks < old.occupancy.blocks):
        blocks = None if new.occupancy is None else str(new.occupancy.blocks)
        registers = f"registers {old.registers} -> {new.registers}"
        yield _failure(new, f"baseline blocks an SM {old.occupancy.blocks}", blocks, registers, "; ".join(new.notes))
    if old.occupancy is None and new.occupancy is None and (why := _needs_more(old, new)):
        yield _failure(new, "baseline blocks an SM", None, "",
                       f"{why}: whether that costs a block is not known without --warps N")
    for kind in sorted({kind_of(name) for name, _ in old.tensor}):
        yield from (Failure(failure.kernel, failure.arch, f"baseline tensor {kind}", failure.got, failure.why,
                            failure.unknown) for failure in _without(new, kind, "; ".join(new.notes)))
    if old.tensor_limit is not None and (new.tensor_limit is None or new.tensor_limit < old.tensor_limit - POINT):
        limit = None if new.tensor_limit is None else percent(new.tensor_limit)
        yield _failure(new, f"baseline tensor limit {percent(old.tensor_limit)}", limit,
                       _why(new, "min-tensor-limit"), "; ".join(new.notes))


def _needs_more(old: Figures, new: Figures) -> str:
    """What an SM holds less of, where the warps of a block are not known; empty: nothing that could cost a block."""
    return ", ".join(f"{name} {was} -> {now}" for name, was, now in (
        ("registers", old.registers, new.registers), ("shared", old.shared, new.shared),
        ("barriers", old.barriers, new.barriers)) if was is not None and now is not None and now > was)


# ---- rules from a file


def rules_of(text: str, where: str) -> tuple[Rule, ...]:
    """Rules of a TOML file: [[rule]] tables with `kernels` and the names of the options; percentages as numbers.

    Raises InputError for a key that no rule has."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where} is no TOML: {error}") from None
    rows = document.get("rule")
    if not isinstance(rows, list) or not rows or set(document) != {"rule"}:
        raise InputError(f"{where}: expected [[rule]] tables, got {', '.join(document) or 'nothing'}")
    return tuple(_rule(row, f"{where}, rule {number}") for number, row in enumerate(rows, 1))


def _rule(row: object, where: str) -> Rule:
    known = {field.name for field in fields(Rule)}
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected a table")
    values: dict[str, object] = {}
    for key, value in row.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InputError(f"{where}: no check {key!r}; expected {', '.join(sorted(known))}")
        values[name] = _value(name, value, f"{where}: {key}")
    if not set(values) - {"kernels", "arch"}:
        raise InputError(f"{where} checks nothing; expected one of {', '.join(sorted(known - {'kernels', 'arch'}))}")
    return Rule(**values)  # type: ignore[arg-type]


WORDS = ("kernels", "arch", "require_tensor")
SHARES = ("min_tensor_limit", "min_occupancy")


def _value(name: str, value: object, where: str) -> object:
    if name in WORDS:
        if not isinstance(value, str):
            raise InputError(f"{where} = {value!r}; expected a name")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InputError(f"{where} = {value!r}; expected a number, 0 or more")
    return share(value, name) if name in SHARES else int(value)


def share(percent: float, name: str) -> float:
    """A percentage as a share. Raises InputError beyond 0 to 100."""
    if not 0 <= percent <= 100:
        raise InputError(f"{name} {percent:g}: expected a percentage, 0 to 100")
    return percent / 100
