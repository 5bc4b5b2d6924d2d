"""The windows of convolutions and pools: kernel, strides, dilations and padding, with what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.tensors import extent, integers

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor
    from xrt.passes.gradient.table import RuleContext

__all__ = ["Windows", "fit", "read_windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """How windows are laid over an input, each field with one number per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def reaches(self) -> tuple[int, ...]:
        """How many elements a window extends over, gaps included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def read_windows(at: RuleContext, kernel: Sequence[int], inputs: Tensor, outputs: Tensor) -> Windows:
    """Return the windows of a node, from its attributes; padding that depends on extents needs them to be known."""
    count = len(kernel)
    strides = tuple(at.attr("strides") or (1,) * count)
    dilations = tuple(at.attr("dilations") or (1,) * count)
    pads = tuple(at.attr("pads") or (0,) * (2 * count))
    windows = Windows(tuple(kernel), strides, dilations, pads[:count], pads[count:])
    mode = at.attr("auto_pad", "NOTSET")
    if mode == "VALID":
        return Windows(windows.kernel, strides, dilations, (0,) * count, (0,) * count)
    if mode == "NOTSET":
        return windows
    sizes, results = inputs.shape[2:], outputs.shape[2:]
    if not all(isinstance(size, int) for size in (*sizes, *results)):
        at.refuse(f"its padding is {mode!r}, which needs extents that are known; bind the symbolic ones first")
    totals = [
        max((o - 1) * s + reach - i, 0)  # type: ignore[operator]  # integers, as was checked
        for o, i, s, reach in zip(results, sizes, strides, windows.reaches, strict=True)
    ]
    halves = tuple(total // 2 for total in totals)
    rests = tuple(total - half for total, half in zip(totals, halves, strict=True))
    begins, ends = (halves, rests) if mode == "SAME_UPPER" else (rests, halves)
    return Windows(windows.kernel, strides, dilations, begins, ends)


def fit(whole: Tensor, like: Tensor, begins: Sequence[int], leasts: Sequence[int]) -> Tensor:
    """Return the part of a tensor that starts at those places of its spatial axes and has the extents of another one.

    The tensor has at least as many elements along these axes as ``leasts`` says.
    Where the tensor ends before that, there are zeros.
    """
    axes = np.arange(2, 2 + len(begins))
    if any(begin > least for begin, least in zip(begins, leasts, strict=True)):  # there may be less than is cut off
        nothing = (0,) * len(begins)
        longer = _pad(whole, like, nothing, begins, axes)
        return emit("Slice", longer, integers(*begins), integers(*(np.iinfo(np.int64).max,) * len(begins)), axes)
    return _pad(whole, like, begins, begins, axes)


def _pad(whole: Tensor, like: Tensor, cut: Sequence[int], begins: Sequence[int], axes: Any) -> Tensor:
    """Return a tensor without its first elements, as long as from the places where it would have begun to the end of another."""
    sizes, wanted = whole.tensor_type.shape, like.tensor_type.shape
    if sizes is not None and wanted is not None and all(isinstance(d, int) for d in (*sizes[2:], *wanted[2:])):
        after = [wanted[a] + begin - sizes[a] for a, begin in zip(axes, begins, strict=True)]
        if not any(cut) and not any(after):
            return whole
        pads: Any = integers(*(-begin for begin in cut), *after)
    else:
        ends = [
            emit("Sub", emit("Add", extent(like, a), integers(b)), extent(whole, a)) for a, b in zip(axes, begins, strict=True)
        ]
        pads = emit("Concat", integers(*(-begin for begin in cut)), *ends, axis=0)
    return emit("Pad", whole, pads, None, axes)
