"""Padding of matrix products: over an axis that stays it changes nothing, over one that is summed both sides are masked."""

from __future__ import annotations

from dataclasses import replace

from xrt.graph import Node
from xrt.passes.padding.elementwise import broadcast
from xrt.passes.padding.extents import ONE, Axis
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = ["apply_einsum", "apply_gemm", "apply_matmul"]


def _contract(p: Padder, left: str, left_axis: int, right: str, right_axis: int) -> tuple[str, str]:
    """Return both sides of a sum of products with zeros behind what is valid of the axis that is summed.

    Zeros on one side alone would not do: what is behind may be infinite or NaN on the other.
    """
    axes = p.axes(left)[left_axis], p.axes(right)[right_axis]
    if not any(map(p.is_padded, axes)):
        return left, right
    if axes[0] != axes[1]:
        raise p.refuse("it sums over a padded axis, whose extent is another one on the other side", *axes)
    return p.mask(left, left_axis, 0), p.mask(right, right_axis, 0)


def apply_matmul(p: Padder, node: Node) -> Node:
    """Rows and columns may be padded; the axis between them is masked."""
    left, right = node.inputs
    ranks = len(p.axes(left)), len(p.axes(right))
    if 0 in ranks:
        raise Refused("a side is a number")
    left, right = _contract(p, left, ranks[0] - 1, right, max(ranks[1] - 2, 0))
    rows = p.axes(left)[-2:-1] if ranks[0] > 1 else ()
    columns = p.axes(right)[-1:] if ranks[1] > 1 else ()
    batch = broadcast(p, replace(node, inputs=tuple(n for n, rank in zip((left, right), ranks, strict=True) if rank > 2)), 2)
    p.set(node.outputs[0], [*batch, *rows, *columns])
    return replace(node, inputs=(left, right))


def apply_gemm(p: Padder, node: Node) -> Node:
    """As MatMul; what is added broadcasts to the product."""
    left, right, *more = node.inputs
    turned = [int(bool(node.attr(name, 0))) for name in ("transA", "transB")]
    left, right = _contract(p, left, 1 - turned[0], right, turned[1])
    product: tuple[Axis, ...] = (p.axes(left)[turned[0]], p.axes(right)[1 - turned[1]])
    added = p.axes(more[0]) if more and more[0] else ()
    for axis, other in zip(reversed(product), reversed(added), strict=False):
        if other not in (axis, ONE) and (p.is_padded(axis) or p.is_padded(other)):
            raise p.refuse("what it adds has another extent than the padded axis", axis, other)
    p.set(node.outputs[0], product)
    return replace(node, inputs=(left, right, *more))


def apply_einsum(p: Padder, node: Node) -> Node:
    """A letter of the output may be padded; one that is summed is masked in each input that has it."""
    equation = node.attr("equation", "").replace(" ", "")
    if "." in equation or "->" not in equation:
        raise Refused("its equation has an ellipsis, or no output")
    terms, result = equation.split("->")
    found: dict[str, Axis] = {}
    names = list(node.inputs)
    for place, letters in enumerate(terms.split(",")):
        for axis, letter in zip(p.axes(names[place]), letters, strict=True):
            known = found.setdefault(letter, axis)
            if known != axis and (p.is_padded(axis) or p.is_padded(known)):
                raise p.refuse(f"the extents of {letter!r} differ", axis, known)
        if len(set(letters)) != len(letters) and names[place] in p.states:
            raise p.refuse("a letter occurs repeatedly in one input", *p.axes(names[place]))
        names[place] = p.mask_all(names[place], [n for n, letter in enumerate(letters) if letter not in result], 0)
    p.set(node.outputs[0], [found[letter] for letter in result])
    return replace(node, inputs=tuple(names))
