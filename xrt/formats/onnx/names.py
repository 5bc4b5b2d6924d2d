"""Names and texts of a model: unused names, text that must be UTF-8, error messages of the onnx package."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["FreshNames", "check_texts", "summarize_error", "text"]


class FreshNames:
    """Makes value names that are new to a whole Function, bodies included: ONNX lets no body shadow an outer name."""

    def __init__(self, function: Function) -> None:
        self._taken = set(_all_names(function))

    def take(self, name: str) -> str:
        """Return the name itself where it is new, and one like it elsewhere."""
        if name in self._taken:
            return self.like(name)
        self._taken.add(name)
        return name

    def like(self, name: str) -> str:
        """Return a new name that shows where it comes from."""
        count = 2
        while (fresh := f"{name}_{count}") in self._taken:
            count += 1
        self._taken.add(fresh)
        return fresh


def _all_names(function: Function) -> list[str]:
    names = [*function.value_names(), *function.captures]
    for node in function.nodes:
        for body in node.bodies:
            names += _all_names(body)
    return names


def text(value: Any, what: str) -> str:
    """Return the string; raises ModelError where it is not one."""
    if isinstance(value, str):
        return value
    raise ModelError(f"{what} is not UTF-8 text: {value!r}")


def check_texts(values: Iterable[Any], what: str) -> None:
    """Raise ModelError unless all are strings. One pass in C: a model has hundreds of thousands of names."""
    values = list(values)
    try:
        "".join(values)
    except TypeError:
        for value in values:
            text(value, what)


def summarize_error(error: Exception) -> str:
    """Return the sentence without the source file, line and assertion in front of it."""
    text = re.sub(r"^.*Assertion `.*?` failed: ", "", str(error), flags=re.DOTALL).strip()
    return text or f"onnx gives no reason ({type(error).__name__})"
