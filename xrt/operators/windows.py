"""The windows of convolutions and pools: kernel, strides, dilations, padding, and positions over a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from xrt.graph import Node


@dataclass(frozen=True, slots=True)
class Placement:
    """A window applied to spatial axes of known extents: the padding that it reads, and its number of positions per axis."""

    window: Window
    extents: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    """Padding that the window reads at the end; more than ``declared_ends`` if ``ceil_mode`` adds a position."""
    declared_ends: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def pads(self) -> list[tuple[int, int]]:
        return list(zip(self.begins, self.ends, strict=True))

    def count_elements(self, xp: Any, with_padding: bool) -> Any:
        """Count the elements in each window, with or without declared padding, as an array of the module ``xp`` (NumPy's API)."""
        counts = xp.ones((), dtype=np.int64)
        for axis, extent in enumerate(self.extents):
            begin, end = (self.begins[axis], self.declared_ends[axis]) if with_padding else (0, 0)
            starts = xp.arange(self.positions[axis]) * self.window.strides[axis] - self.begins[axis]
            # Positions of the window's elements along the axis, negative in the padding before it.
            elements = starts[:, None] + xp.arange(self.window.kernel[axis]) * self.window.dilations[axis]
            counts = counts[..., None] * xp.sum((elements >= -begin) & (elements < extent + end), axis=1)
        return counts

    def iterate_offsets(self) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """Yield (offset, index): indexing the padded tensor selects the element at this offset of every window."""
        window = self.window
        for offset in product(*map(range, window.kernel)):
            starts = [position * dilation for position, dilation in zip(offset, window.dilations, strict=True)]
            lengths = [(count - 1) * stride + 1 for count, stride in zip(self.positions, window.strides, strict=True)]
            axes = zip(starts, lengths, window.strides, strict=True)
            yield offset, (..., *(slice(start, start + length, stride) for start, length, stride in axes))


@dataclass(frozen=True, slots=True)
class Window:
    """The window attributes of a convolution or a pool, with one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    auto_pad: str = "NOTSET"
    round_up: bool = False

    @property
    def spans(self) -> tuple[int, ...]:
        """Extent of the window along each axis, including dilation."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def size(self) -> int:
        return prod(self.kernel)

    def place(self, extents: Sequence[int]) -> Placement:
        """Apply the window to spatial extents; raises ValueError if it does not fit into the padded tensor."""
        axes = [self._place_axis(i, extent) for i, extent in enumerate(extents)]
        begins = tuple(begin for begin, _, _, _ in axes)
        ends = tuple(end for _, end, _, _ in axes)
        declared_ends = tuple(declared_end for _, _, declared_end, _ in axes)
        positions = tuple(count for _, _, _, count in axes)
        if any(count < 1 for count in positions):
            raise ValueError(
                f"a window of {list(self.spans)} does not fit into a tensor of {list(extents)} padded by {begins} and {ends}"
            )
        return Placement(self, tuple(extents), begins, ends, declared_ends, positions)

    def with_pads(self, extents: Sequence[int | None]) -> Window | None:
        """Convert `auto_pad` to explicit padding; return None if that depends on an unknown extent, which is None."""
        if self.auto_pad == "NOTSET":
            return self
        begins = ends = (0,) * len(self.kernel)
        if self.auto_pad != "VALID":
            if any(extent is None and stride != 1 for extent, stride in zip(extents, self.strides, strict=True)):
                return None
            # With stride 1 the padding is the same for each extent.
            sizes = [span if extent is None else extent for extent, span in zip(extents, self.spans, strict=True)]
            placement = self.place(sizes)
            begins, ends = placement.begins, placement.declared_ends
        return replace(self, begins=begins, ends=ends, auto_pad="NOTSET")

    def compute_unpooled_extents(self, positions: Sequence[int]) -> list[int]:
        """The default output extents of MaxUnpool: the input extents of a pool without dilation, less the declared padding."""
        axes = zip(positions, self.strides, self.kernel, strict=True)
        padded_extents = [(count - 1) * stride + kernel for count, stride, kernel in axes]
        return [extent - begin - end for extent, begin, end in zip(padded_extents, self.begins, self.ends, strict=True)]

    def _place_axis(self, i: int, extent: int) -> tuple[int, int, int, int]:
        """Compute (begin padding, required end padding, declared end padding, number of positions) of axis ``i``."""
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
            count += 1  # the condition excludes a last window that would start in the end padding
        return begin, max(end, (count - 1) * stride + span - extent - begin), end, count


def make_window(node: Node, kernel: Sequence[int]) -> Window:
    """Read the window attributes of a node. ``kernel`` has the extents of the window, which may be those of a weight."""
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


def compute_padding_trims(node: Node, window: Window, full_extents: Sequence[int], inputs: Sequence[int]) -> list[int]:
    """Compute the pads that turn the full result of a ConvTranspose, with ``full_extents``, into its output; negative ones crop.

    All begins come first, then all ends. Declared padding, or the excess over ``output_shape``, is cropped.
    """
    extra = node.attr("output_padding") or (0,) * len(inputs)
    shape = node.attr("output_shape")
    if shape is None and window.auto_pad.startswith("SAME"):
        shape = [n * s for n, s in zip(inputs, window.strides, strict=True)]
    begins, ends = list(window.begins), list(window.ends)
    if shape is not None:
        for i, (full, more, extent) in enumerate(zip(full_extents, extra, shape, strict=True)):
            excess = full + more - extent
            half = excess // 2
            # ONNX crops the odd element at the end for SAME_UPPER, at the begin otherwise.
            begins[i] = half if window.auto_pad == "SAME_UPPER" else excess - half
            ends[i] = excess - begins[i]
    # Cropping is negative padding. `output_padding` extends the end.
    trims_at_begin = [-begin for begin in begins]
    trims_at_end = [extra_end - end for extra_end, end in zip(extra, ends, strict=True)]
    return [*trims_at_begin, *trims_at_end]
