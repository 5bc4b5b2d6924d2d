"""A detector of objects, from the picture of a camera to boxes, scores and labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.graph import DType, Function
from xrt.models.layer_builder import HE, LayerBuilder, get_value_shape
from xrt.models.mobile import depthwise, mobile_features, relu6

if TYPE_CHECKING:
    from xrt.builder import Tensor

__all__ = ["detector"]

Array: TypeAlias = np.ndarray[Any, Any]

_EXTRA = (512, 256, 256, 128)
"""Channels of the maps behind the backbone's, each half as high and wide as the one before."""

_SMALLEST, _LARGEST = 0.2, 0.95
"""Size of the anchors on the first and the last map, as a share of the image (Liu et al. 2016; the largest is SSDLite's)."""

_RATIOS = (1.0, 2.0, 1 / 2, 3.0, 1 / 3)
"""Width by height of a map's anchors; there is one more square, between the map's size and the next."""

_ANCHORS = len(_RATIOS) + 1

_OVERLAP, _SCORE = 0.45, 0.05
"""Boxes of a class that overlap more are one object; scores below are none (Liu et al. take 0.01, for the curve of precision)."""


def detector(
    seed: int = 0,
    *,
    height: int = 720,
    breadth: int = 1280,
    image: int = 320,
    width: int = 100,
    classes: int = 91,
    detections: int = 100,
) -> Function:
    """Return SSDLite (Sandler et al. 2018) on the bytes of a camera: as many boxes, scores and labels as are asked for.

    MobileNet v2 with heads on six maps (Liu et al. 2016); its `width` is in per cent, one of the classes is the background.
    What is not found has score 0.
    """
    with LayerBuilder("detector", seed) as net:
        picture = net.input("picture", 1, height, breadth, 3, dtype=DType.UINT8)
        maps = _maps(net, _prepared(net, picture, image), width)
        offsets, logits = (_read(net, maps, columns) for columns in (4, classes))
        boxes = _decoded(net, offsets, _anchors([get_value_shape(x)[2] for x in maps]))
        shares = emit("Softmax", logits, axis=-1).transpose(0, 2, 1)
        found, scores, labels = _kept(net, boxes, shares[:, 1:], detections)
        return net.finish(boxes=found, scores=scores, labels=labels)


# ---------------------------------------------------------------------- the network


def _prepared(net: LayerBuilder, picture: Tensor, image: int) -> Tensor:
    """Return the picture as the network reads it: channels first, one size, numbers from -1 to 1."""
    floats = picture.transpose(0, 3, 1, 2).astype("float32")
    sizes = net.constant(np.array([1, 3, image, image]))
    return emit("Resize", floats, None, None, sizes, mode="linear") * (2 / 255) - 1.0


def _maps(net: LayerBuilder, image: Tensor, width: int) -> list[Tensor]:
    maps = list(mobile_features(net, image, width))
    for channels in _EXTRA:
        x = relu6(net.convolution(maps[-1], channels // 2, 1, gain=HE))
        maps.append(relu6(net.convolution(depthwise(net, x, stride=2), channels, 1, gain=HE)))
    return maps


def _read(net: LayerBuilder, maps: Sequence[Tensor], columns: int) -> Tensor:
    """Return so many numbers for each anchor of each map: (1, anchors, columns)."""
    heads = (net.convolution(depthwise(net, x), _ANCHORS * columns, 1) for x in maps)
    return emit("Concat", *(net.reshape(x.transpose(0, 2, 3, 1), (1, -1, columns)) for x in heads), axis=1)


# ---------------------------------------------------------------------- anchors and boxes


def _anchors(cells: Sequence[int]) -> Array:
    """Return centre and size of each anchor (y, x, height, width), for maps of so many cells on a side."""
    sizes = np.linspace(_SMALLEST, _LARGEST, len(cells)).tolist()
    maps = (_anchors_of_map(*each) for each in zip(cells, sizes, [*sizes[1:], 1.0], strict=True))
    return np.array(list(itertools.chain.from_iterable(maps)), np.float32)


def _anchors_of_map(cells: int, size: float, larger: float) -> Iterator[tuple[float, ...]]:
    between = math.sqrt(size * larger)
    shapes = [*((size / math.sqrt(ratio), size * math.sqrt(ratio)) for ratio in _RATIOS), (between, between)]
    centres = [(cell + 0.5) / cells for cell in range(cells)]
    return ((y, x, *shape) for y, x, shape in itertools.product(centres, centres, shapes))


def _decoded(net: LayerBuilder, offsets: Tensor, anchors: Array) -> Tensor:
    """Return corners (y, x, y, x): each box's distance from its anchor, in tenths of the anchor, and how much larger it is."""
    centres, sizes = net.constant(anchors[:, :2].copy()), net.constant(anchors[:, 2:].copy())
    centre = offsets[:, :, :2] * 0.1 * sizes + centres
    half = emit("Exp", offsets[:, :, 2:] * 0.2) * sizes * 0.5
    return emit("Concat", centre - half, centre + half, axis=-1)


def _kept(net: LayerBuilder, boxes: Tensor, shares: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return the boxes, scores and labels of the best, none of which overlaps another of its class much.

    How many there are depends on the picture, so `count` of nothing follow them before the best are taken, and a Reshape
    says that those are `count`, which inference does not find.
    """
    limits = (net.constant(np.array([count])), np.float32(_OVERLAP), np.float32(_SCORE))
    places = emit("NonMaxSuppression", boxes, shares, limits[0], *(net.constant(np.array([x])) for x in limits[1:]))
    scores = emit("Concat", emit("GatherND", shares, places), net.constant(np.zeros(count, np.float32)), axis=0)
    places = emit("Concat", places, net.constant(np.zeros((count, 3), np.int64)), axis=0)
    best, order = (net.reshape(x, (count,)) for x in apply("TopK", (scores, net.constant(np.array([count]))), {"axis": 0}))
    rows = emit("Gather", places, order, axis=0)
    chosen = emit("Gather", emit("Squeeze", boxes, net.constant(np.array([0]))), rows[:, 2], axis=0)
    return chosen, best, rows[:, 1] + 1
