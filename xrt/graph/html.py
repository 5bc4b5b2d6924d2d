"""Notebook rendering of a Function: inputs and outputs, a diagram of the nodes, operator counts, and its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from xrt.graph.function import Function
from xrt.graph.printer import format_type
from xrt.graph.types import TensorType, Value
from xrt.html.drawing import INPUTS_BOX, MOST, Box, Edge, draw_boxes, split_in_boxes
from xrt.html.formatting import format_count, size
from xrt.html.rendering import render_cell

__all__ = ["render_function"]

# The cell includes the text of Functions up to this many nodes.
PRINTED = 200
# Rows of the operator table; further operators are summed up in one row.
LISTED = 12


def render_function(function: Function) -> str:
    """Render the notebook cell of a Function."""
    weights = sum(constant.nbytes for constant in function.constants.values())
    facts = {
        "nodes": str(len(function.nodes)),
        "constants": f"{len(function.constants)}, {size(weights)}" if function.constants else None,
        "operators of": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in function.opsets.items()) or None,
        "updates": ", ".join(f"{target} with {source}" for target, source in function.aliases) or None,
    }
    ends: tuple[tuple[Sequence[Value], str], ...] = ((function.inputs, "input"), (function.outputs, "output"))
    kinds = Counter(node.op for node in function.nodes).most_common()
    rest = [(format_count(len(kinds) - LISTED, "other kind"), sum(n for _, n in kinds[LISTED:]))] if len(kinds) > LISTED else []
    return render_cell(
        "function.html",
        name=function.name,
        doc=function.doc,
        facts=facts,
        ends=[(value.name, role, format_type(value.type)) for values, role in ends for value in values],
        drawing=_draw(function) if function.nodes else None,
        operators=[*kinds[:LISTED], *rest],
        text=str(function) if len(function.nodes) <= PRINTED else "",
    )


def _draw(function: Function) -> dict[str, Any]:
    groups = split_in_boxes(len(function.nodes))
    what = f"The graph of {function.name}: {format_count(len(function.nodes), 'node')}"
    several = f", drawn in {MOST} boxes, each of them nodes that run one after the other" if len(function.nodes) > MOST else ""
    return draw_boxes([_make_box(function, group) for group in groups], _find_flows(function, groups), f"{what}{several}.")


def _make_box(function: Function, group: range) -> Box:
    nodes = [function.nodes[index] for index in group]
    first, last = nodes[0], nodes[-1]
    if first is last:
        made = next((format_type(function.get_type(name)) for name in first.defines), "")
        return Box((first.op, first.name, made), "op", f"{first.name} ({first.op})")
    kinds = ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in Counter(node.op for node in nodes).most_common())
    return Box((format_count(len(nodes), "node"), kinds, f"{first.name} to {last.name}"), "op", f"{first.name} to {last.name}")


def _find_flows(function: Function, groups: Sequence[range]) -> dict[Edge, int]:
    """Bytes that flow between boxes, counting each value once per box that reads it; unknown sizes count as 0."""
    box_of = {index: number for number, group in enumerate(groups, 1) for index in group}
    makers: Mapping[str, int] = {value.name: INPUTS_BOX for value in function.inputs} | {
        name: box_of[index] for index, node in enumerate(function.nodes) for name in node.defines
    }
    read = {(makers[name], box_of[i], name) for i, node in enumerate(function.nodes) for name in node.uses if name in makers}
    given = {(makers[value.name], len(groups) + 1, "") for value in function.outputs if value.name in makers}
    flows: Counter[Edge] = Counter()
    for source, target, name in sorted(read | given):
        if source != target:
            flows[source, target] += _count_bytes(function, name)
    return dict(sorted(flows.items()))


def _count_bytes(function: Function, name: str) -> int:
    kind = function.get_type(name) if name else None
    return (kind.nbytes or 0) if isinstance(kind, TensorType) else 0
