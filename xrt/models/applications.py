"""Whole applications in one graph each: what prepares the data, the network, and what makes the answer of its numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.record_op import emit
from xrt.errors import OptionError
from xrt.graph import DType, Function
from xrt.models.layer_builder import HE, LayerBuilder, get_value_shape

if TYPE_CHECKING:
    from xrt.builder import Tensor

__all__ = ["dlrm", "speech", "unet"]

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
    """Return a recommender with the shape of DLRM (Naumov et al. 2019): dense features, sets of ids, and how each pair agrees.

    The layers are those for the Criteo terabyte data, whose tables have millions of entries.
    """
    with LayerBuilder("dlrm", seed) as net:
        x = net.input("dense", batch, dense)
        ids = net.input("ids", tables, batch, lookups, dtype=DType.INT64)
        x = _perceptron(net, x, (bottom, bottom // 2, width))
        found = [_bag(net, emit("Gather", ids, net.constant(np.array(k)), axis=0), entries, width) for k in range(tables)]
        pairs = _agreement(net, emit("Concat", x, *found, axis=1), tables + 1)
        x = _perceptron(net, emit("Concat", x, pairs, axis=1), (top, top, top // 2))
        return net.finish(click=emit("Sigmoid", net.linear(x, 1)))


def _perceptron(net: LayerBuilder, x: Tensor, widths: tuple[int, ...]) -> Tensor:
    for columns in widths:
        x = emit("Relu", net.linear(x, columns, gain=HE))
    return x


def _bag(net: LayerBuilder, ids: Tensor, entries: int, width: int) -> Tensor:
    """Add up the entries of each set of ids; drawn so small that the product of two sums is near unit size."""
    rows = net.embed(ids, entries, width, deviation=1 / (width**0.25 * math.sqrt(get_value_shape(ids)[1])))
    return emit("ReduceSum", rows, net.constant(np.array([1])), keepdims=0)


def _agreement(net: LayerBuilder, features: Tensor, count: int) -> Tensor:
    """Multiply each vector with each other: (batch, count * width) to (batch, pairs)."""
    vectors = net.reshape(features, (0, count, -1))
    products = emit("MatMul", vectors, vectors.transpose(0, 2, 1))
    rows, columns = np.tril_indices(count, -1)
    return emit("Gather", net.reshape(products, (0, -1)), net.constant(rows * count + columns), axis=1)


# ---------------------------------------------------------------------- segmentation


def unet(seed: int = 0, *, image: int = 128, channels: int = 32, depth: int = 4, classes: int = 2, batch: int = 1) -> Function:
    """Return a network that says what each pixel belongs to, with the shape of U-Net (Ronneberger et al. 2015).

    It has half of the channels, edges padded as later ones have them, and a smaller image.
    """
    if image % 2**depth:
        raise OptionError(f"an image of {image} does not halve depth={depth} times; choose a multiple of {2**depth}")
    with LayerBuilder("unet", seed) as net:
        x = _twice(net, net.input("image", batch, 1, image, image), channels)
        skips = []
        for level in range(1, depth + 1):
            skips.append(x)
            x = _twice(net, emit("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), channels * 2**level)
        for skip in reversed(skips):
            given = get_value_shape(skip)[1]
            x = _twice(net, emit("Concat", skip, net.upsample(x, given), axis=1), given)
        return net.finish(shares=emit("Softmax", net.convolution(x, classes, 1), axis=1))


def _twice(net: LayerBuilder, x: Tensor, channels: int) -> Tensor:
    """Convolve and rectify two times; the normalisation between them is part of the weights, as it is when deployed."""
    for _ in range(2):
        x = emit("Relu", net.convolution(x, channels, 3, gain=HE))
    return x


# ---------------------------------------------------------------------- speech

_RATE = 16_000
"""Samples of a second."""


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
    """Return a recogniser from waveform to letters with the shape of Deep Speech 2 (Amodei et al. 2015).

    Windows of 20 ms each 10 ms, two convolutions over time and frequency, and gated layers that read in both directions,
    with half of the units that they have there.
    """
    with LayerBuilder("speech", seed) as net:
        x = _over_time(net, _log_mel(net, net.input("waveform", batch, samples), window, hop, mels))
        x = emit("Unsqueeze", x.transpose(0, 2, 1), net.constant(np.array([1])))
        for kernel, stride in (((41, 11), (2, 2)), ((21, 11), (2, 1))):
            x = emit("Clip", net.convolution(x, channels, kernel, stride=stride, gain=HE), 0.0, 20.0)
        x = net.reshape(x.transpose(3, 0, 1, 2), (0, 0, -1))
        for _ in range(layers):
            x = net.add_recurrent(x, hidden)
        return net.finish(letters=emit("LogSoftmax", net.linear(x, letters).transpose(1, 0, 2), axis=-1))


def _log_mel(net: LayerBuilder, waveform: Tensor, window: int, hop: int, mels: int) -> Tensor:
    """Return the logarithm of the power in each band of pitch: (batch, frames, mels)."""
    edge = window // 2
    padded = emit("Pad", waveform, net.constant(np.array([0, edge, 0, edge])), mode="reflect")
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)
    signal = emit("Unsqueeze", padded, net.constant(np.array([-1])))
    spectrum = emit("STFT", signal, net.constant(np.array(hop)), net.constant(hann), net.constant(np.array(window)), onesided=1)
    power = emit("ReduceSum", spectrum * spectrum, net.constant(np.array([-1])), keepdims=0)
    return emit("Log", emit("MatMul", power, net.constant(_mel_filters(window, mels))) + 1e-6)


def _mel_filters(window: int, mels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return triangles that overlap by half, evenly spaced in pitch (2595 log10(1 + f / 700)): (frequencies, mels)."""
    highest = 2595 * math.log10(1 + _RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, mels + 2) / 2595) - 1)
    frequencies = np.linspace(0, _RATE / 2, window // 2 + 1)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    slopes = np.minimum((frequencies - left) / (middle - left), (right - frequencies) / (right - middle))
    return np.maximum(slopes, 0).astype(np.float32)


def _over_time(net: LayerBuilder, x: Tensor) -> Tensor:
    """Give each band a mean of zero and a deviation of one over the frames."""
    frames = net.constant(np.array([1]))
    centred = x - emit("ReduceMean", x, frames)
    return centred / emit("Sqrt", emit("ReduceMean", centred * centred, frames) + 1e-5)
