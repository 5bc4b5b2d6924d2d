"""Data propagation: contents of small tensors, such as shapes that are computed, followed element by element.

A node and what is known of its inputs comes in; what its outputs hold goes out: numbers, names of extents, or nothing known.
Two equal names are never taken for a reason that a number is known: a declared name is a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xrt.passes.data_propagation.arithmetic import ARITHMETIC
from xrt.passes.data_propagation.contents import MOST_ELEMENTS, Contents, PropagationCase, Rule
from xrt.passes.data_propagation.moves import MOVES

if TYPE_CHECKING:
    from xrt.graph import Node, Type

__all__ = ["MOST_ELEMENTS", "PROPAGATED", "Contents", "propagate"]

_RULES: Mapping[str, Rule] = {**MOVES, **ARITHMETIC}

PROPAGATED = frozenset(_RULES)
"""Operators of ai.onnx whose contents are followed."""


def propagate(node: Node, inputs: Sequence[Contents | None], types: Sequence[Type | None]) -> Sequence[Contents | None] | None:
    """Return what the outputs of one of the `PROPAGATED` hold, given what its inputs hold and their types; None for nothing."""
    rule = _RULES[node.op_type]
    try:
        found = rule(PropagationCase(node, inputs, types))
    except (IndexError, ValueError, TypeError, OverflowError):
        return None  # inputs that do not fit the operator: the engine that runs the node will say so
    return [one if one is None or one.elements.size <= MOST_ELEMENTS else None for one in found]
