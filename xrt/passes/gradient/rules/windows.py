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


def fit(whole: Tensor, like: Tensor, begins: Sequence[int]) -> Tensor:
    """Return the part of a tensor that starts at those places of its spatial axes and has the extents of another one.

    Where the tensor ends before that, there are zeros.
    """
    axes = range(2, 2 + len(begins))
    sizes, wanted = whole.tensor_type.shape, like.tensor_type.shape
    if sizes is not None and wanted is not None and all(isinstance(d, int) for d in (*sizes[2:], *wanted[2:])):
        after = [wanted[a] + begin - sizes[a] for a, begin in zip(axes, begins, strict=True)]  # type: ignore[operator]  # integers
        if not any(begins) and not any(after):
            return whole
        pads: Any = integers(*(-begin for begin in begins), *after)
    else:
        ends = [
            emit("Sub", emit("Add", extent(like, a), integers(b)), extent(whole, a)) for a, b in zip(axes, begins, strict=True)
        ]
        pads = emit("Concat", integers(*(-begin for begin in begins)), *ends, axis=0)
    return emit("Pad", whole, pads, None, np.asarray(axes, np.int64))
