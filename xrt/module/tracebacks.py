"""Tracebacks that end where the user's code calls XRT.

An error of XRT says what is wrong in its text; the frames inside of XRT help only who works on XRT. ``XRT_TRACEBACK=full``
in the environment keeps them. The cause of an error keeps its own traceback.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from xrt.errors import XRTError

__all__ = ["shorten_tracebacks"]

C = TypeVar("C", bound=type)
_MORE = ("__init__", "_call")
"""Methods that are wrapped in addition to the public ones: ``__call__`` is the fast path, and leaves what may fail to
``_call``."""


def shorten_tracebacks(cls: C) -> C:
    """Let an XRTError that a public method or property raises show at most two frames of XRT."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _MORE:
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, _shorten(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(_shorten(member.fget), member.fset, member.fdel, member.__doc__))
    return cls


def _shorten(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except XRTError as error:
            if os.environ.get("XRT_TRACEBACK") == "full":
                raise
            raise error.with_traceback(None)  # noqa: B904  # the same error: its cause and context stay

    return call
