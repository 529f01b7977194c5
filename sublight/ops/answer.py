"""This file knows about rules: what turns the arguments of a call into Ops. None: they do not tell; (): free."""

from __future__ import annotations

from collections.abc import Callable

from sublight.ops.arguments import Arguments
from sublight.ops.context import Context
from sublight.ops.op import Op

Answer = tuple[Op, ...] | None
Rule = Callable[[Arguments, Context], Answer]
