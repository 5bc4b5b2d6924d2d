"""What a native crash says of the case that it came of: frames whose file name is the case.

A crash ends the process, and nothing of Python runs any more but ``faulthandler``, which pytest turns on: it prints the stack,
names of files and functions, and no values. So what is tried is called from a frame that has its description as file name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["describe", "note_case"]

P = ParamSpec("P")
R = TypeVar("R")

LONGEST = 480
"""Characters of a file name that faulthandler prints, less a few."""


def note_case(note: str, call: Callable[P, R]) -> Callable[P, R]:
    """Return the call, made from a frame whose file name is the note, cut to what is printed, on one line."""
    text = " ".join(note.split())
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."

    def case(*args: P.args, **kwargs: P.kwargs) -> R:
        return call(*args, **kwargs)

    code = case.__code__.replace(co_filename=shown)
    noted = FunctionType(code, case.__globals__, case.__name__, None, case.__closure__)
    return functools.wraps(call)(noted)


def describe(function: Function) -> str:
    """Return a Function on one line: its inputs, and its nodes with their attributes."""
    inputs = ", ".join(map(str, function.inputs))
    nodes = "; ".join(
        f"{', '.join(node.outputs)} = {node.op}({', '.join(node.inputs)})"
        + "".join(f" {a.name}={a.value!r:.40}" for a in node.attributes)
        for node in function.nodes
    )
    return f"({inputs}) {nodes}"
