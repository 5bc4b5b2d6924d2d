"""Which nodes of a refused region are to blame: found by compiling parts of it, so that the others stay with the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xrt.partition.questions import QuestionKeys

if TYPE_CHECKING:
    from xrt.graph import Function, Node

__all__ = ["MOST", "describe_patterns", "to_blame"]

MOST = 16
"""Parts of one region that are compiled to find out."""


def to_blame(patterns: Sequence[object], compiles: Callable[[Sequence[int]], bool], most: int = MOST) -> tuple[int, ...]:
    """Return the places of the nodes without which the region compiles; all where that cannot be found out.

    The region of all places is known not to compile. ``compiles`` is asked at most so often, each time about some places,
    ascending. The last node of the shortest beginning that does not compile is to blame, and with it, unless it is enough to
    leave it out alone, those of the same of ``patterns``. Where the questions are used up, what is known to compile stays.
    """
    kept, asked = list(range(len(patterns))), 0

    def fails(places: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return not compiles(places)

    while True:
        least, enough = 0, len(kept)
        while enough - least > 1 and asked < most:
            middle = (least + enough) // 2
            least, enough = (least, middle) if fails(kept[:middle]) else (middle, enough)
        if enough - least > 1 or asked >= most:
            return _others(kept[:least], len(patterns))
        culprit = kept[enough - 1]
        alone = [place for place in kept if place != culprit]
        others = [place for place in kept if patterns[place] != patterns[culprit]]
        if not alone or not fails(alone):
            return _others(alone, len(patterns))
        kept = others if len(others) < len(alone) else alone
        if not kept or (len(others) < len(alone) and asked < most and not fails(kept)):
            return _others(kept, len(patterns))


def _others(kept: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the places that are not kept."""
    left = set(range(count)) - set(kept)
    return tuple(sorted(left))


def describe_patterns(function: Function) -> list[object]:
    """Return for each node a key of the node and its neighbours: equal for the same node of equal blocks."""
    keys = QuestionKeys(function)
    own = {node.name: keys.key(node) or node.name for node in function.nodes}
    return [(own[node.name], _around(function, node, own)) for node in function.nodes]


def _around(function: Function, node: Node, own: dict[str, str]) -> tuple[object, ...]:
    before = (function.producer(name) for name in node.uses)
    after = (use.node for name in node.outputs if name for use in function.users(name))
    given = [own[one.name] if one is not None else "" for one in before]
    return (tuple(given), tuple(sorted(own.get(one.name, "") for one in after)))
