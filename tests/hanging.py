"""Events in place of times: an engine that announces its hang, limits that end at that moment, and interrupts that arrive."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from xrt.processes.ipc import receive
from xrt.testing.fault_injection import FaultyEngine, Where

PATIENCE = 300.0
"""Seconds after which a test that waits gives up; no machine is so busy."""

HANGS = "XRT_TEST_HANGS"
"""Environment variable with the path of the file that exists once an engine hangs."""


@dataclass(frozen=True)
class Announcing(FaultyEngine):
    """A faulty engine that creates a file when it begins to hang."""

    def is_due(self, where: Where, count: int) -> bool:
        is_due = super().is_due(where, count)
        if is_due and self.how == "hang":
            Path(os.environ[HANGS]).touch()
        return is_due


def end_limits_at_hangs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make each time limit of a worker expire when its engine hangs, and never before; return the file that signals the hang.

    A limit in seconds could also expire because the machine is busy.
    """
    hangs = folder / "hangs"
    monkeypatch.setenv(HANGS, str(hangs))

    def receive_unless_it_hangs(channel: socket.socket) -> Any:
        while not select.select([channel], [], [], 0.02)[0]:
            if hangs.exists():
                hangs.unlink()
                raise TimeoutError
        return receive(channel)

    monkeypatch.setattr("xrt.processes.client.receive", receive_unless_it_hangs)
    return hangs


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true; fails after `PATIENCE` seconds."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, "the condition did not become true"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
