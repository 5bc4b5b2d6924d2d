"""JAX's errors as one sentence for a person."""

from __future__ import annotations

import re

__all__ = ["shortened"]

LONGEST = 160


def shortened(cause: BaseException) -> str:
    """Return the first telling line of what JAX or XLA raised."""
    lines = [line.strip() for line in str(cause).splitlines()]
    text = next((line for line in lines if line), "")
    text = re.sub(r"^[A-Z_]+: ", "", re.sub(r"\s+", " ", text)).rstrip(" .:")
    if len(text) > LONGEST:
        text = text[: LONGEST - 3] + "..."
    return text or type(cause).__name__
