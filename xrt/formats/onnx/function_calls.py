"""How model-local functions call each other, before they are put in each other's places: functions may double a model each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from onnx import ModelProto, NodeProto

from xrt.errors import ModelError

__all__ = ["Key", "check_calls", "make_call_key", "nodes_inside"]

FREE = 100_000
"""Nodes that a model may have once its functions stand in their places, however few it holds."""
RATIO = 100
"""Beyond that, how many times the nodes that it holds."""
DEEPEST = 200
"""Functions that call one another in a line: the inliner descends once for each."""

Key: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of a function."""


def check_calls(model: ModelProto) -> None:
    """Raise ModelError if functions call themselves, or are too many or too deep to be inlined.

    Linear in the size of the model.
    """
    called = {(f.domain, f.name, f.overload): _Called.of(f.node) for f in model.functions}
    for called_by in called.values():
        called_by.keep(called)
    main = _Called.of(model.graph.node)
    main.keep(called)
    held = main.nodes + sum(one.nodes for one in called.values())
    total = _total(main, _sizes(called))
    if total > max(FREE, RATIO * held):
        raise ModelError(
            f"its model-local functions cannot be inlined: they would make {total} nodes of the {held} that the model holds; "
            f"at most {RATIO} times as many are allowed"
        )


@dataclass(slots=True)
class _Called:
    """What a list of nodes calls."""

    nodes: int = 0
    calls: Counter[Key] = field(default_factory=Counter)

    @classmethod
    def of(cls, nodes: Iterable[NodeProto]) -> _Called:
        called = cls()
        for node in nodes_inside(nodes):
            called.nodes += 1
            called.calls[make_call_key(node)] += 1
        return called

    def keep(self, known: Mapping[Key, object]) -> None:
        """Leave out what is no function of the model."""
        self.calls = Counter({key: count for key, count in self.calls.items() if key in known})


def make_call_key(node: NodeProto) -> Key:
    """Return which function the node calls, if there is one."""
    return node.domain, node.op_type, node.overload


def nodes_inside(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from nodes_inside(graph.node)


def _total(one: _Called, sizes: Mapping[Key, int]) -> int:
    """Return the number of nodes after the called functions are inlined."""
    return one.nodes + sum(count * (sizes[key] - 1) for key, count in one.calls.items())


def _sizes(called: Mapping[Key, _Called]) -> dict[Key, int]:
    """Return how many nodes each function is once those that it calls stand in their places."""
    sizes: dict[Key, int] = {}
    for key in called:
        _measure(key, called, sizes)
    return sizes


def _measure(first: Key, called: Mapping[Key, _Called], sizes: dict[Key, int]) -> None:
    """Add the sizes of a function and of all that it calls, the innermost first."""
    way = [(first, iter(called[first].calls))] if first not in sizes else []
    open_ = {first}
    while way:
        key, rest = way[-1]
        following = next((other for other in rest if other not in sizes), None)
        if following is None:
            sizes[key] = _total(called[key], sizes)
            open_.discard(key)
            way.pop()
            continue
        _check_way(following, open_)
        open_.add(following)
        way.append((following, iter(called[following].calls)))


def _check_way(key: Key, open_: set[Key]) -> None:
    name = ".".join(filter(None, key))
    if key in open_:
        raise ModelError(f"its model-local functions cannot be inlined: {name} is recursive, by way of {len(open_)} function(s)")
    if len(open_) >= DEEPEST:
        raise ModelError(
            f"its model-local functions cannot be inlined: more than {DEEPEST} call one another in a line, to {name}"
        )
