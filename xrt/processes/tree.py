"""Descendants of a process. Killing a process does not end them, and a compiler among them may run for minutes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["kill", "list_descendants"]


def list_descendants(process: int) -> list[int]:
    """All descendants of a process; empty if the system does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for listing in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, listing.read_text("ascii").split()):
                found += [child, *list_descendants(child)]
    return found


def kill(processes: Iterable[int]) -> None:
    """Kill processes; ignores those that have ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
