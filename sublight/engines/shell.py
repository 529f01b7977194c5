"""This file knows about shell text: which words a command has, without ever running anything.

Variables that the text itself sets are filled in; others stay as they are written (`$MODEL`). Text of commands in
`$( )` stays as it is, too.

    >>> read("TP=8 # ranks\\nHF_TOKEN=x vllm serve m --tp $TP 2>&1 | tee log").commands[-2]
    Command(words=('vllm', 'serve', 'm', '--tp', '8'), environment=('HF_TOKEN',))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublight.engines.arithmetic import evaluated
from sublight.errors import InputError

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1")
REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-((?:[^{}]|\$\{\w+\}|\$\(\([^{}]*\)\))*))?\})")
ARRAY = re.compile(r"\$\{(\w+)\[@\]\}")
ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*)\)\)")
BREAKS = ";&|\n"
# Variables that are never filled in; MAX_NUM_TOKENS and TOKENIZER hold no secret.
SECRET_NAME = re.compile(r"TOKEN(?!S(?:_|$)|IZ)|SECRET|PASSW|CREDENTIAL|API_?KEY|(?:^|_)(?:KEY|PASS|AUTH)(?:_|$)", re.I)
OPEN, CLOSE = {"if", "for", "while", "until", "case"}, {"fi", "done", "esac"}
PREFIXES = {"if", "then", "else", "elif", "do", "!", "{", "}", "fi", "done", "exec", "export", "time", "nohup", "sudo",
            "command", "set", "$", "env"}
PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./-]*>")       # documentation's <model>, not a redirection
MOST_TEXT = 1_000_000


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: its words, and names of the variables that are set for it alone (values are not kept)."""

    words: tuple[str, ...]
    environment: tuple[str, ...] = ()


@dataclass
class Script:
    """What a text does: its commands in order, files it writes with cat << EOF, and its comments.

    variables: values that the text sets, for filling in; they are for reading settings only, never for showing.
    """

    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    doubtful: bool = False               # a variable is set again under a condition: its first value stands


def read(text: str) -> Script:
    """The commands of a text. Raises InputError where a quotation does not end."""
    if len(text) > MOST_TEXT:
        raise InputError(f"a launch command expected, got a text of {len(text)} characters")
    return _Reader(text.replace("\r\n", "\n")).script()


def quoted(word: str) -> str:
    """A word as it must be written; references to variables and `$( )` stay what they are.

    >>> quoted("a b"), quoted("$HOME/a b"), quoted('$(f "x")')
    ("'a b'", '"$HOME/a b"', '"$(f "x")"')
    """
    if not (REFERENCE.search(word) or "$(" in word):
        return shlex.quote(word)
    out, at = "", 0
    while at < len(word):
        end = _closing(word, at + 1) if word.startswith("$(", at) else at + 1
        part = word[at:end]
        out += part if end > at + 1 else "\\" + part if part in '\\"`' else part
        at = end
    return f'"{out}"'


def _closing(text: str, at: int) -> int:
    """Where the bracket closes that opens at `at`."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text)


def words_of(text: str) -> tuple[str, ...]:
    """The words of a value that is kept as shell text (see `quoted`)."""
    commands = _Reader(text).script().commands
    return tuple(word for command in commands for word in command.words)


class _Reader:
    """One pass over the text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.out = text, 0, Script()
        self.words: list[str] = []
        self.depth = 0                                  # of conditions and loops, which are not evaluated
        self.pending: list[tuple[str, bool]] = []       # here-documents whose text follows the line
        self.target: str | None = None                  # the file that the command writes, or appends to
        self.append = False

    def script(self) -> Script:
        while self.at < len(self.text):
            self._step()
        self._finish()
        return self.out

    def _step(self) -> None:
        char = self.text[self.at]
        if char in " \t":
            self.at += 1
        elif self.text.startswith("\\\n", self.at):
            self.at += 2
        elif char == "#":
            end = self._line_end()
            self.out.comments.append(self.text[self.at + 1:end].strip())
            self.at = end
        elif char in BREAKS or char in "()":
            self._break(char)
        elif self.text.startswith("<<", self.at) and (here := HEREDOC.match(self.text, self.at)):
            self.pending.append((here[2], not here[1]))
            self.at = here.end()
        elif PLACEHOLDER.match(self.text, self.at):
            self._word_or_assignment()
        elif redirect := re.compile(r"\d?(?:>>|>&|&>|>|<)\s*").match(self.text, self.at):
            self.at, self.append = redirect.end(), ">>" in redirect[0]
            self.target = "".join(self._word()) if self.at < len(self.text) and self.text[self.at] != "\n" else None
        else:
            self._word_or_assignment()

    def _break(self, char: str) -> None:
        if char == "&" and self.text.startswith("&>", self.at):
            self.at += 1
            return
        self.at += 1
        target = self.target
        if char == "\n" and self.pending:
            self._here_documents(target)
        self._finish()

    def _here_documents(self, target: str | None) -> None:
        for end, fill in self.pending:
            found = re.compile(rf"^[ \t]*{end}[ \t]*$", re.M).search(self.text, self.at)
            stop = len(self.text) if found is None else found.start()
            body = self.text[self.at:stop]
            self.at = len(self.text) if found is None else found.end()
            if target is not None:
                before = self.out.files.get(target, "") if self.append else ""
                self.out.files[target] = before + (self._filled(body) if fill else body)
        self.pending.clear()

    def _finish(self) -> None:
        words, self.words, self.target = self.words, [], None
        names: list[str] = []
        while words and (words[0] in PREFIXES or (assigned := ASSIGNMENT.match(words[0]))):
            word = words.pop(0)
            if word not in PREFIXES and (assigned := ASSIGNMENT.match(word)):
                names.append(assigned[1])
                self._assign(assigned[1], word[assigned.end():], more=bool(assigned[2]))
            self._nest(word)
        if words:
            self._nest(words[0])
        if words or names:
            self.out.commands.append(Command(tuple(words), tuple(names)))

    def _nest(self, word: str) -> None:
        self.depth = max(0, self.depth + (word in OPEN) - (word in CLOSE))

    def _assign(self, name: str, value: str, *, more: bool) -> None:
        if SECRET_NAME.search(name):
            return
        before = self.out.variables.get(name)
        if self.depth and before is not None and not REFERENCE.search(before):
            self.out.doubtful = self.out.doubtful or before != value
            return
        self.out.variables[name] = (before or "") + value if more else value

    def _word_or_assignment(self) -> None:
        if not self.words and (array := re.compile(r"(\w+)(\+?)=\(").match(self.text, self.at)):
            self.at = array.end()
            self._array(array[1], bool(array[2]))
            return
        start = self.at
        parts = self._word()
        if ASSIGNMENT.match(self.text, start):
            parts = ["".join(parts)]
        self.words.extend(parts)

    def _array(self, name: str, more: bool) -> None:
        words: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            char = self.text[self.at]
            if char in " \t\n":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "#":
                self.at = self._line_end()
            else:
                words.extend(self._word())
        self.at += 1
        before = self.out.arrays.get(name)
        if self.depth and before is not None:
            self.out.doubtful = True
            return
        self.out.arrays[name] = (before or []) + words if more else words

    def _word(self) -> list[str]:
        """The word that begins here; a variable outside quotes may hold several words, or none."""
        text, plain = self.text, ""
        whole: list[str] = []
        any_quote = False
        while self.at < len(text):
            char = text[self.at]
            if char == "\\":
                plain += "" if text[self.at + 1:self.at + 2] == "\n" else text[self.at + 1:self.at + 2]
                self.at += 2
            elif char in "'\"":
                plain, any_quote = plain + self._quotation(char, whole), True
            elif char == "$":
                plain = self._variable(plain, whole)
            elif char == "`":
                end = text.find("`", self.at + 1)
                end = len(text) if end < 0 else end + 1
                plain, self.at = plain + text[self.at:end], end
            elif placeholder := PLACEHOLDER.match(text, self.at):
                plain, self.at = plain + placeholder[0], placeholder.end()
            elif char in " \t()<>" or char in BREAKS:
                break
            else:
                plain += char
                self.at += 1
        return [*whole, plain] if plain or (any_quote and not whole) else whole

    def _quotation(self, mark: str, whole: list[str]) -> str:
        start, out = self.at, ""
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == mark:
                self.at += 1
                return out
            following = self.text[self.at + 1:self.at + 2]
            array = ARRAY.match(self.text, self.at)
            if mark == '"' and char == "\\" and following and following in '"\\$`\n':
                out += following.replace("\n", "")
                self.at += 2
            elif mark == '"' and array is not None:
                self.at = array.end()
                whole.extend(self.out.arrays.get(array[1], [array[0]]))
            elif mark == '"' and char == "$" and following == "(":
                out += self._substitution()
            elif mark == '"' and char == "$":
                match = REFERENCE.match(self.text, self.at)
                out += char if match is None else self._filled(match[0])
                self.at += 1 if match is None else len(match[0])
            else:
                out += char
                self.at += 1
        line = self.text.count("\n", 0, start) + 1
        raise InputError(f"a closing {mark} expected for the one that opens in line {line} of the command")

    def _variable(self, plain: str, whole: list[str]) -> str:
        """What `$…` adds to the word so far."""
        if self.text.startswith("$(", self.at):
            return plain + self._substitution()
        match = REFERENCE.match(self.text, self.at)
        if match is None:
            self.at += 1
            return plain + "$"
        self.at = match.end()
        name = match[1] or match[2]
        value = self.out.variables.get(name, None if match[3] is None else self._filled(match[3].strip("'\"")))
        if value is None and name not in self.out.arrays:
            return plain + match[0]
        if value is not None and "$(" in value:
            return plain + value
        words = self.out.arrays[name] if value is None else value.split()
        if not words:
            return plain
        *first, last = words
        if first:
            whole.extend([plain + first[0], *first[1:]])
            return last
        return plain + last

    def _substitution(self) -> str:
        """`$( … )`, as it is; of arithmetic the value."""
        end = _closing(self.text, self.at + 1)
        text, self.at = self.text[self.at:end], end
        return self._filled(text) if text.startswith("$((") else text

    def _filled(self, text: str, depth: int = 0) -> str:
        """Text with arithmetic and variables filled in, as far as they are set."""
        variables: Mapping[str, str] = self.out.variables

        def value(match: re.Match[str]) -> str:
            held = variables.get(match[1] or match[2], None if match[3] is None else match[3].strip("'\""))
            return match[0] if held is None else self._filled(held, depth + 1) if depth < 3 else held

        def number(match: re.Match[str]) -> str:
            return evaluated(match[1], variables) or match[0]
        return REFERENCE.sub(value, ARITHMETIC.sub(number, text))

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end
