"""Text in a model: protobuf hands over bytes where a string is not the UTF-8 that it must be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xrt.errors import ModelError

__all__ = ["check_texts", "text"]


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
