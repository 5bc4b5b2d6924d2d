"""Names and texts of a model: unused names, UTF-8 checks, and error messages of the onnx package."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["FreshNames", "check_texts", "summarize_error", "text"]


class FreshNames:
    """Generates names unused in a Function and its bodies: ONNX forbids shadowing an outer name."""

    def __init__(self, function: Function) -> None:
        self._taken = set(_all_names(function))

    def take(self, name: str) -> str:
        """Reserve ``name``, or a similar name if it is in use."""
        if name in self._taken:
            return self.like(name)
        self._taken.add(name)
        return name

    def like(self, name: str) -> str:
        """Reserve a new name derived from ``name``."""
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
    """Check that the value is a string; raises ModelError otherwise."""
    if isinstance(value, str):
        return value
    raise ModelError(f"{what} is not UTF-8 text: {value!r}")


def check_texts(values: Iterable[Any], what: str) -> None:
    """Raise ModelError unless all values are strings. One pass in C: a model has hundreds of thousands of names."""
    values = list(values)
    try:
        "".join(values)
    except TypeError:
        for value in values:
            text(value, what)


def summarize_error(error: Exception) -> str:
    """The message without the leading source file, line and assertion."""
    text = re.sub(r"^.*Assertion `.*?` failed: ", "", str(error), flags=re.DOTALL).strip()
    return text or f"onnx gives no reason ({type(error).__name__})"
