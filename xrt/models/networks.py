"""Networks written in code: classifiers, a detector, a recommender, segmentation, speech, and small operator patterns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.errors import OptionError
from xrt.graph import DType, Function
from xrt.models.layer_builder import RELU_GAIN, Array, LayerBuilder, get_value_shape

if TYPE_CHECKING:
    from xrt.builder import Tensor


_BLOCK_GROUPS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats and first stride of each block group (Sandler et al. 2018, table 2)."""


def mobile_features(net: LayerBuilder, image: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Add MobileNet v2; return its expanded features at 1/16 of the image size, and the last features at 1/32.

    ``width`` is the number of channels in percent of the original network's.
    """
    # The first convolution and four of the groups halve the size: 1/32 at the end.
    x = relu6(net.convolution(image, _scale_channels(32, width), 3, stride=2, gain=RELU_GAIN))
    sixteenth = x
    for expansion, channels, repeats, stride in _BLOCK_GROUPS:
        for step in (stride, *[1] * (repeats - 1)):
            wide = x if expansion == 1 else relu6(net.convolution(x, get_value_shape(x)[1] * expansion, 1, gain=RELU_GAIN))
            if step == 2:
                sixteenth = wide  # at the end, this is the input of the last block with stride 2
            x = _project(net, x, wide, _scale_channels(channels, width), step)
    # The last layer is never narrowed (Sandler et al. 2018).
    return sixteenth, relu6(net.convolution(x, _scale_channels(1280, max(width, 100)), 1, gain=RELU_GAIN))


def _project(net: LayerBuilder, x: Tensor, wide: Tensor, channels: int, stride: int) -> Tensor:
    """Convolve ``wide`` depthwise, project it to ``channels``, and add ``x`` (a skip connection) if the shapes match."""
    # No ReLU after the projection, whose few channels would lose information.
    projected = net.convolution(depthwise(net, wide, stride), channels, 1)
    return x + projected if stride == 1 and get_value_shape(x)[1] == channels else projected


def depthwise(net: LayerBuilder, x: Tensor, stride: int = 1) -> Tensor:
    channels = get_value_shape(x)[1]
    return relu6(net.convolution(x, channels, 3, stride=stride, group=channels, gain=RELU_GAIN))


def relu6(x: Tensor) -> Tensor:
    return emit("Clip", x, 0.0, 6.0)


def _scale_channels(channels: int, width: int) -> int:
    """Compute ``width`` percent of a number of channels, rounded to a multiple of 8 as in MobileNet."""
    return max(8, round(channels * width / 800) * 8)


def mobilenet(seed: int = 0, *, image: int = 224, width: int = 100, classes: int = 1000, batch: int = 1) -> Function:
    """An image classifier with the shape of MobileNet v2 (Sandler et al. 2018); `width` scales its channels, in percent."""
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
            x = emit("Relu", net.linear(x, hidden, gain=RELU_GAIN))
        return net.finish(logits=net.linear(x, classes))


def chain(seed: int = 0, *, length: int = 50, batch: int = 1024, columns: int = 1024) -> Function:
    """A chain of cheap elementwise operators, which profits from fusion."""
    with LayerBuilder("chain", seed) as net:
        return net.finish(y=_add_elementwise(net.input("x", batch, columns), length))


def softmax_chain(seed: int = 0, *, length: int = 50, batch: int = 4096, columns: int = 1024) -> Function:
    """Elementwise operators between two softmaxes, for which different engines are the fastest."""
    with LayerBuilder("softmax_chain", seed) as net:
        x = emit("Softmax", net.input("x", batch, columns), axis=-1)
        return net.finish(y=emit("Softmax", _add_elementwise(x, length), axis=-1))


def conv_tail(seed: int = 0, *, length: int = 10, channels: int = 64, image: int = 112, batch: int = 1) -> Function:
    """A convolution followed by elementwise operators: a region boundary between them prevents fusion."""
    with LayerBuilder("conv_tail", seed) as net:
        x = net.convolution(net.input("x", batch, channels, image, image), channels, 3)
        return net.finish(y=_add_elementwise(x, length))


def conv_chain(seed: int = 0, *, length: int = 50, channels: int = 64, image: int = 112, batch: int = 1) -> Function:
    """Elementwise operators between two convolutions."""
    with LayerBuilder("conv_chain", seed) as net:
        x = net.convolution(net.input("x", batch, channels, image, image), channels, 3)
        return net.finish(y=net.convolution(_add_elementwise(x, length), channels, 3))


def gather_softmax(
    seed: int = 0, *, length: int = 30, entries: int = 8192, width: int = 1024, columns: int = 256, batch: int = 2048
) -> Function:
    """An embedding lookup, elementwise operators, a softmax and a product."""
    with LayerBuilder("gather_softmax", seed) as net:
        rows = net.embed(net.input("ids", batch, dtype=DType.INT64), entries, width)
        weights = emit("Softmax", _add_elementwise(rows, length), axis=-1)
        return net.finish(y=emit("MatMul", weights, net.normal(width, columns)))


def reductions(seed: int = 0, *, batch: int = 64, rows: int = 256, columns: int = 256) -> Function:
    """Mean and L2 norm of a tensor over its last axis, maximum and sum over the middle one, and minimum over the first."""
    with LayerBuilder("reductions", seed) as net:
        x = net.input("x", batch, rows, columns)
        outputs = {}
        for op, axis in (("ReduceMean", -1), ("ReduceMax", 1), ("ReduceSum", 1), ("ReduceL2", -1), ("ReduceMin", 0)):
            name = f"{op.removeprefix('Reduce').lower()}_{axis % 3}"
            outputs[name] = emit(op, x, net.constant(np.array([axis])), keepdims=0)
        return net.finish(**outputs)


def _add_elementwise(x: Tensor, length: int) -> Tensor:
    """Add `length` cheap operators that cannot be simplified away."""
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


_EXTRA_MAP_CHANNELS = (512, 256, 256, 128)
"""Channels of the feature maps after those of MobileNet. Each map has half the height and width of the previous one."""
_MIN_ANCHOR_SIZE, _MAX_ANCHOR_SIZE = 0.2, 0.95
"""Anchor sizes on the first and last map, relative to the image (Liu et al. 2016; the maximum as in SSDLite)."""
_ASPECT_RATIOS = (1.0, 2.0, 1 / 2, 3.0, 1 / 3)
_ANCHORS_PER_CELL = len(_ASPECT_RATIOS) + 1
"""One more than the aspect ratios: a second square, whose size is between those of the map and of the next one."""
_MAX_IOU = 0.45
"""Boxes whose intersection over union exceeds this are duplicates."""
_MIN_SCORE = 0.05
"""Detections of a lower score are dropped. Liu et al. keep those from 0.01 to draw precision curves."""


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
    """An object detector with the shape of SSDLite (Sandler et al. 2018), from a uint8 image to boxes, scores and labels.

    It is MobileNet v2 with heads on six feature maps (Liu et al. 2016). `width` scales the channels, in percent. `classes` counts
    the background, too. There are always `detections` results: those beyond the detected objects have score 0.
    """
    with LayerBuilder("detector", seed) as net:
        picture = net.input("picture", 1, height, breadth, 3, dtype=DType.UINT8)
        maps = _extract_maps(net, _preprocess(net, picture, image), width)
        offsets, logits = (_predict(net, maps, columns) for columns in (4, classes))
        boxes = _decode_boxes(net, offsets, _make_anchors([get_value_shape(x)[2] for x in maps]))
        probabilities = emit("Softmax", logits, axis=-1).transpose(0, 2, 1)
        # Class 0 is the background, which is not a detection.
        selected, scores, labels = _select_detections(net, boxes, probabilities[:, 1:], detections)
        return net.finish(boxes=selected, scores=scores, labels=labels)


def _preprocess(net: LayerBuilder, picture: Tensor, image: int) -> Tensor:
    """Move the channels of a (1, height, breadth, 3) picture first, resize it to a square, and scale it to [-1, 1]."""
    floats = picture.transpose(0, 3, 1, 2).astype("float32")
    sizes = net.constant(np.array([1, 3, image, image]))
    return emit("Resize", floats, None, None, sizes, mode="linear") * (2 / 255) - 1.0


def _extract_maps(net: LayerBuilder, image: Tensor, width: int) -> list[Tensor]:
    """Compute the six feature maps, from 1/16 of the image size to the smallest."""
    maps = list(mobile_features(net, image, width))
    for channels in _EXTRA_MAP_CHANNELS:
        x = relu6(net.convolution(maps[-1], channels // 2, 1, gain=RELU_GAIN))
        maps.append(relu6(net.convolution(depthwise(net, x, stride=2), channels, 1, gain=RELU_GAIN)))
    return maps


def _predict(net: LayerBuilder, maps: Sequence[Tensor], columns: int) -> Tensor:
    """Predict `columns` numbers for each anchor of all maps; the result has the shape (1, anchors, columns)."""
    heads = (net.convolution(depthwise(net, x), _ANCHORS_PER_CELL * columns, 1) for x in maps)
    return emit("Concat", *(net.reshape(x.transpose(0, 2, 3, 1), (1, -1, columns)) for x in heads), axis=1)


def _make_anchors(map_sizes: Sequence[int]) -> Array:
    """Compute the anchors of all maps, of shape (anchors, 4): y and x of the center, height and width, relative to the image.

    ``map_sizes`` are the side lengths of the square maps, in cells.
    """
    sizes = np.linspace(_MIN_ANCHOR_SIZE, _MAX_ANCHOR_SIZE, len(map_sizes)).tolist()
    anchors: list[tuple[float, ...]] = []
    for cells, size, next_size in zip(map_sizes, sizes, [*sizes[1:], 1.0], strict=True):
        shapes = [(size / math.sqrt(ratio), size * math.sqrt(ratio)) for ratio in _ASPECT_RATIOS]
        shapes.append((math.sqrt(size * next_size),) * 2)
        centers = [(cell + 0.5) / cells for cell in range(cells)]
        anchors += ((y, x, *shape) for y, x, shape in itertools.product(centers, centers, shapes))
    return np.array(anchors, np.float32)


def _decode_boxes(net: LayerBuilder, offsets: Tensor, anchors: Array) -> Tensor:
    """Compute the corners (y, x, y, x) of boxes from their scaled offsets and log sizes relative to the anchors."""
    # The factors 0.1 and 0.2 are the variances of SSD, by which the training scales its targets.
    anchor_centers, sizes = net.constant(anchors[:, :2].copy()), net.constant(anchors[:, 2:].copy())
    centers = offsets[:, :, :2] * 0.1 * sizes + anchor_centers
    half_sizes = emit("Exp", offsets[:, :, 2:] * 0.2) * sizes * 0.5
    return emit("Concat", centers - half_sizes, centers + half_sizes, axis=-1)


def _select_detections(net: LayerBuilder, boxes: Tensor, probabilities: Tensor, count: int) -> tuple[Tensor, ...]:
    """Select the `count` best detections by non-maximum suppression; return their boxes, scores and labels."""
    max_count = net.constant(np.array([count]))
    thresholds = (net.constant(np.array([limit], np.float32)) for limit in (_MAX_IOU, _MIN_SCORE))
    # The rows of `indices` are (image, class, anchor).
    indices = emit("NonMaxSuppression", boxes, probabilities, max_count, *thresholds)
    # The number of rows depends on the data: add `count` empty detections, so that TopK has enough elements.
    scores = emit("Concat", emit("GatherND", probabilities, indices), net.constant(np.zeros(count, np.float32)), axis=0)
    indices = emit("Concat", indices, net.constant(np.zeros((count, 3), np.int64)), axis=0)
    # Shape inference does not know the number of results of TopK: the Reshape makes it static.
    best_scores, order = (net.reshape(x, (count,)) for x in apply("TopK", (scores, max_count), {"axis": 0}))
    best = emit("Gather", indices, order, axis=0)
    best_boxes = emit("Gather", emit("Squeeze", boxes, net.constant(np.array([0]))), best[:, 2], axis=0)
    # Labels count from 1, because the background was cut off.
    return best_boxes, best_scores, best[:, 1] + 1


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

    The layers have the sizes for the Criteo terabyte data set. The tables are smaller: `entries` instead of millions.
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
    for columns in widths:
        x = emit("Relu", net.linear(x, columns, gain=RELU_GAIN))
    return x


def _sum_bags(net: LayerBuilder, ids: Tensor, entries: int, width: int) -> Tensor:
    """Sum the embeddings of each bag of ids, scaled so that a product of two sums has unit variance."""
    rows = net.embed(ids, entries, width, deviation=1 / (width**0.25 * math.sqrt(get_value_shape(ids)[1])))
    return emit("ReduceSum", rows, net.constant(np.array([1])), keepdims=0)


def _multiply_pairs(net: LayerBuilder, features: Tensor, count: int) -> Tensor:
    """Compute the dot products of all pairs of the ``count`` vectors in a row: (batch, count * width) to (batch, pairs)."""
    vectors = net.reshape(features, (0, count, -1))
    products = emit("MatMul", vectors, vectors.transpose(0, 2, 1))
    # The matrix of products is symmetric: keep those below the diagonal.
    rows, columns = np.tril_indices(count, -1)
    return emit("Gather", net.reshape(products, (0, -1)), net.constant(rows * count + columns), axis=1)


def unet(seed: int = 0, *, image: int = 128, channels: int = 32, depth: int = 4, classes: int = 2, batch: int = 1) -> Function:
    """A segmentation network with the shape of U-Net (Ronneberger et al. 2015): class probabilities of each pixel.

    By default it has half of the original channels and a smaller image. Its convolutions are padded, as in later variants.
    """
    if image % 2**depth:
        raise OptionError(f"image={image} cannot be halved depth={depth} times; choose a multiple of {2**depth}")
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
    """Add two 3x3 convolutions with ReLU; batch normalization is folded into the weights, as in deployment."""
    for _ in range(2):
        x = emit("Relu", net.convolution(x, channels, 3, gain=RELU_GAIN))
    return x


_SAMPLES_PER_SECOND = 16_000


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

    The spectrogram has a window of 20 ms every 10 ms. Two convolutions over time and frequency follow, and bidirectional GRUs
    with half of the original units. The output has log probabilities of the letters: (batch, frames, letters).
    """
    with LayerBuilder("speech", seed) as net:
        x = _normalize_over_time(net, _log_mel(net, net.input("waveform", batch, samples), window, hop, mels))
        x = emit("Unsqueeze", x.transpose(0, 2, 1), net.constant(np.array([1])))
        for kernel, stride in (((41, 11), (2, 2)), ((21, 11), (2, 1))):
            # The clipped ReLU of Deep Speech.
            x = emit("Clip", net.convolution(x, channels, kernel, stride=stride, gain=RELU_GAIN), 0.0, 20.0)
        x = net.reshape(x.transpose(3, 0, 1, 2), (0, 0, -1))
        for _ in range(layers):
            x = net.add_recurrent(x, hidden)
        return net.finish(letters=emit("LogSoftmax", net.linear(x, letters).transpose(1, 0, 2), axis=-1))


def _log_mel(net: LayerBuilder, waveform: Tensor, window: int, hop: int, mels: int) -> Tensor:
    """Compute the log mel spectrogram of waveforms; the result has the shape (batch, frames, mels)."""
    # As in librosa and PyTorch, frames are centered, and the signal is reflected at its ends.
    edge = window // 2
    padded = emit("Pad", waveform, net.constant(np.array([0, edge, 0, edge])), mode="reflect")
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)
    signal = emit("Unsqueeze", padded, net.constant(np.array([-1])))
    spectrum = emit("STFT", signal, net.constant(np.array(hop)), net.constant(hann), net.constant(np.array(window)), onesided=1)
    power = emit("ReduceSum", spectrum * spectrum, net.constant(np.array([-1])), keepdims=0)
    # The offset avoids log 0 in silent frames.
    return emit("Log", emit("MatMul", power, net.constant(_mel_filters(window, mels))) + 1e-6)


def _mel_filters(window: int, mels: int) -> Array:
    """Create triangular filters that overlap by half and are evenly spaced on the mel scale, as a (frequencies, mels) matrix."""
    # The mel scale of HTK (O'Shaughnessy 1987), up to half of the sampling rate.
    highest = 2595 * math.log10(1 + _SAMPLES_PER_SECOND / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, mels + 2) / 2595) - 1)
    frequencies = np.linspace(0, _SAMPLES_PER_SECOND / 2, window // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    slopes = np.minimum((frequencies - left) / (middle - left), (right - frequencies) / (right - middle))
    return np.maximum(slopes, 0).astype(np.float32)


def _normalize_over_time(net: LayerBuilder, x: Tensor) -> Tensor:
    frames = net.constant(np.array([1]))
    centered = x - emit("ReduceMean", x, frames)
    return centered / emit("Sqrt", emit("ReduceMean", centered * centered, frames) + 1e-5)
