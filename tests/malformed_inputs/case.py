"""A reader, what is valid for it, and the mutants that are made of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from tests.malformed_inputs.files import Files
from tests.malformed_inputs.mutators import Damage, mutate

__all__ = ["Crafted", "HostileCase", "Reader"]


@dataclass(frozen=True, slots=True)
class Crafted:
    """Files written to do harm in one certain way."""

    files: Files
    """The first is the one that the reader is given."""
    refused: bool = True
    """Whether reading them must be an error; else it may as well succeed."""


@dataclass(frozen=True, slots=True)
class HostileCase:
    """What a reader is given once."""

    reader: str
    name: str
    """The seed of a mutant, or the name of a crafted case."""
    files: Files
    refused: bool = False

    @property
    def main(self) -> str:
        """The file that the reader is given."""
        return next(iter(self.files))

    def __str__(self) -> str:
        return f"{self.reader}, {self.name}"


@dataclass(frozen=True)
class Reader:
    """Something of XRT that takes a file, or a text in a file, from anywhere."""

    name: str
    read: Callable[[Path], object]
    """Must return, or raise an XRTError."""
    make_samples: Callable[[], tuple[Files, ...]]
    """Valid files, which it reads without an error."""
    damages: tuple[Damage, ...]
    make_crafted: Callable[[], Mapping[str, Crafted]] = dict

    @cached_property
    def samples(self) -> tuple[Files, ...]:
        return self.make_samples()

    @cached_property
    def crafted(self) -> Mapping[str, Crafted]:
        return self.make_crafted()

    def case(self, name: str) -> HostileCase:
        """Return the mutant of a seed, or the crafted case of that name."""
        if name in self.crafted:
            crafted = self.crafted[name]
            return HostileCase(self.name, name, crafted.files, crafted.refused)
        chance = Random(f"{self.name} {name}")
        files = dict(chance.choice(self.samples))
        chosen = chance.choice([path for path, content in files.items() if isinstance(content, bytes)])
        content = files[chosen]
        assert isinstance(content, bytes)
        files[chosen] = mutate(content, self.damages, chance)
        return HostileCase(self.name, name, files)
