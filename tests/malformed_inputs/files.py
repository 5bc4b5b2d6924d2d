"""A mutant as files in a folder, some of which may be no files at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

__all__ = ["Files", "Folder", "Laid", "Link", "Pipe", "create_files"]


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Pipe:
    """A named pipe that nobody writes to."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An empty folder."""


Laid: TypeAlias = "bytes | Link | Pipe | Folder"
Files: TypeAlias = Mapping[str, Laid]
"""What lies at each path below the folder; ``..`` leads beside it, for what a reader must not reach."""


def create_files(files: Files, folder: Path) -> int:
    """Make the files, and return how many bytes they hold together."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        elif isinstance(content, Pipe):
            os.mkfifo(path)
        elif isinstance(content, Folder):
            path.mkdir()
        else:
            path.write_bytes(content)
    return sum(len(content) for content in files.values() if isinstance(content, bytes))
