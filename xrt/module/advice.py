"""What to do about nodes that no engine of a list takes: the engine that would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic

from xrt.engines import GraphCompiler, registry
from xrt.errors import EngineError, PlanError
from xrt.graph import Function, Node

__all__ = ["with_advice"]

MOST_NODES = 8
"""Nodes that others are asked about; who takes these is likely to take the rest."""
PATIENCE = 5.0
"""Seconds after which nobody else is asked: the libraries of engines that are not in the list may have to be imported."""


def with_advice(
    error: PlanError,
    function: Function,
    listed: Collection[str],
    names: Iterable[str],
    create: Callable[[str], GraphCompiler] = registry.create,
) -> PlanError:
    """Return the error with the first engine, among those named and not listed, that takes what nobody in the list does.

    The error itself where there is none, or where it is not about such nodes.
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
