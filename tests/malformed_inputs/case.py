"""A reader, what is valid for it, and the mutants that are made of that: files in a folder, some of which may be no files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TypeAlias

from tests.malformed_inputs.mutators import Damage, mutate


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


@dataclass(frozen=True, slots=True)
class Case:
    """What a reader is given once: files written to do harm in one certain way, or damaged by a seed."""

    files: Files
    """The first is the one that the reader is given."""
    refused: bool = True
    """Whether reading them must be an error; else it may as well succeed."""

    @property
    def main(self) -> str:
        """The file that the reader is given."""
        return next(iter(self.files))


@dataclass(frozen=True)
class Reader:
    """Something of XRT that takes a file, or a text in a file, from anywhere."""

    name: str
    read: Callable[[Path], object]
    """Must return, or raise an XRTError."""
    make_samples: Callable[[], tuple[Files, ...]]
    """Valid files, which it reads without an error."""
    damages: tuple[Damage, ...]
    make_crafted: Callable[[], Mapping[str, Case]] = dict

    @cached_property
    def samples(self) -> tuple[Files, ...]:
        return self.make_samples()

    @cached_property
    def crafted(self) -> Mapping[str, Case]:
        return self.make_crafted()

    def case(self, name: str) -> Case:
        """Return the mutant of a seed, or the crafted case of that name."""
        if name in self.crafted:
            return self.crafted[name]
        chance = Random(f"{self.name} {name}")
        files = dict(chance.choice(self.samples))
        chosen = chance.choice([path for path, content in files.items() if isinstance(content, bytes)])
        content = files[chosen]
        assert isinstance(content, bytes)
        files[chosen] = mutate(content, self.damages, chance)
        return Case(files, refused=False)
