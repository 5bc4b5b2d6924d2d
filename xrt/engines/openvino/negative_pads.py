"""Pads that cut off: OpenVINO writes beyond its memory where one cuts off more than there is, so such are said otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.toolkit.known_issues import KnownIssue
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.openvino.decompositions import OpenVinoWriter
    from xrt.graph import Function, Node

__all__ = ["NEGATIVE_PADS", "decompose_pad", "may_cut_off_more_than_there_is"]


def may_cut_off_more_than_there_is(node: Node, function: Function) -> bool:
    """Whether a pad may be negative, and cut off more elements than its axis has."""
    given = [*node.inputs, *[""] * (4 - len(node.inputs))]
    found, chosen = (function.constants.get(given[index]) for index in (1, 3))
    if found is None and given[1]:
        return not _is_least_zero(given[1], function)
    pads = [int(pad) for pad in (node.attr("pads", ()) if found is None else found.array.reshape(-1))]
    if min(pads, default=0) >= 0:
        return False
    type_, count = function.get_type(given[0]), len(pads) // 2
    if not isinstance(type_, TensorType) or type_.shape is None or (given[3] and chosen is None):
        return True
    axes = range(len(type_.shape)) if chosen is None else [int(axis) for axis in chosen.array.reshape(-1)]
    extents = [type_.shape[axis] for axis in axes]
    cuts = [max(0, -begin) + max(0, -end) for begin, end in zip(pads[:count], pads[count:], strict=True)]
    return any(cut and not (isinstance(extent, int) and cut <= extent) for cut, extent in zip(cuts, extents, strict=True))


def _is_least_zero(name: str, function: Function) -> bool:
    """Whether a value is the largest of something and of a constant without a negative number."""
    producer = function.producer(name)
    if producer is None or producer.op != "Max":
        return False
    known = [function.constants[one].array for one in producer.inputs if one in function.constants]
    return any(bool((one >= 0).all()) for one in known)


def decompose_pad(pen: OpenVinoWriter) -> Function | None:
    """Write a Pad as one that adds, and a Slice; None where a rank is not known, or what is cut off may be read."""
    x, pads = pen.get_input_type(0), pen.get_input_type(1)
    count = pads.shape[0] if pads is not None and pads.shape else None
    is_constant = pen.node.attr("mode", "constant") in ("constant", b"constant")
    if x is None or x.shape is None or not isinstance(count, int) or not is_constant:
        return None
    zero = pen.literal(0, np.int64)
    more, cut = (pen.op(kind, pen.inputs[1], zero) for kind in ("Max", "Min"))
    padded = pen.op("Pad", pen.inputs[0], more, *pen.inputs[2:], attributes=pen.node.attributes)
    axes = pen.get_input(3) or pen.literal(range(len(x.shape)), np.int64)
    first, middle, last = (pen.literal([place], np.int64) for place in (0, count // 2, count))
    begins = pen.op("Neg", pen.op("Slice", cut, first, middle))
    sizes = pen.op("Gather", pen.op("Shape", padded), axes)
    ends = pen.op("Max", pen.op("Add", sizes, pen.op("Slice", cut, middle, last)), zero)
    return pen.results(pen.op("Slice", padded, begins, ends, axes))


NEGATIVE_PADS = KnownIssue(
    ("Pad",),
    may_cut_off_more_than_there_is,
    "writes beyond its memory, and ends the process, where a negative pad cuts off more than there is",
    (
        "cut_off_more_than_there_is of the corpus: ends the process",
        "cut_off_more_at_run_time of the corpus: ends the process",
    ),
)
"""A row of the known issues."""
