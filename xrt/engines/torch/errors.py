"""torch's errors as one sentence for a person."""

from __future__ import annotations

import re

from xrt.engines.toolkit.error_text import shorten

__all__ = ["summarize_error"]

LONGEST = 160


def summarize_error(cause: BaseException) -> str:
    """Return the first telling line of what torch raised."""
    lines = [line.strip() for line in str(cause).splitlines()]
    text = next((line for line in lines if line), "")
    return shorten(re.sub(r"\s+", " ", text).rstrip(" .:"), LONGEST) or type(cause).__name__
