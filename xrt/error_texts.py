"""What errors and warnings have in common: a suggestion in a message, and the caller's line."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

__all__ = ["did_you_mean", "warn"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known word, or an empty string when none is near.

    >>> did_you_mean("ort2", ["toy", "ort"])
    " Did you mean 'ort'?"
    >>> did_you_mean("zebra", ["toy", "ort"])
    ''
    """
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


_PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[UserWarning]) -> None:
    """Issue a warning located at the nearest caller outside of the package.

    From Python 3.12 on ``skip_file_prefixes`` does the same.
    """
    level = 1
    frame = sys._getframe()
    passed_over = (_PACKAGE, functools.__file__)  # the latter for a cached_property of the package
    while frame.f_back is not None and frame.f_code.co_filename.startswith(passed_over):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
