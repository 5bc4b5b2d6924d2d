"""Where state is updated: by an engine that writes it in place, where the engine that would have the update copies it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.graph import Function, TensorType

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node
    from xrt.partition.eligible_engines import EligibleEngines

__all__ = ["LEAST_COPIED", "place_updates"]

LEAST_COPIED = 1 << 18
"""Bytes per call from which copies of state cost more than a region of its own: 20 us at 13 GB/s."""


def place_updates(
    function: Function, engines: Sequence[GraphCompiler], choices: EligibleEngines, devices: Sequence[str]
) -> EligibleEngines:
    """Return the choices without those by which state would be copied that another engine of the list updates in place.

    A state is an alias. Its update is the node that writes the output, and before that all nodes which only updates read: those
    whose result an engine may write over an input, and those of one element. They go together to the first engine that supports
    them and declares that it writes in place (`GraphCompiler.list_mutable_inputs`), on the same device. Nothing changes where the
    engines that the nodes would have copy less than `LEAST_COPIED` bytes. Linear in nodes and edges.
    """
    if not function.aliases or len(engines) < 2:
        return choices
    question = _Question(function, tuple(engines), choices.candidates(), tuple(devices))
    copied = {result: size for result, size in question.list_copied() if size is not None}
    nbytes = sum(copied.values())
    if nbytes < LEAST_COPIED:
        return choices
    for target in range(1, len(engines)):
        part = question.find_part(copied, target)
        if sum(size for result, size in copied.items() if function.position(result) in part) >= LEAST_COPIED:
            made = question.make_exclusions(part, target, nbytes)
            updating = dict.fromkeys(made, engines[target].spec)
            return replace(choices, exclusions={**choices.exclusions, **made}, updating_engines=updating)
    return choices


@dataclass(frozen=True, slots=True)
class _Question:
    function: Function
    engines: tuple[GraphCompiler, ...]
    candidates: Sequence[tuple[int, ...]]
    devices: tuple[str, ...]

    def list_copied(self) -> Iterator[tuple[str, int | None]]:
        """Yield the outputs of aliases that the first engine of their node would copy, with their bytes."""
        for _, result in self.function.aliases:
            place, type_ = self.function.position(result), self.function.get_type(result)
            if place is not None and isinstance(type_, TensorType) and self.candidates[place]:
                if not self._is_mutable(self.function.nodes[place], self.candidates[place][0]):
                    yield result, type_.nbytes

    def find_part(self, copied: dict[str, int], target: int) -> set[int]:
        """Return the nodes, by their number, that go to the engine."""
        function = self.function
        index = {node.name: number for number, node in enumerate(function.nodes)}
        kept = {value.name for value in function.outputs} - copied.keys()
        part: set[int] = set()
        for number in reversed(range(len(function.nodes))):
            node = function.nodes[number]
            if target not in self.candidates[number] or node.control or self.devices[target] != self.devices[self._first(number)]:
                continue
            users = {index[use.node.name] for name in node.outputs for use in function.users(name)}
            is_update = not copied.keys().isdisjoint(node.outputs) or bool(users)
            if not is_update or not users <= part or not kept.isdisjoint(node.outputs):
                continue
            if self._is_mutable(node, target) or all(self._is_scalar(name) for name in node.outputs):
                part.add(number)
        return part

    def make_exclusions(self, part: set[int], target: int, nbytes: int) -> dict[tuple[int, int], str]:
        """Return why each node of the part is not on the engines before the target."""
        spec = self.engines[target].spec
        found = {}
        for number in part:
            for engine in self.candidates[number]:
                if engine < target:
                    text = f"it updates state, of which engine {self.engines[engine].spec!r} would copy {nbytes:,} bytes per call"
                    found[number, engine] = f"{text}; engine {spec!r} updates it in place"
        return found

    def _first(self, number: int) -> int:
        return self.candidates[number][0]

    def _is_mutable(self, node: Node, engine: int) -> bool:
        """Whether the engine may write the result over an input of its type."""
        function = self.function
        type_ = function.get_type(node.outputs[0]) if node.outputs else None
        places = self.engines[engine].list_mutable_inputs(node, function)
        return type_ is not None and any(function.get_type(node.inputs[place]) == type_ for place in places)

    def _is_scalar(self, name: str) -> bool:
        type_ = self.function.get_type(name)
        return isinstance(type_, TensorType) and type_.shape is not None and all(extent == 1 for extent in type_.shape)
