"""A file as memory: mapped read-only, with what tells it from itself after a change."""

from __future__ import annotations

import mmap
import os
import time
from typing import TYPE_CHECKING

from xrt.graph.memory_map import FileIdentity, Mapping

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SETTLED", "map_file"]

SETTLED = 2_000_000_000
"""Nanoseconds after which a file's times tell a change: within the clock's grain, two changes look like one."""


def map_file(file: int, path: Path | None = None) -> memoryview:
    """Return the content of an open file, which remembers the path if it is given."""
    status = os.fstat(file)
    if not status.st_size:
        return memoryview(b"")  # an empty file cannot be mapped
    mapping = Mapping(file, 0, access=mmap.ACCESS_READ)
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if changed + SETTLED < time.time_ns():
        mapping.stamp = FileIdentity(status.st_dev, status.st_ino, status.st_size, changed)
    mapping.path, mapping.inode = path, (status.st_dev, status.st_ino)
    return memoryview(mapping)
