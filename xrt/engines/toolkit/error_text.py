"""Errors of libraries as one sentence: what every engine's ``errors.py`` is written with."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["remove_noise", "shorten"]


def remove_noise(text: str, patterns: Iterable[str]) -> str:
    """Return the text on one line, without what the regular expressions match, one after the other."""
    text = f"{' '.join(text.split())} "  # a pattern that ends with a space matches at the end too
    for pattern in patterns:
        text = re.sub(pattern, "", text)
    return text.strip(" .")


def shorten(text: str, limit: int) -> str:
    """Return the text, cut at so many characters with an ellipsis within them.

    >>> shorten("no rule for Frobnicate", 12)
    'no rule f...'
    """
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
