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
"""Names the file that is there when something hangs."""


@dataclass(frozen=True)
class Announcing(FaultyEngine):
    """The faulty engine; when it begins to hang, it leaves a file."""

    def due(self, where: Where, count: int) -> bool:
        is_due = super().due(where, count)
        if is_due and self.how == "hang":
            Path(os.environ[HANGS]).touch()
        return is_due


def end_limits_at_hangs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Have every limit of a worker end when its engine hangs, and never before; return the file that says so.

    A limit in seconds would end for a machine that is busy as well.
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


def wait_until(value: Callable[[], bool]) -> None:
    """Wait for what nobody announces; fails after `PATIENCE`."""
    ends = time.monotonic() + PATIENCE
    while not value():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Whether a process is there, and is not one that has ended and that nobody has waited for."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
