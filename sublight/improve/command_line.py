"""This file knows about a command line that is changed: options and variables are added or replaced, secrets are not
shown, and the rest stays as it was written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublight.engines.shell import SECRET_NAME, quoted

ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)


@dataclass(frozen=True, slots=True)
class Line:
    """variables: set for this command, with their values; None: a value that is not shown."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, str | None], ...] = ()

    @property
    def docker(self) -> bool:
        return self.words[:2] == ("docker", "run")

    def value(self, *names: str) -> str | None:
        """Of an option, `--x v` or `--x=v`; "" where it has none; None where it is not there. The last one counts."""
        found = None
        for at, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names:
                after = self.words[at + 1] if at + 1 < len(self.words) else ""
                found = value if equals else "" if after.startswith("--") else after
        return found

    def has(self, *names: str) -> bool:
        return self.value(*names) is not None

    def variable(self, name: str) -> str | None:
        """Of the environment; "" for a value that is not known."""
        held = dict(self.variables)
        if name in held:
            return held[name] or ""
        return next((m[2] for word in self.words if (m := ASSIGNED.fullmatch(word)) and m[1] == name), None)

    def with_option(self, name: str, value: str | None) -> Line:
        """With this option, in the place of the same one, else last. value: None for a switch."""
        words = list(self.words)
        for place, word in enumerate(words):
            held, equals, _ = word.partition("=")
            if held == name:
                width = 1 if equals or value is None else 2
                words[place : place + width] = [f"{held}={value}"] if equals else [held, *([value] if value else [])]
                return replace(self, words=tuple(words))
        return replace(self, words=(*words, name, *([] if value is None else [value])))

    def without(self, *names: str) -> Line:
        """Without these switches."""
        return replace(self, words=tuple(word for word in self.words if word.partition("=")[0] not in names))

    def with_variable(self, name: str, value: str) -> Line:
        if self.docker:
            words = list(self.words)
            words[2:2] = ["-e", f"{name}={value}"]
            return replace(self, words=tuple(words))
        kept = tuple((n, v) for n, v in self.variables if n != name)
        return replace(self, variables=(*kept, (name, value)))

    def text(self) -> str:
        """As it is typed. Values of secrets are references to their names."""
        head = [f"{name}={_value(name, value)}" for name, value in self.variables]
        return " ".join([*head, *_shown(self.words)])


def line(words: Sequence[str], names: Sequence[str], values: Mapping[str, str]) -> Line:
    """A command of a script."""
    return Line(tuple(words), tuple((name, values.get(name)) for name in names))


def _value(name: str, value: str | None) -> str:
    return f"${name}" if value is None or SECRET_NAME.search(name) else quoted(value)


def _shown(words: Sequence[str]) -> list[str]:
    out: list[str] = []
    hide = None
    for word in words:
        name, equals, _ = word.partition("=")
        secret = SECRET_NAME.search(name.lstrip("-").replace("-", "_")) is not None
        if hide is not None and not word.startswith("-"):
            out.append(f'"${hide}"')
        elif secret and equals:
            out.append(f"{name}=${_variable(name)}")
        else:
            out.append(quoted(word))
        hide = _variable(name) if secret and not equals and word.startswith("-") else None
    return out


def _variable(option: str) -> str:
    return option.lstrip("-").replace("-", "_").upper()
