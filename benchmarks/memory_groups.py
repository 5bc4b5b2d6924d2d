"""Limits on the memory of groups of processes, by control groups of Linux; needs the rights to make one (root, as a rule)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["MemoryGroup", "limit_memory"]

ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A control group, of version 1 or 2."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self._is_first = (ROOT / "memory").is_dir()
        self.path = (ROOT / "memory" if self._is_first else ROOT) / name
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if self._is_first else "memory.max")).write_text(str(size))
        if not self._is_first:
            (self.path / "memory.swap.max").write_text("0")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Have this process in the group for a while: what it starts meanwhile is in it from the start, and stays."""
        kind = ":memory:" if self._is_first else "0::"
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if kind in line)
        before = (ROOT / "memory" if self._is_first else ROOT) / line.split(":", 2)[2].lstrip("/")
        self._move(self.path)
        try:
            yield
        finally:
            self._move(before)

    def _move(self, path: Path) -> None:
        (path / "cgroup.procs").write_text(str(os.getpid()))

    def count_killed(self) -> int:
        """Return how many processes the system has killed because the group had no memory left."""
        text = (self.path / ("memory.oom_control" if self._is_first else "memory.events")).read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def count_bytes(self) -> int:
        """Return the bytes that its processes hold and the system cannot drop."""
        kind = "total_rss " if self._is_first else "anon "
        lines = (self.path / "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(kind))

    def remove(self, seconds: float = 30) -> None:
        """Remove the group, once its processes have ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.1)


@contextmanager
def limit_memory(size: int, count: int) -> Iterator[list[MemoryGroup]]:
    """Make so many groups of that many bytes each, and remove them in the end."""
    groups: list[MemoryGroup] = []
    try:
        groups.extend(MemoryGroup(f"xrt-{os.getpid()}-{number}", size) for number in range(count))  # what was made is kept
        yield groups
    finally:
        for group in groups:
            group.remove()
