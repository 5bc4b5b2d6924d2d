"""Reshapes of padded tensors: extents stay in their order, merged or split, and none is torn apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from xrt.graph import Node
from xrt.passes.padding.extents import ONE, Axis, Extent, multiply
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = ["apply_flatten", "apply_reshape"]

Target: TypeAlias = Sequence["Extent | None"]
"""The extents of the output; None for the one that is what is left."""


class _Parts:
    """What is left of the extents of the input, outermost first."""

    def __init__(self, p: Padder, axes: Sequence[Axis]) -> None:
        self._p = p
        self.left = _join_clean(p, [part for axis in axes for part in axis])

    def take(self, wanted: Extent, *, last: bool) -> Axis:
        """Take what has that extent from the front, or from the back; raises Refused where nothing has."""
        taken: list[Extent] = []
        while wanted != ONE[0]:
            if not self.left:
                raise self._p.refuse(f"the new shape has an extent {wanted} that the old one has not in this order", wanted)
            part = self.left.pop(-1 if last else 0)
            wanted, used = self._match(part, wanted, last)
            taken.insert(0 if last else len(taken), used)
        return _merge(self._p, taken)

    def _match(self, part: Extent, wanted: Extent, last: bool) -> tuple[Extent, Extent]:
        """Return what is still wanted after a part, and what of the part is used; the rest of it goes back."""
        if (rest := wanted.divide(part)) is not None:
            return rest, part
        rest = part.divide(wanted)
        inner = wanted if last else rest
        if rest is None or (self._p.is_padded(part) and (inner is None or self._p.is_padded(inner))):
            raise self._p.refuse(
                f"the new shape has {wanted} where the old one has {part}; a size that stands there as a number, or in "
                "another order, would be another one with padding",
                part,
                wanted,
            )
        self.left.insert(len(self.left) if last else 0, rest)
        return ONE[0], wanted

    def rest(self) -> Axis:
        """Return all that is left as one axis."""
        return _merge(self._p, self.left)


def _join_clean(p: Padder, parts: Sequence[Extent]) -> list[Extent]:
    """Return the parts with neighbors that are not padded as one; extents of one are dropped."""
    found: list[Extent] = []
    for part in parts:
        if part == ONE[0]:
            continue
        if found and not p.is_padded(part) and not p.is_padded(found[-1]):
            part *= found.pop()  # noqa: PLW2901  # one part with the one before it
        found.append(part)
    return found


def _merge(p: Padder, parts: Sequence[Extent]) -> Axis:
    """Return parts as one axis: a single extent where what is valid of it is its front."""
    joined = _join_clean(p, parts)
    if not any(map(p.is_padded, joined[1:])):
        return (multiply(tuple(joined)),)
    return tuple(joined)


def apply_reshape(p: Padder, node: Node) -> None:
    """Extents that are padded stay whole, or are merged with their neighbors."""
    axes, wanted = p.axes(node.inputs[0]), p.elements(node.inputs[1])
    if wanted is None:
        raise Refused(f"its shape {node.inputs[1]!r} is not known")
    target: list[Extent | None] = []
    for number, extent in enumerate(wanted):
        if extent is None:
            raise Refused(f"its shape {node.inputs[1]!r} is known in part")
        is_copied = extent.number == 0 and not node.attr("allowzero", 0)
        target.append(None if extent.number == -1 else multiply(axes[number]) if is_copied else extent)
    _reshape(p, node, target)


def _reshape(p: Padder, node: Node, target: Target) -> None:
    parts = _Parts(p, p.axes(node.inputs[0]))
    place = target.index(None) if None in target else len(target)
    front = [parts.take(extent, last=False) for extent in target[:place] if extent is not None]
    back = [parts.take(extent, last=True) for extent in reversed(target[place + 1 :]) if extent is not None]
    if place == len(target) and parts.left:
        raise p.refuse("the new shape has fewer elements", *parts.left)
    middle = [parts.rest()] if place < len(target) else []
    axes = [*front, *middle, *reversed(back)]
    p.set(node.outputs[0], axes, _find_zeros(p, node.inputs[0], axes))


def _find_zeros(p: Padder, given: str, axes: Sequence[Axis]) -> list[int]:
    """Return the axes whose one padded extent is that of an axis of zeros, and of no other axis."""
    zeros = p.zeros(given)
    old = [axis for n, axis in enumerate(p.axes(given)) if p.is_padded(axis) and n not in zeros]
    own = [p.axes(given)[n] for n in zeros]
    return [n for n, axis in enumerate(axes) if axis in own and axis not in old]


def apply_flatten(p: Padder, node: Node) -> None:
    """The axes before the given one are merged, and those from it on."""
    axes = p.axes(node.inputs[0])
    place = node.attr("axis", 1)
    place += len(axes) if place < 0 else 0
    halves = axes[:place], axes[place:]
    p.set(node.outputs[0], [_merge(p, [part for axis in half for part in axis]) for half in halves])
