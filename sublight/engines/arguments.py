"""This file knows about arguments: words of a command line as settings and what no setting holds, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublight.engines.flags import ENDLESS, NEWEST, Flag, Table, Version, plain
from sublight.engines.shell import quoted, words_of
from sublight.errors import InputError

Extra = tuple[str, str]
SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}    # vllm/utils, human_readable_int
SECRET_FLAG = re.compile(r"(^|[-_.])(api-key|key|token|secret|password|auth)$", re.I)
SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|nvapi-)[A-Za-z0-9_-]{8,}|(?<=://)[^/@\s]+@")
WHOLLY = re.compile(r"\$\w+|\$\{\w+(?:\[[@*]\])?\}")
HIDDEN = "***"
TRUE, FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


@dataclass
class Said:
    """What arguments say: settings by name, flags that no setting holds, words without a flag, and doubts."""

    settings: dict[str, Any] = field(default_factory=dict)
    extra: list[Extra] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_arguments(table: Table, words: Sequence[str], version: Version) -> Said:
    """The arguments of an engine's command. Raises InputError where a known flag has a value it cannot have."""
    said = Said()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not is_flag(word):
            said.words.append(word)
            continue
        name, given = _split(table, word)
        row = table.named(name, version)
        if row is None or row.place != "flag":
            at = _unknown(table, said, name, given, words, at)
        elif row.type == "bool":
            at = _switch(said, row, name, given, words, at)
        else:
            if given is None:
                given, at = _next(table, row, name, words, at)
            _value(said, row, name, given)
        if row is not None and not row.within(version):
            said.notes.append(_out_of_range(table, row, name, version))
    return said


def is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not re.match(r"-[\d.]", word)


def _split(table: Table, word: str) -> tuple[str, str | None]:
    """A flag's name and the value that stands with it: --name=value, -O3, --config.key=value."""
    name, equals, value = word.partition("=")
    if not table.all_named(name):
        if name[:2] in ("-O",) and len(name) > 2 and name[2] != ".":
            return "-O", word[2:].lstrip("=")
        stem, dot, key = name.partition(".")
        row = table.named(stem) if dot else None
        if row is not None and row.type == "json" and equals:
            return stem, json.dumps(_nested(key, _scalar(value)))
    return name, value if equals else None


def _nested(path: str, value: Any) -> Any:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unknown(
    table: Table, said: Said, name: str, given: str | None, words: Sequence[str], at: int,
) -> int:
    """A flag that we do not know passes through, with all words that follow it up to the next flag."""
    values = [] if given is None else [given]
    while given is None and at < len(words) and not is_flag(words[at]):
        if values and WHOLLY.fullmatch(words[at]):
            said.notes.append(f"what {words[at]} holds is not known; it is left out")
        else:
            values.append(words[at])
        at += 1
    near = table.nearest(name)
    if near is not None:
        said.notes.append(f"{name} is not known and passes through as it is; {near} is known")
    said.extra.append((name, _kept(name, values)))
    return at


def _kept(name: str, values: Sequence[str]) -> str:
    """Values as shell text, without secrets."""
    if values and SECRET_FLAG.search(plain(name)):
        return HIDDEN
    return " ".join(quoted(SECRET_VALUE.sub(HIDDEN, value)) for value in values)


def _next(table: Table, row: Flag, name: str, words: Sequence[str], at: int) -> tuple[str, int]:
    if at >= len(words) or is_flag(words[at]):
        got = f"the flag {words[at]}" if at < len(words) else "the end of the command"
        raise InputError(f"{table.title}: a value ({row.type}) expected after {name}, got {got}")
    return words[at], at + 1


def _switch(said: Said, row: Flag, name: str, given: str | None, words: Sequence[str], at: int) -> int:
    if given is None and at < len(words) and words[at].lower() in ("true", "false"):
        given, at = words[at], at + 1
    on = True if given is None else given.lower() in TRUE
    if given is not None and given.lower() not in TRUE | FALSE:
        raise InputError(f"{name} expected true or false, got {given!r}")
    if row.negative is not None and plain(name) == plain(row.negative):
        on = not on
    if row.sets is None:
        said.extra.append((name, "" if given is None else quoted(given)))
    else:
        said.settings[row.sets] = row.on if on else off(row)
    return at


def off(row: Flag) -> Any:
    """What a switch means that is set to false."""
    return (not row.on) if isinstance(row.on, bool) else None


def _value(said: Said, row: Flag, name: str, text: str) -> None:
    if row.type == "json":
        _object(said, row, name, text)
    elif row.sets is None:
        said.extra.append((name, _kept(name, [text])))
    else:
        said.settings[row.sets] = ours(row, name, text)


def ours(row: Flag, name: str, text: Any) -> Any:
    """A value as the plan says it."""
    for theirs, our in row.values:
        if str(theirs).lower() == str(text).lower():
            return None if our == "" else our
    try:
        if row.type == "int":
            return int(text)
        if row.type == "size":
            return size(str(text))
        if row.type == "float":
            return float(text)
    except ValueError:
        raise InputError(_expected(row, name, str(text))) from None
    return text


def _expected(row: Flag, name: str, text: str) -> str:
    kind = {"int": "an integer", "size": "an integer or a size like 8k", "float": "a number"}[row.type]
    if "$" in text:
        return (f"{name} expected {kind}, got {text}, which the text does not set: put its value there, or "
                f"{text.strip('${}')}=… in a line before the command")
    return f"{name} expected {kind}, got {text!r}"


def size(text: str) -> int:
    """A number of tokens or sequences, as the engines read them.

    >>> size("8k"), size("8K"), size("25.6k")
    (8000, 8192, 25600)
    """
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if match is None or (not match[2] and "." in match[1]):
        raise ValueError(text)
    return round(float(match[1]) * SIZES[match[2]]) if match[2] else int(match[1])


def _object(said: Said, row: Flag, name: str, text: str) -> None:
    value = _scalar(text)
    keys = dict(row.keys)
    if not isinstance(value, dict):
        if "level" in keys and (isinstance(value, int) or text.isdigit()):
            said.settings[keys["level"]] = value
        elif "$" not in text and text[:1] == "{":
            raise InputError(f"{name} expected a JSON object in quotes, got {text!r}")
        said.extra.append((name, _kept(name, [text])))
        return
    before = next((pair for pair in said.extra if pair[0] == name), None)       # --config.a 1 --config.b 2
    if before is not None:
        said.extra.remove(before)
        value = {**_scalar(words_of(before[1])[0]), **value}
    for key, setting in keys.items():
        if key in value:
            said.settings[setting] = value[key]
    rest = {key: held for key, held in value.items() if key not in keys}
    if not row.template or rest != dict(row.template):
        said.extra.append((name, _kept(name, [json.dumps(value, separators=(",", ":"))])))


def read_keys(table: Table, keys: Mapping[str, Any], version: Version, said: Said) -> None:
    """Add what the keys of an options file say; they win over flags."""
    for path, value in keys.items():
        row = table.named(path, version)
        before = None if row is None or row.sets is None else said.settings.get(row.sets)
        if row is None or row.place != "key" or row.sets is None:
            hidden = SECRET_FLAG.search(plain(path)) is not None
            said.extra.append((path, json.dumps(HIDDEN if hidden else value)))
        elif row.type == "bool":
            if not isinstance(value, bool):
                raise InputError(f"options file: {path} expected true or false, got {value!r}")
            said.settings[row.sets] = row.on if value else off(row)
        else:
            said.settings[row.sets] = value if row.type == "key" or value is None else ours(row, path, value)
        if row is not None and not row.within(version):
            said.notes.append(_out_of_range(table, row, path, version))
        if before is not None and row is not None and said.settings[str(row.sets)] != before:
            said.notes.append(f"the options file says another {path} than the command; the file's counts")


def _out_of_range(table: Table, row: Flag, name: str, version: Version) -> str:
    said = ".".join(map(str, version))
    kind = "came with" if version < row.since else "went before"
    when = row.since if version < row.since else row.until
    now = None if row.sets is None else table.flag(row.sets, version)
    return (f"{name} {kind} {table.title} {'.'.join(map(str, when))}, this is {said}"
            + (f": there it is {now.name}" if now is not None and now.name != name else ""))


# ---- writing


@dataclass
class Written:
    """What a command must say: variables before it, flags, keys of an options file."""

    variables: list[Extra] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    keys: list[tuple[str, Any]] = field(default_factory=list)


def write_arguments(
    table: Table, settings: Mapping[str, Any], extra: Sequence[Extra], version: Version,
) -> Written:
    """Flags for all settings that neither silence nor the extra flags say. Raises InputError where this version of
    the engine has no flag that says a setting."""
    flags = [pair for pair in extra if pair[0].startswith("-")]
    implied = read_arguments(table, [word for pair in flags for word in _words(pair)], version).settings
    out = Written()
    objects = dict(flags)
    for setting, value in settings.items():
        if value == implied.get(setting, table.when_silent(setting, version)):
            continue
        if not _into_object(table, objects, setting, value, version):
            _say(table, out, setting, value, version)
    flags = [(name, objects.get(name, held)) if table.named(name) and _is_object(table, name) else (name, held)
             for name, held in flags if not (_is_object(table, name) and name not in objects)]
    flags += [(name, held) for name, held in objects.items() if name not in dict(flags)]
    out.flags.extend(" ".join(_written(pair)) for pair in flags)
    out.keys.extend((name, json.loads(held)) for name, held in extra if not name.startswith("-"))
    return out


def _is_object(table: Table, name: str) -> bool:
    row = table.named(name)
    return row is not None and row.type == "json"


def _words(pair: Extra) -> Iterator[str]:
    yield pair[0]
    yield from words_of(pair[1])


def _written(pair: Extra) -> Iterator[str]:
    name, held = pair
    if held.startswith("-") and not held[1:2].isdigit():
        yield f"{name}={held}"
    else:
        yield name
        if held:
            yield held


def _into_object(table: Table, objects: dict[str, str], setting: str, value: Any, version: Version) -> bool:
    """Say a setting in a JSON object that is there, or in a new one."""
    row = next((row for row in table.rows if row.type == "json" and setting in dict(row.keys).values()
                and row.within(version)), None)
    if row is None or not (row.template or row.name in objects):
        return False
    key = next(key for key, name in row.keys if name == setting)
    held = _scalar(words_of(objects[row.name])[0]) if row.name in objects else dict(row.template)
    if not isinstance(held, dict):
        return False
    if value == table.when_silent(setting, version):
        objects.pop(row.name, None)
    else:
        objects[row.name] = quoted(json.dumps({**held, key: value}, separators=(",", ":")))
    return True


def _say(table: Table, out: Written, setting: str, value: Any, version: Version) -> None:
    rows = [row for row in table.said(setting) if row.write and row.within(version)]
    for row in rows:
        if row.type == "key":
            out.keys.append((row.name, value))
            return
        theirs = _theirs(row, value)
        if theirs is None:
            continue
        if row.place == "variable":
            out.variables.append((row.name, quoted(theirs)))
        elif row.place == "key":
            out.keys.append((row.name, _typed(row, value, theirs)))
        else:
            out.flags.append(theirs if row.type == "bool" else f"{row.name} {quoted(theirs)}")
        return
    raise InputError(cannot(table, setting, value, version))


def _typed(row: Flag, value: Any, theirs: str) -> Any:
    if row.type == "bool":
        return value == row.on
    return value if row.type in ("int", "float", "size") else theirs


def _theirs(row: Flag, value: Any) -> str | None:
    """What a flag must say, of a switch the flag itself; None where it cannot say this."""
    if row.type == "bool":
        if value == row.on and type(value) is type(row.on):
            return row.name
        return (row.negative or (row.name if row.place == "key" else None)) if value == off(row) else None
    if value is None:
        return None
    for theirs, our in row.values:
        if our == value and type(our) is type(value):
            return str(theirs)
    if isinstance(value, bool) or (row.type in ("int", "size") and not isinstance(value, int)):
        return None
    return repr(value) if row.type == "float" else str(value)


def cannot(table: Table, setting: str, value: Any, version: Version) -> str:
    """Why a plan has no command."""
    which = table.title if version >= NEWEST else f"{table.title} {'.'.join(map(str, version))}"
    others = [row for row in table.said(setting) if row.write and _theirs(row, value) is not None]
    spans = [f"{row.name} from {'.'.join(map(str, row.since)) or 'the first'}"
             + (f" until {'.'.join(map(str, row.until))}" if row.until < ENDLESS else "") for row in others]
    hint = f"; other versions have {', '.join(spans)}" if spans else ""
    return f"{which} has no flag that says {setting.replace('_', ' ')} = {value!r}{hint}"
