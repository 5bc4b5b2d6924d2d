"""What onnx's C++ says when it cannot do something, as a sentence for a person."""

from __future__ import annotations

import re

__all__ = ["summarize_error"]


def summarize_error(error: Exception) -> str:
    """Return the sentence without the source file, line and assertion in front of it."""
    text = re.sub(r"^.*Assertion `.*?` failed: ", "", str(error), flags=re.DOTALL).strip()
    return text or f"onnx gives no reason ({type(error).__name__})"
