"""Copies: each value that one device makes and another reads crosses once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.graph import Function, TensorType, Type

if TYPE_CHECKING:
    from xrt.partition.plan import Launch

__all__ = ["Transfer", "find_transfers"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that crosses from one device to another, however many launches read it there."""

    value: str
    type: Type | None
    source: str
    """Where the value is made; for an input of the model, the plan's device."""
    target: str
    readers: tuple[str, ...]
    """The launches that read it there, in the plan's order; the model's caller, of an output, is no launch."""

    @property
    def nbytes(self) -> int | None:
        """Bytes that cross; None where they are known only at run time."""
        return self.type.nbytes if isinstance(self.type, TensorType) else None

    def __str__(self) -> str:
        shown = f"{self.value}: {self.type}" if self.type is not None else self.value
        return f"{shown} from {self.source} to {self.target} for {', '.join(self.readers) or 'the caller'}"


def find_transfers(function: Function, launches: Iterable[Launch], device: str) -> Iterator[Transfer]:
    """Yield the copies of a plan in the order in which the values are made; ``device`` is the plan's own.

    Constants do not cross: each region has its own, where it runs. Linear.
    """
    launches = tuple(launches)
    if all(launch.device in ("", device) for launch in launches):
        return
    made: dict[str, tuple[str, Type | None]] = {value.name: (device, value.type) for value in function.inputs}
    for launch in launches:
        made.update((value.name, (launch.device or device, value.type)) for value in launch.function.outputs)
    read: dict[tuple[str, str], list[str]] = {}
    for launch in launches:
        for name in launch.inputs:
            read.setdefault((name, launch.device or device), []).append(launch.name)
    for value in function.outputs:
        read.setdefault((value.name, device), [])
    wanted: dict[str, list[str]] = {}
    for name, target in read:
        wanted.setdefault(name, []).append(target)
    for name, (source, type_) in made.items():
        for target in wanted.get(name, ()):
            if target != source:
                yield Transfer(name, type_, source, target, tuple(read[name, target]))
