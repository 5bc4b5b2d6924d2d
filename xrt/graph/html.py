"""A Function as a notebook shows it: what it takes and gives, its nodes as a drawing, its operators, and its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from xrt.graph.function import Function
from xrt.graph.printer import format_type
from xrt.graph.types import TensorType, Value
from xrt.html.document import make_cell
from xrt.html.drawing import INPUTS_BOX, MOST, Box, draw_boxes, split_in_boxes
from xrt.html.formatting import format_count, size
from xrt.html.layers import Edge
from xrt.html.markup import Markup, join_markup, tag
from xrt.html.tables import fold, make_facts, make_scrolling, make_table, make_text

__all__ = ["render_function"]

PRINTED = 200
"""Nodes up to which the text is part of the cell."""
LISTED = 12
"""Operators that the table has; the others are summed up."""


def render_function(function: Function) -> str:
    """Return the cell of a Function."""
    weights = sum(constant.nbytes for constant in function.constants.values())
    facts = {
        "nodes": str(len(function.nodes)),
        "constants": f"{len(function.constants)}, {size(weights)}" if function.constants else None,
        "operators of": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in function.opsets.items()) or None,
        "updates": ", ".join(f"{target} with {source}" for target, source in function.aliases) or None,
    }
    return make_cell(
        tag("h2", f"Function {function.name}", class_="title"),
        tag("p", function.doc) if function.doc else None,
        make_facts(facts),
        make_table("Inputs and outputs", ("name", "", "type"), _list_ends(function)),
        *_draw(function),
        _text(function),
    )


def _list_ends(function: Function) -> Iterator[tuple[str, str, str]]:
    ends: tuple[tuple[Sequence[Value], str], ...] = ((function.inputs, "input"), (function.outputs, "output"))
    return ((value.name, role, format_type(value.type)) for values, role in ends for value in values)


def _draw(function: Function) -> Iterator[Markup]:
    """Yield the drawing, and the operators; nothing of a Function without nodes."""
    if not function.nodes:
        return
    groups = split_in_boxes(len(function.nodes))
    what = f"The graph of {function.name}: {format_count(len(function.nodes), 'node')}"
    several = (
        f", drawn in {MOST} boxes, each of them nodes that run one after the other" if len(groups) < len(function.nodes) else ""
    )
    drawing = draw_boxes([_box(function, group) for group in groups], _find_flows(function, groups), f"{what}{several}.")
    yield tag("figure", tag("figcaption", f"{what}{several}."), make_scrolling(what, drawing))
    kinds = Counter(node.op for node in function.nodes).most_common()
    rest = [(format_count(len(kinds) - LISTED, "other kind"), sum(n for _, n in kinds[LISTED:]))] if len(kinds) > LISTED else []
    yield fold("Operators", make_table("Operators", ("operator", ("nodes", "number")), [*kinds[:LISTED], *rest]))


def _box(function: Function, group: range) -> Box:
    nodes = [function.nodes[index] for index in group]
    first, last = nodes[0], nodes[-1]
    if first is last:
        made = next((format_type(function.get_type(name)) for name in first.defines), "")
        return Box((first.op, first.name, made), "op", f"{first.name} ({first.op})")
    kinds = ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in Counter(node.op for node in nodes).most_common())
    return Box((format_count(len(nodes), "node"), kinds, f"{first.name} to {last.name}"), "op", f"{first.name} to {last.name}")


def _find_flows(function: Function, groups: Sequence[range]) -> dict[Edge, int]:
    """Return the bytes that flow between boxes, each value once for each box that reads it; 0 for an unknown size."""
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


def _text(function: Function) -> Markup | None:
    if len(function.nodes) > PRINTED:
        return tag("p", "print(function) has its nodes one by one.", class_="quiet")
    return fold("Text", join_markup([make_text(str(function).splitlines())]))
