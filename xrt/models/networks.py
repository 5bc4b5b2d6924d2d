"""Networks written in code: classifiers, a detector, a recommender, segmentation, speech, and small operator patterns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.errors import OptionError
from xrt.graph import DType, Function
from xrt.models.layer_builder import HE, LayerBuilder, get_value_shape

if TYPE_CHECKING:
    from xrt.builder import Tensor


_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats and first stride of each block group (Sandler et al. 2018, table 2)."""


def mobile_features(net: LayerBuilder, image: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """MobileNet v2: the expanded features at 1/16 of the image size, and the last features at 1/32; `width` is in percent."""
    # The first convolution and four of the groups halve the size: 1/32 at the end.
    x = relu6(net.convolution(image, _scale_channels(32, width), 3, stride=2, gain=HE))
    sixteenth = x
    for expansion, channels, repeats, stride in _BLOCKS:
        for step in (stride, *[1] * (repeats - 1)):
            # No ReLU after the projection in `_project`: it would lose information of the few channels there.
            wide = x if expansion == 1 else relu6(net.convolution(x, get_value_shape(x)[1] * expansion, 1, gain=HE))
            sixteenth = wide if step == 2 else sixteenth  # the input of the last stride-2 block has 1/16 of the size
            x = _project(net, x, wide, _scale_channels(channels, width), step)
    # The last layer is never narrowed (Sandler et al. 2018).
    return sixteenth, relu6(net.convolution(x, _scale_channels(1280, max(width, 100)), 1, gain=HE))


def _project(net: LayerBuilder, x: Tensor, wide: Tensor, channels: int, stride: int) -> Tensor:
    """Depthwise convolution of ``wide`` and projection to ``channels``; ``x`` is added (a skip connection) if shapes match."""
    projected = net.convolution(depthwise(net, wide, stride), channels, 1)
    return x + projected if stride == 1 and get_value_shape(x)[1] == channels else projected


def depthwise(net: LayerBuilder, x: Tensor, stride: int = 1) -> Tensor:
    """Depthwise 3x3 convolution with ReLU6."""
    channels = get_value_shape(x)[1]
    return relu6(net.convolution(x, channels, 3, stride=stride, group=channels, gain=HE))


def relu6(x: Tensor) -> Tensor:
    """Clip to [0, 6]."""
    return emit("Clip", x, 0.0, 6.0)


def _scale_channels(channels: int, width: int) -> int:
    """Compute ``width`` percent of a number of channels, rounded to a multiple of 8 as in MobileNet."""
    return max(8, round(channels * width / 800) * 8)


def mobilenet(seed: int = 0, *, image: int = 224, width: int = 100, classes: int = 1000, batch: int = 1) -> Function:
    """An image classifier with the shape of MobileNet v2 (Sandler et al. 2018); `width` is in percent."""
    with LayerBuilder("mobilenet", seed) as net:
        _, x = mobile_features(net, net.input("image", batch, 3, image, image), width)
        flat = emit("Flatten", emit("GlobalAveragePool", x))
        return net.finish(logits=net.linear(flat, classes))


def mlp(
    seed: int = 0, *, layers: int = 4, features: int = 1024, hidden: int = 4096, classes: int = 1000, batch: int = 1
) -> Function:
    """A multilayer perceptron with ReLU: `layers` fully connected layers, `features` inputs and `classes` outputs."""
    with LayerBuilder("mlp", seed) as net:
        x = net.input("x", batch, features)
        for _ in range(layers - 1):
            x = emit("Relu", net.linear(x, hidden, gain=HE))
        return net.finish(logits=net.linear(x, classes))


# ---------------------------------------------------------------------- a few operators


def chain(seed: int = 0, *, length: int = 50, batch: int = 1024, columns: int = 1024) -> Function:
    """A chain of cheap elementwise operators, which profits from fusion."""
    with LayerBuilder("chain", seed) as net:
        return net.finish(y=_elementwise(net.input("x", batch, columns), length))


def softmax_chain(seed: int = 0, *, length: int = 50, batch: int = 4096, columns: int = 1024) -> Function:
    """Elementwise operators between two softmaxes: parts that different engines run best."""
    with LayerBuilder("softmax_chain", seed) as net:
        x = emit("Softmax", net.input("x", batch, columns), axis=-1)
        return net.finish(y=emit("Softmax", _elementwise(x, length), axis=-1))


def conv_tail(seed: int = 0, *, length: int = 10, channels: int = 64, image: int = 112, batch: int = 1) -> Function:
    """A convolution followed by elementwise operators: a region boundary between them prevents fusion."""
    with LayerBuilder("conv_tail", seed) as net:
        x = net.convolution(net.input("x", batch, channels, image, image), channels, 3)
        return net.finish(y=_elementwise(x, length))


def conv_chain(seed: int = 0, *, length: int = 50, channels: int = 64, image: int = 112, batch: int = 1) -> Function:
    """Elementwise operators between two convolutions."""
    with LayerBuilder("conv_chain", seed) as net:
        x = net.convolution(net.input("x", batch, channels, image, image), channels, 3)
        return net.finish(y=net.convolution(_elementwise(x, length), channels, 3))


def gather_softmax(
    seed: int = 0, *, length: int = 30, entries: int = 8192, width: int = 1024, columns: int = 256, batch: int = 2048
) -> Function:
    """An embedding lookup, elementwise operators, a softmax and a product."""
    with LayerBuilder("gather_softmax", seed) as net:
        rows = net.embed(net.input("ids", batch, dtype=DType.INT64), entries, width)
        shares = emit("Softmax", _elementwise(rows, length), axis=-1)
        return net.finish(y=emit("MatMul", shares, net.normal(width, columns)))


def reductions(seed: int = 0, *, batch: int = 64, rows: int = 256, columns: int = 256) -> Function:
    """Mean and L2 norm of a tensor over its last axis, maximum and sum over the middle one, and minimum over the first."""
    with LayerBuilder("reductions", seed) as net:
        x = net.input("x", batch, rows, columns)
        kinds = (("ReduceMean", -1), ("ReduceMax", 1), ("ReduceSum", 1), ("ReduceL2", -1), ("ReduceMin", 0))
        outputs = {
            f"{kind.removeprefix('Reduce').lower()}_{axis % 3}": emit(kind, x, net.constant(np.array([axis])), keepdims=0)
            for kind, axis in kinds
        }
        return net.finish(**outputs)


def _elementwise(x: Tensor, length: int) -> Tensor:
    """Emit `length` cheap operators that cannot be simplified away."""
    steps = (
        lambda y, n: y * (0.9 + 0.001 * n),
        lambda y, n: y + 0.01 * (n + 1),
        lambda y, n: emit("Abs", y),
        lambda y, n: y - 0.3,
        lambda y, n: emit("Max", y, -0.5),
    )
    for index in range(length):
        x = steps[index % len(steps)](x, index)
    return x


Array: TypeAlias = np.ndarray[Any, Any]
_EXTRA = (512, 256, 256, 128)
"""Channels of the additional feature maps, each half the size of the previous one."""
_SMALLEST, _LARGEST = 0.2, 0.95
"""Anchor sizes on the first and last map, relative to the image (Liu et al. 2016; the largest as in SSDLite)."""
_RATIOS = (1.0, 2.0, 1 / 2, 3.0, 1 / 3)
"""Aspect ratios of a map's anchors; there is one more square between the map's size and the next."""
_ANCHORS = len(_RATIOS) + 1
_OVERLAP, _SCORE = 0.45, 0.05
"""NMS thresholds: boxes with a larger IoU are duplicates, lower scores are dropped (Liu et al. use 0.01 for precision curves)."""


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
    """SSDLite (Sandler et al. 2018) on a uint8 camera image; returns a fixed number of boxes, scores and labels.

    MobileNet v2 with heads on six maps (Liu et al. 2016); `width` is in percent, and the classes include the background. Missing
    detections have score 0.
    """
    with LayerBuilder("detector", seed) as net:
        picture = net.input("picture", 1, height, breadth, 3, dtype=DType.UINT8)
        maps = _extract_maps(net, _preprocess(net, picture, image), width)
        offsets, logits = (_predict(net, maps, columns) for columns in (4, classes))
        boxes = _decode_boxes(net, offsets, _anchors([get_value_shape(x)[2] for x in maps]))
        shares = emit("Softmax", logits, axis=-1).transpose(0, 2, 1)
        # Class 0 is the background, which is no detection.
        selected, scores, labels = _select_detections(net, boxes, shares[:, 1:], detections)
        return net.finish(boxes=selected, scores=scores, labels=labels)


# ---------------------------------------------------------------------- the network


def _preprocess(net: LayerBuilder, picture: Tensor, image: int) -> Tensor:
    """Resize, move channels first, and scale to [-1, 1]."""
    floats = picture.transpose(0, 3, 1, 2).astype("float32")
    sizes = net.constant(np.array([1, 3, image, image]))
    return emit("Resize", floats, None, None, sizes, mode="linear") * (2 / 255) - 1.0


def _extract_maps(net: LayerBuilder, image: Tensor, width: int) -> list[Tensor]:
    """Compute the six feature maps, the largest first, which has 1/16 of the image size."""
    maps = list(mobile_features(net, image, width))
    for channels in _EXTRA:
        x = relu6(net.convolution(maps[-1], channels // 2, 1, gain=HE))
        maps.append(relu6(net.convolution(depthwise(net, x, stride=2), channels, 1, gain=HE)))
    return maps


def _predict(net: LayerBuilder, maps: Sequence[Tensor], columns: int) -> Tensor:
    """Predict `columns` numbers for each anchor of all maps; the result has the shape (1, anchors, columns)."""
    heads = (net.convolution(depthwise(net, x), _ANCHORS * columns, 1) for x in maps)
    return emit("Concat", *(net.reshape(x.transpose(0, 2, 3, 1), (1, -1, columns)) for x in heads), axis=1)


# ---------------------------------------------------------------------- anchors and boxes


def _anchors(cells: Sequence[int]) -> Array:
    """Compute (y, x, height, width) of each anchor, with its center; ``cells`` are the side lengths of the square maps."""
    sizes = np.linspace(_SMALLEST, _LARGEST, len(cells)).tolist()
    maps = (_anchors_of_map(*sizes_of_map) for sizes_of_map in zip(cells, sizes, [*sizes[1:], 1.0], strict=True))
    return np.array(list(itertools.chain.from_iterable(maps)), np.float32)


def _anchors_of_map(cells: int, size: float, larger: float) -> Iterator[tuple[float, ...]]:
    """Yield the anchors of a map with `cells` rows and columns; `larger` is the size of the anchors of the next map."""
    between = math.sqrt(size * larger)
    shapes = [*((size / math.sqrt(ratio), size * math.sqrt(ratio)) for ratio in _RATIOS), (between, between)]
    centres = [(cell + 0.5) / cells for cell in range(cells)]
    return ((y, x, *shape) for y, x, shape in itertools.product(centres, centres, shapes))


def _decode_boxes(net: LayerBuilder, offsets: Tensor, anchors: Array) -> Tensor:
    """Compute the corners (y, x, y, x) of boxes from their scaled offsets and log sizes relative to the anchors."""
    # The factors 0.1 and 0.2 are the variances of SSD, by which the training scales its targets.
    centres, sizes = net.constant(anchors[:, :2].copy()), net.constant(anchors[:, 2:].copy())
    centre = offsets[:, :, :2] * 0.1 * sizes + centres
    half = emit("Exp", offsets[:, :, 2:] * 0.2) * sizes * 0.5
    return emit("Concat", centre - half, centre + half, axis=-1)


def _select_detections(net: LayerBuilder, boxes: Tensor, shares: Tensor, count: int) -> tuple[Tensor, ...]:
    """Select the `count` best detections by non-maximum suppression; return their boxes, scores and labels."""
    # The number of its results depends on the data: `count` empty detections are added, so that TopK has enough. Shape inference
    # does not know that, and the Reshape makes the extent static.
    limits = (net.constant(np.array([count])), np.float32(_OVERLAP), np.float32(_SCORE))
    indices = emit("NonMaxSuppression", boxes, shares, limits[0], *(net.constant(np.array([x])) for x in limits[1:]))
    scores = emit("Concat", emit("GatherND", shares, indices), net.constant(np.zeros(count, np.float32)), axis=0)
    indices = emit("Concat", indices, net.constant(np.zeros((count, 3), np.int64)), axis=0)
    best, order = (net.reshape(x, (count,)) for x in apply("TopK", (scores, net.constant(np.array([count]))), {"axis": 0}))
    rows = emit("Gather", indices, order, axis=0)
    best_boxes = emit("Gather", emit("Squeeze", boxes, net.constant(np.array([0]))), rows[:, 2], axis=0)
    # Labels count from 1, as the background was cut off.
    return best_boxes, best, rows[:, 1] + 1


# ---------------------------------------------------------------------- recommendation


def dlrm(
    seed: int = 0,
    *,
    tables: int = 26,
    entries: int = 10_000,
    width: int = 64,
    lookups: int = 20,
    dense: int = 13,
    bottom: int = 512,
    top: int = 512,
    batch: int = 128,
) -> Function:
    """A recommender with the shape of DLRM (Naumov et al. 2019): dense features, embedding bags, pairwise products.

    The layers are those for the Criteo terabyte data, whose tables have millions of entries instead of `entries`.
    """
    with LayerBuilder("dlrm", seed) as net:
        x = net.input("dense", batch, dense)
        ids = net.input("ids", tables, batch, lookups, dtype=DType.INT64)
        x = _perceptron(net, x, (bottom, bottom // 2, width))
        bags = [_sum_bags(net, emit("Gather", ids, net.constant(np.array(k)), axis=0), entries, width) for k in range(tables)]
        pairs = _multiply_pairs(net, emit("Concat", x, *bags, axis=1), tables + 1)
        x = _perceptron(net, emit("Concat", x, pairs, axis=1), (top, top, top // 2))
        return net.finish(click=emit("Sigmoid", net.linear(x, 1)))


def _perceptron(net: LayerBuilder, x: Tensor, widths: tuple[int, ...]) -> Tensor:
    """Fully connected layers of these widths, each with ReLU."""
    for columns in widths:
        x = emit("Relu", net.linear(x, columns, gain=HE))
    return x


def _sum_bags(net: LayerBuilder, ids: Tensor, entries: int, width: int) -> Tensor:
    """Sum the embeddings of each bag of ids. They are scaled so that products of two sums have unit variance."""
    rows = net.embed(ids, entries, width, deviation=1 / (width**0.25 * math.sqrt(get_value_shape(ids)[1])))
    return emit("ReduceSum", rows, net.constant(np.array([1])), keepdims=0)


def _multiply_pairs(net: LayerBuilder, features: Tensor, count: int) -> Tensor:
    """Dot products of all pairs of the ``count`` vectors in a row: (batch, count * width) to (batch, pairs)."""
    vectors = net.reshape(features, (0, count, -1))
    products = emit("MatMul", vectors, vectors.transpose(0, 2, 1))
    # The products are symmetric: only those below the diagonal are kept.
    rows, columns = np.tril_indices(count, -1)
    return emit("Gather", net.reshape(products, (0, -1)), net.constant(rows * count + columns), axis=1)


# ---------------------------------------------------------------------- segmentation


def unet(seed: int = 0, *, image: int = 128, channels: int = 32, depth: int = 4, classes: int = 2, batch: int = 1) -> Function:
    """A segmentation network with the shape of U-Net (Ronneberger et al. 2015): class probabilities of each pixel.

    It has half of the channels, convolutions with padding as in later variants, and a smaller image.
    """
    if image % 2**depth:
        raise OptionError(f"an image of {image} does not halve depth={depth} times; choose a multiple of {2**depth}")
    with LayerBuilder("unet", seed) as net:
        x = _convolve_twice(net, net.input("image", batch, 1, image, image), channels)
        skips = []
        for level in range(1, depth + 1):
            skips.append(x)
            x = _convolve_twice(net, emit("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), channels * 2**level)
        for skip in reversed(skips):
            width = get_value_shape(skip)[1]
            x = _convolve_twice(net, emit("Concat", skip, net.upsample(x, width), axis=1), width)
        # One distribution over the classes per pixel.
        return net.finish(shares=emit("Softmax", net.convolution(x, classes, 1), axis=1))


def _convolve_twice(net: LayerBuilder, x: Tensor, channels: int) -> Tensor:
    """Two 3x3 convolutions with ReLU; batch normalization is folded into the weights, as in deployment."""
    for _ in range(2):
        x = emit("Relu", net.convolution(x, channels, 3, gain=HE))
    return x


# ---------------------------------------------------------------------- speech

_RATE = 16_000
"""Samples per second."""


def speech(
    seed: int = 0,
    *,
    samples: int = 32_000,
    window: int = 320,
    hop: int = 160,
    mels: int = 64,
    channels: int = 32,
    layers: int = 5,
    hidden: int = 400,
    letters: int = 29,
    batch: int = 1,
) -> Function:
    """A speech recognizer from waveform to letters with the shape of Deep Speech 2 (Amodei et al. 2015).

    It has 20 ms windows every 10 ms, two convolutions over time and frequency, and bidirectional GRUs with half of the original
    units. The output has log probabilities of the letters: (batch, frames, letters).
    """
    with LayerBuilder("speech", seed) as net:
        x = _normalize_over_time(net, _log_mel(net, net.input("waveform", batch, samples), window, hop, mels))
        x = emit("Unsqueeze", x.transpose(0, 2, 1), net.constant(np.array([1])))
        for kernel, stride in (((41, 11), (2, 2)), ((21, 11), (2, 1))):
            # The clipped ReLU of Deep Speech.
            x = emit("Clip", net.convolution(x, channels, kernel, stride=stride, gain=HE), 0.0, 20.0)
        x = net.reshape(x.transpose(3, 0, 1, 2), (0, 0, -1))
        for _ in range(layers):
            x = net.add_recurrent(x, hidden)
        return net.finish(letters=emit("LogSoftmax", net.linear(x, letters).transpose(1, 0, 2), axis=-1))


def _log_mel(net: LayerBuilder, waveform: Tensor, window: int, hop: int, mels: int) -> Tensor:
    """Compute the log mel spectrogram of waveforms; the result has the shape (batch, frames, mels)."""
    # As in librosa and PyTorch: frames are centred, with the signal reflected at its ends.
    edge = window // 2
    padded = emit("Pad", waveform, net.constant(np.array([0, edge, 0, edge])), mode="reflect")
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)
    signal = emit("Unsqueeze", padded, net.constant(np.array([-1])))
    spectrum = emit("STFT", signal, net.constant(np.array(hop)), net.constant(hann), net.constant(np.array(window)), onesided=1)
    power = emit("ReduceSum", spectrum * spectrum, net.constant(np.array([-1])), keepdims=0)
    # The offset avoids log 0 in silent frames.
    return emit("Log", emit("MatMul", power, net.constant(_mel_filters(window, mels))) + 1e-6)


def _mel_filters(window: int, mels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Create triangular filters that overlap by half and are evenly spaced on the mel scale, as a (frequencies, mels) matrix."""
    # The mel scale of HTK (O'Shaughnessy 1987), up to half of the sampling rate.
    highest = 2595 * math.log10(1 + _RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, mels + 2) / 2595) - 1)
    frequencies = np.linspace(0, _RATE / 2, window // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    slopes = np.minimum((frequencies - left) / (middle - left), (right - frequencies) / (right - middle))
    return np.maximum(slopes, 0).astype(np.float32)


def _normalize_over_time(net: LayerBuilder, x: Tensor) -> Tensor:
    """Normalize each band to mean 0 and variance 1 over the frames."""
    frames = net.constant(np.array([1]))
    centred = x - emit("ReduceMean", x, frames)
    return centred / emit("Sqrt", emit("ReduceMean", centred * centred, frames) + 1e-5)
