"""What to do about nodes that no engine of a list takes: the engine that would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from xrt.engines.contract import registry
from xrt.errors import EngineError, PlanError

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function, Node

__all__ = ["with_advice"]

MOST_NODES = 8
"""Nodes that others are asked about; who takes these is likely to take the rest."""
PATIENCE = 5.0
"""Seconds after which no further engine is queried: the libraries of engines outside the list may have to be imported."""


def with_advice(
    error: PlanError,
    function: Function,
    listed: Collection[str],
    names: Iterable[str],
    create: Callable[[str], GraphCompiler] = registry.create,
) -> PlanError:
    """Return the error, extended by the first engine in ``names`` outside the list that supports the unsupported nodes.

    Returns the error unchanged if there is no such engine, or if the error names no nodes.
    """
    left = [node for node in function.nodes if node.name in set(error.nodes)]
    until = monotonic() + PATIENCE
    for name in names:
        if not left or monotonic() > until:
            break
        if name not in listed and _takes(name, left[:MOST_NODES], function, create):
            return PlanError(f"{error}\n  engine {name!r} is installed and takes them: add it to the list", error.nodes)
    return error


def _takes(name: str, nodes: Sequence[Node], function: Function, create: Callable[[str], GraphCompiler]) -> bool:
    try:
        engine = create(name)
    except EngineError:
        return False
    try:
        return all(engine.why_not(node, function) is None for node in nodes)
    except Exception:  # noqa: BLE001  # an engine that breaks is no advice
        return False
