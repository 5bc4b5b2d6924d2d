"""The geometry that convolutions and pools share, in numbers alone: a window that slides over the spatial axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from xrt.graph import Node

__all__ = ["Placement", "Window", "window_of"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A window laid over a tensor: how much padding is needed around it, and how many positions there are."""

    window: Window
    extents: tuple[int, ...]
    """Of the spatial axes, before padding."""
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    """Padding that the window reads, beyond what was declared where the number of positions was rounded up."""
    declared_ends: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def pads(self) -> list[tuple[int, int]]:
        """The padding in front of and behind each spatial axis."""
        return list(zip(self.begins, self.ends, strict=True))

    def offsets(self) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """Yield each place inside the window with the index that picks it, at every position, from the padded tensor."""
        window = self.window
        for offset in product(*map(range, window.kernel)):
            starts = [o * d for o, d in zip(offset, window.dilations, strict=True)]
            steps = zip(starts, self.positions, window.strides, strict=True)
            yield offset, (..., *(slice(a, a + (n - 1) * s + 1, s) for a, n, s in steps))


@dataclass(frozen=True, slots=True)
class Window:
    """The attributes of a convolution or a pool; every tuple has one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    auto_pad: str = "NOTSET"
    round_up: bool = False

    @property
    def spans(self) -> tuple[int, ...]:
        """How far the window reaches along each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def size(self) -> int:
        """How many elements the window sees."""
        return prod(self.kernel)

    def over(self, extents: Sequence[int]) -> Placement:
        """Lay the window over spatial axes of those extents; raises ValueError where it does not fit into the padded tensor."""
        axes = [self._axis(i, n) for i, n in enumerate(extents)]
        begins, ends, declared, positions = (tuple(column) for column in zip(*axes, strict=True)) if axes else ((), (), (), ())
        if any(n < 1 for n in positions):
            raise ValueError(
                f"a window of {list(self.spans)} does not fit into a tensor of {list(extents)} padded by {begins} and {ends}"
            )
        return Placement(self, tuple(extents), begins, ends, declared, positions)

    def _axis(self, i: int, extent: int) -> tuple[int, int, int, int]:
        """Return begin, needed end, declared end and number of positions along one axis."""
        stride, span = self.strides[i], self.spans[i]
        if self.auto_pad.startswith("SAME"):
            count = -(-extent // stride)
            total = max(0, (count - 1) * stride + span - extent)
            begin = total // 2 if self.auto_pad == "SAME_UPPER" else total - total // 2
            return begin, total - begin, total - begin, count
        begin, end = (0, 0) if self.auto_pad == "VALID" else (self.begins[i], self.ends[i])
        room = extent + begin + end - span
        count = room // stride + 1
        if self.round_up and self.auto_pad != "VALID" and room % stride and count * stride < extent + begin:
            count += 1  # unless the last window would start in the padding at the end
        return begin, max(end, (count - 1) * stride + span - extent - begin), end, count


def window_of(node: Node, kernel: Sequence[int]) -> Window:
    """Read a node's window attributes; the kernel's extents may come from a weight instead."""
    rank = len(kernel)
    pads = node.attr("pads") or (0,) * (2 * rank)
    ones = (1,) * rank
    return Window(
        kernel=tuple(kernel),
        strides=node.attr("strides") or ones,
        dilations=node.attr("dilations") or ones,
        begins=tuple(pads[:rank]),
        ends=tuple(pads[rank:]),
        auto_pad=node.attr("auto_pad") or "NOTSET",
        round_up=bool(node.attr("ceil_mode", 0)),
    )

