"""Operators of detectors: pools over regions of interest, and the choice among overlapping boxes."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.toolkit.array_ops.windows import cut_bins
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []


# ---------------------------------------------------------------------- pools


def _samples(start: float, size: float, bins: int, each: int, extent: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for evenly spread samples of one axis (bins * each), both neighbours, the second's weight, and which count."""
    places = start + (torch.arange(bins * each, dtype=torch.float64) + 0.5) * (size / max(1, bins * each))
    counts = (places >= -1) & (places <= extent)
    places = places.clamp(0, extent - 1)
    low = torch.floor(places).long()
    return low, (low + 1).clamp(max=extent - 1), places - low, counts


def _align(image: Tensor, box: Tensor, at: TorchKernelContext, shift: float) -> Tensor:
    """Pool one region of an image (C, H, W) into bins, from samples interpolated between elements."""
    bins = at.attr("output_height", 1), at.attr("output_width", 1)
    x1, y1, x2, y2 = (box * at.attr("spatial_scale", 1.0) - shift).tolist()
    sizes = [max(end - start, 0.0 if shift else 1.0) for start, end in ((y1, y2), (x1, x2))]
    ratio = at.attr("sampling_ratio", 0)
    each = [ratio if ratio > 0 else ceil(size / n) for size, n in zip(sizes, bins, strict=True)]
    if 0 in each:
        return torch.zeros((len(image), *bins), dtype=torch.float64)
    rows, columns = (
        _samples(start, size, n, e, extent)
        for start, size, n, e, extent in zip((y1, x1), sizes, bins, each, image.shape[1:], strict=True)
    )
    corners = torch.stack(
        [
            image[:, row[:, None], column] * (vertical[:, None] * horizontal)
            for row, vertical in ((rows[0], (1 - rows[2]) * rows[3]), (rows[1], rows[2] * rows[3]))
            for column, horizontal in ((columns[0], (1 - columns[2]) * columns[3]), (columns[1], columns[2] * columns[3]))
        ]
    )
    shape = (len(image), bins[0], each[0], bins[1], each[1])
    if at.attr("mode", "avg") == "avg":
        return corners.sum(0).reshape(shape).mean((2, 4))
    # The greatest of the four weighted neighbours, not of their sum: so it is defined by what engines do.
    return corners.amax(0).reshape(shape).amax((2, 4))


@ops("RoiAlign")
def roi_align(at: TorchKernelContext) -> Run:
    """Version 10 had no shift by half an element, and no attribute to ask for it."""
    default = "half_pixel" if at.version >= 16 else "output_half_pixel"
    shift = 0.5 if at.attr("coordinate_transformation_mode", default) == "half_pixel" else 0.0

    def run(x: Tensor, boxes: Tensor, images: Tensor) -> Tensor:
        pools = [_align(x[i], box, at, shift) for box, i in zip(boxes, images.tolist(), strict=True)]
        empty = (0, x.shape[1], at.attr("output_height", 1), at.attr("output_width", 1))
        return torch.stack(pools).to(x.dtype) if pools else x.new_empty(empty)

    return run


@ops("MaxRoiPool")
def max_roi_pool(at: TorchKernelContext) -> Run:
    """Corners are rounded to elements and belong to the region; an empty bin gives zero."""
    (height, width), scale = at.attr("pooled_shape"), at.attr("spatial_scale", 1.0)

    def pool(image: Tensor, box: Tensor) -> Tensor:
        x1, y1, x2, y2 = (floor(v * scale + 0.5) for v in box.tolist())
        out = image.new_zeros((len(image), height, width))
        for i, row in enumerate(cut_bins(y1, y2, height, image.shape[1])):
            for j, column in enumerate(cut_bins(x1, x2, width, image.shape[2])):
                part = image[:, row, column]
                if part.numel():
                    out[:, i, j] = part.amax((1, 2))
        return out

    def run(x: Tensor, boxes: Tensor) -> Tensor:
        pools = [pool(x[int(box[0])], box[1:]) for box in boxes]
        return torch.stack(pools) if pools else x.new_empty((0, x.shape[1], height, width))

    return run


# ---------------------------------------------------------------------- boxes


def _corners(boxes: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper corners of boxes given by any two opposite corners, or by centre and size."""
    if centred:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    return torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])


def _choose(low: Tensor, high: Tensor, scores: Tensor, most: int, overlap: float, least: float | None) -> list[int]:
    """Take boxes by falling score, dropping those that overlap with one already taken."""
    areas = (high - low).prod(1)
    order = torch.argsort(-scores, stable=True)
    if least is not None:
        order = order[scores[order] > least]
    taken: list[int] = []
    while len(order) and len(taken) < most:
        best, order = order[0], order[1:]
        taken.append(int(best))
        sides = torch.minimum(high[best], high[order]) - torch.maximum(low[best], low[order])
        common = sides.clamp(min=0).prod(1)
        union = areas[best] + areas[order] - common
        order = order[~((common > 0) & (common / union > overlap))]
    return taken


@ops("NonMaxSuppression")
def non_max_suppression(at: TorchKernelContext) -> Run:
    """Return (image, class, box) of each box that is kept, best first within its image and class."""
    centred, reads = bool(at.attr("center_point_box", 0)), [at.read_numbers(i) for i in (2, 3, 4)]

    def run(boxes: Tensor, scores: Tensor, *limits: Tensor) -> Tensor:
        given: list[Any] = [read(limit) for read, limit in zip(reads, limits, strict=False)]
        most, overlap = (given[i][0] if len(given) > i and given[i] else 0 for i in (0, 1))
        least = given[2][0] if len(given) > 2 and given[2] else None
        kept = [
            (image, label, box)
            for image, (of_image, by_class) in enumerate(zip(boxes, scores, strict=True))
            for label, of_class in enumerate(by_class)
            for box in _choose(*_corners(of_image, centred), of_class, most, overlap, least)
        ]
        return torch.tensor(kept, dtype=torch.int64).reshape(-1, 3)

    return run
