"""The layers of MobileNet v2 that find features, which networks with different ends share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.builder.record_op import emit
from xrt.models.layer_builder import HE, LayerBuilder, get_value_shape

if TYPE_CHECKING:
    from xrt.builder import Tensor

__all__ = ["depthwise", "mobile_features", "relu6"]

_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repeats and first stride of each group of blocks (Sandler et al. 2018, table 2)."""


def mobile_features(net: LayerBuilder, image: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return features at a sixteenth of the image's size, widened, and the last ones, at half of that; `width` is in per cent."""
    x = relu6(net.convolution(image, _scaled(32, width), 3, stride=2, gain=HE))
    sixteenth = x
    for expansion, channels, repeats, stride in _BLOCKS:
        for step in (stride, *[1] * (repeats - 1)):
            wide = x if expansion == 1 else relu6(net.convolution(x, get_value_shape(x)[1] * expansion, 1, gain=HE))
            sixteenth = wide if step == 2 else sixteenth  # the last block that halves the image reads what is asked for
            x = _narrowed(net, x, wide, _scaled(channels, width), step)
    return sixteenth, relu6(net.convolution(x, _scaled(1280, max(width, 100)), 1, gain=HE))


def _narrowed(net: LayerBuilder, x: Tensor, wide: Tensor, channels: int, stride: int) -> Tensor:
    """Convolve each wide channel by itself and narrow them; add the block's input where the shapes allow it."""
    narrow = net.convolution(depthwise(net, wide, stride), channels, 1)
    return x + narrow if stride == 1 and get_value_shape(x)[1] == channels else narrow


def depthwise(net: LayerBuilder, x: Tensor, stride: int = 1) -> Tensor:
    """Convolve each channel by itself and rectify."""
    channels = get_value_shape(x)[1]
    return relu6(net.convolution(x, channels, 3, stride=stride, group=channels, gain=HE))


def relu6(x: Tensor) -> Tensor:
    """Rectify and bound by 6."""
    return emit("Clip", x, 0.0, 6.0)


def _scaled(channels: int, width: int) -> int:
    """Return a share of the channels, a multiple of 8."""
    return max(8, round(channels * width / 800) * 8)
