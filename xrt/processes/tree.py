"""Processes that a process has started: a killed one leaves them behind, and a compiler among them may go on for minutes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["kill", "list_descendants"]


def list_descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and those that they have; none where the system does not tell."""
    found: list[int] = []
    with suppress(OSError):
        for listing in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, listing.read_text("ascii").split()):
                found += [child, *list_descendants(child)]
    return found


def kill(processes: Iterable[int]) -> None:
    """Kill processes; those that have ended are no matter."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
