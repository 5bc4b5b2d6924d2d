"""The geometry that convolutions and pools share: a window that slides over the spatial axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.site import Site
from xrt.engines.xla.table import Operand

__all__ = ["Placement", "Window", "fold", "window_of"]


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

    def around(self, x: Operand, fill: Any) -> Operand:
        """Return the tensor (..., *spatial) with its padding."""
        lead = x.ndim - len(self.extents)
        return jnp.pad(x, [(0, 0)] * lead + self.pads, constant_values=fill)

    def offsets(self) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """Yield each place inside the window with the index that picks it, at every position, from the padded tensor."""
        window = self.window
        for offset in product(*map(range, window.kernel)):
            starts = [o * d for o, d in zip(offset, window.dilations, strict=True)]
            steps = zip(starts, self.positions, window.strides, strict=True)
            yield offset, (..., *(slice(a, a + (n - 1) * s + 1, s) for a, n, s in steps))

    def combined(self, x: Operand, combine: Any, neutral: Any) -> Operand:
        """Return (N, C, *spatial) with what each window sees combined, ``neutral`` being what padding is."""
        window = self.window
        return jax.lax.reduce_window(
            x,
            np.asarray(neutral, x.dtype),
            combine,
            (1, 1, *window.kernel),
            (1, 1, *window.strides),
            [(0, 0), (0, 0), *self.pads],
            window_dilation=(1, 1, *window.dilations),
        )

    def counts(self, with_padding: bool) -> np.ndarray[Any, Any]:
        """Return how many elements each window sees; of the padding only what is declared, if asked, and none otherwise."""
        counts = np.ones((), dtype=np.int64)
        for axis, extent in enumerate(self.extents):
            begin, end = (self.begins[axis], self.declared_ends[axis]) if with_padding else (0, 0)
            starts = np.arange(self.positions[axis]) * self.window.strides[axis] - self.begins[axis]
            seen = starts[:, None] + np.arange(self.window.kernel[axis]) * self.window.dilations[axis]
            counts = counts[..., None] * ((seen >= -begin) & (seen < extent + end)).sum(axis=1)
        return counts


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

    def over(self, extents: Sequence[int]) -> Placement:
        """Lay the window over spatial axes of those extents; raises ValueError where it does not fit into the padded tensor."""
        axes = [self._axis(i, n) for i, n in enumerate(extents)]
        begins, ends, declared, positions = (tuple(column) for column in zip(*axes, strict=True)) if axes else ((), (), (), ())
        if any(n < 1 for n in positions):
            spans, sizes = list(self.spans), list(extents)
            raise ValueError(f"a window of {spans} does not fit into a tensor of {sizes} padded by {begins} and {ends}")
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


def window_of(at: Site, kernel: Sequence[int]) -> Window:
    """Read a node's window attributes; the kernel's extents may come from a weight instead."""
    rank = len(kernel)
    pads = at.attr("pads") or (0,) * (2 * rank)
    ones = (1,) * rank
    return Window(
        kernel=tuple(kernel),
        strides=at.attr("strides") or ones,
        dilations=at.attr("dilations") or ones,
        begins=tuple(pads[:rank]),
        ends=tuple(pads[rank:]),
        auto_pad=at.attr("auto_pad") or "NOTSET",
        round_up=bool(at.attr("ceil_mode", 0)),
    )


def fold(columns: Operand, placement: Placement, extents: Sequence[int]) -> Operand:
    """Return the sum of windows laid at their positions: (N, C, *kernel, *positions) to (N, C, *extents)."""
    out: Any = jnp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
    for offset, picked in placement.offsets():
        out = out.at[picked].add(columns[(slice(None), slice(None), *offset)])
    return out
