"""What IREE's compiler says, as one sentence for a person."""

from __future__ import annotations

import re
import signal

from xrt.engines.toolkit.error_text import shorten

__all__ = ["LIBRARY", "describe_exit", "summarize_error"]

LIBRARY = "IREE"
LONGEST = 200


def summarize_error(said: str) -> str:
    """Return the first error of the compiler's output, without positions in a file that does not exist."""
    lines = said.splitlines()
    errors = [line for line in lines if "error: " in line or "ERROR: " in line] or [line for line in lines if line.strip()]
    text = errors[0].strip() if errors else "it said nothing"
    unknown = re.search(r'failed to legalize operation \'torch\.operator\'.*name = "onnx\.(\w+)"', text)
    if unknown:
        return f"it has no rule to lower this {unknown[1]}"
    text = re.sub(r"^.*?(?:error|ERROR): ", "", text)
    text = re.sub(r"^(failed to legalize operation '[\w.]+').*$", r"\1", text)
    return shorten(text, LONGEST)


def describe_exit(code: int) -> str:
    """Return how a process of that exit status ended, for one that has not said."""
    return f"it crashed ({signal.Signals(-code).name})" if code < 0 else f"it ended with status {code}"
