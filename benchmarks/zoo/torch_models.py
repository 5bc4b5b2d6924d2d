"""Plain PyTorch modules: operators, control flow and layers that the architectures of transformers do not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.model import CreatedModel, Export, Module
from benchmarks.zoo.torch_export import export_module

Calls = Sequence[Mapping[str, torch.Tensor]]


class Apply(nn.Module):
    """A module of a function and submodules, called with the inputs by name."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.function(self, **inputs)


def make_calls(*shapes: Sequence[int]) -> Calls:
    """Return one call per shape, with one input ``x``."""
    return [{"x": torch.randn(*shape)} for shape in shapes]


def unet(m: Any, x: torch.Tensor) -> torch.Tensor:
    down = functional.relu(m.first(x))
    low = functional.relu(m.second(functional.max_pool2d(down, 2)))
    up = functional.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
    return m.last(torch.cat([down, up], 1))  # type: ignore[no-any-return]


def resize(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return [
        functional.interpolate(x, size=(13, 9), mode="nearest"),
        functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True),
        functional.interpolate(x, size=(5, 7), mode="bicubic", align_corners=False),
    ]


def sample(m: Any, x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
    return [
        functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
        if not (mode == "bicubic" and padding == "reflection")
    ]


def pools(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    best, where = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    mean = functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    return [best, where, mean, functional.adaptive_avg_pool2d(x, 2), functional.lp_pool2d(x, 2.0, 2)]


def indexing(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    best, where = x.topk(3, dim=-1)
    sums = torch.zeros_like(x).scatter_add(1, where, best)
    return [best, where, sums, x.gather(1, where.flip(1)), x[:, ::2], x.roll(2, 1), x.cumsum(1), x.argmax(1), x.tril()]


def math(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    positive = x.abs() + 0.5
    return [
        torch.erf(x), torch.log1p(positive), torch.expm1(x), torch.sinh(x), torch.atan2(x, positive), torch.logsumexp(x, -1),
        x.std(-1), x.prod(-1), torch.fmod(x, 0.7), torch.remainder(x, 0.7), x.clamp(-0.5, 0.5), torch.where(x > 0, x, -x),
        torch.logical_xor(x > 0, positive > 1), (x > 0) == (positive > 1), functional.softplus(x), functional.mish(x),
    ]  # fmt: skip


def fourier(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    spectrum = torch.fft.rfft(x)
    return [spectrum.real, spectrum.imag, spectrum.abs()]


def spectrogram(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True, center=False))


def attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.layer(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


def products(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    square = torch.einsum("bij,bkj->bik", x, x)
    return [square, torch.einsum("bij,bij->bi", x, x), torch.einsum("bij->bji", x), torch.baddbmm(square, x, x.mT)]


def nonzero(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return [(x > 0.5).nonzero(), x[x > 0.5]]


def shapes(m: Any, x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    heads = x.reshape(batch, length, 4, width // 4).transpose(1, 2)
    padded = functional.pad(heads, (0, 0, 0, length % 4 + 2))
    return padded[:, :, : length + 1].reshape(batch, -1, width) + torch.arange(width)


def normalizations(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return [
        m.batch(x),
        m.group(x),
        m.instance(x),
        m.layer(x),
        functional.local_response_norm(x, 3),
        functional.normalize(x, dim=1),
    ]


def convolutions(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return [m.plain(x), m.depthwise(x), m.dilated(x), m.transposed(x)]


def shuffle(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return [functional.pixel_shuffle(x, 2), functional.pixel_unshuffle(x, 2)]


def activations(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
    kinds = (
        functional.elu,
        functional.selu,
        functional.celu,
        functional.gelu,
        functional.silu,
        functional.hardswish,
        functional.hardsigmoid,
        functional.leaky_relu,
        functional.softsign,
        functional.logsigmoid,
        torch.tanh,
        functional.relu6,
    )
    return [kind(x) for kind in kinds] + [functional.glu(x, 1), functional.gelu(x, approximate="tanh"), m.prelu(x)]  # fmt: skip


PLAIN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Calls], bool, int, Mapping[str, Sequence[int]]]] = {
    "mlp": (lambda: Apply(lambda m, x: m.net(x), net=nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))), lambda: make_calls((2, 8), (5, 8)), False, 17, {"x": (0,)}),
    "lstm": (lambda: Apply(lambda m, x: m.net(x), net=nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)), lambda: make_calls((2, 7, 8), (3, 7, 8)), False, 17, {"x": (0,)}),
    "gru": (lambda: Apply(lambda m, x: m.net(x), net=nn.GRU(8, 16, batch_first=True)), lambda: make_calls((2, 7, 8), (2, 9, 8)), False, 17, {"x": (0, 1)}),
    "rnn": (lambda: Apply(lambda m, x: m.net(x), net=nn.RNN(8, 16, nonlinearity="relu")), lambda: make_calls((7, 2, 8), (9, 2, 8)), False, 17, {"x": (0,)}),
    "encoder": (lambda: Apply(lambda m, x: m.net(x), net=nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)), lambda: make_calls((2, 9, 32), (3, 12, 32)), True, 20, {"x": (0, 1)}),
    "attention": (lambda: Apply(attention, layer=nn.MultiheadAttention(32, 4, batch_first=True)), lambda: make_calls((2, 9, 32), (3, 12, 32)), True, 18, {"x": (0, 1)}),
    "unet": (lambda: Apply(unet, first=nn.Conv2d(3, 8, 3, padding=1), second=nn.Conv2d(8, 8, 3, padding=1), last=nn.Conv2d(16, 2, 1)), lambda: make_calls((1, 3, 16, 16), (2, 3, 16, 16)), False, 17, {"x": (0,)}),
    "tcn": (lambda: Apply(lambda m, x: m.net(x), net=nn.Sequential(nn.Conv1d(4, 8, 3, dilation=2, padding=4), nn.ReLU(), nn.Conv1d(8, 8, 3, dilation=4, padding=8))), lambda: make_calls((2, 4, 30), (2, 4, 41)), False, 17, {"x": (0, 2)}),
    "conv3d": (lambda: Apply(lambda m, x: functional.max_pool3d(m.net(x), 2), net=nn.Conv3d(2, 4, 3, padding=1)), lambda: make_calls((1, 2, 8, 8, 8), (2, 2, 8, 8, 8)), True, 18, {"x": (0,)}),
    "convolutions": (lambda: Apply(convolutions, plain=nn.Conv2d(8, 8, 3, stride=2), depthwise=nn.Conv2d(8, 8, 3, groups=8), dilated=nn.Conv2d(8, 4, 3, dilation=2, padding=2), transposed=nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1)), lambda: make_calls((2, 8, 12, 12), (1, 8, 12, 12)), False, 17, {"x": (0,)}),
    "normalizations": (lambda: Apply(normalizations, batch=nn.BatchNorm2d(8), group=nn.GroupNorm(2, 8), instance=nn.InstanceNorm2d(8, affine=True), layer=nn.LayerNorm(6)), lambda: make_calls((2, 8, 6, 6), (3, 8, 6, 6)), False, 17, {"x": (0,)}),
    "activations": (lambda: Apply(activations, prelu=nn.PReLU(8)), lambda: make_calls((2, 8, 5), (3, 8, 5)), False, 17, {"x": (0,)}),
    "pools": (lambda: Apply(pools), lambda: make_calls((2, 4, 12, 12), (3, 4, 12, 12)), False, 17, {"x": (0,)}),
    "resize": (lambda: Apply(resize), lambda: make_calls((2, 3, 8, 8), (1, 3, 8, 8)), False, 17, {"x": (0,)}),
    "grid_sample": (lambda: Apply(sample), lambda: [{"x": torch.randn(2, 3, 6, 5), "grid": torch.rand(2, 4, 7, 2) * 2.4 - 1.2}], False, 20, {}),
    "pixel_shuffle": (lambda: Apply(shuffle), lambda: make_calls((2, 8, 4, 6), (1, 8, 4, 6)), False, 17, {"x": (0,)}),
    "indexing": (lambda: Apply(indexing), lambda: make_calls((4, 10), (6, 10)), True, 18, {"x": (0,)}),
    "math": (lambda: Apply(math), lambda: make_calls((4, 10), (6, 10)), True, 18, {"x": (0,)}),
    "fft": (lambda: Apply(fourier), lambda: make_calls((2, 40), (3, 40)), True, 20, {"x": (0,)}),
    "stft": (lambda: Apply(spectrogram), lambda: make_calls((2, 400)), True, 20, {}),
    "einsum": (lambda: Apply(products), lambda: make_calls((2, 5, 6), (3, 5, 6)), True, 18, {"x": (0,)}),
    "nonzero": (lambda: Apply(nonzero), lambda: make_calls((4, 10), (6, 10)), False, 17, {"x": (0,)}),
    "shapes": (lambda: Apply(shapes), lambda: make_calls((2, 9, 32), (3, 12, 32)), True, 18, {"x": (0, 1)}),
    "embedding": (lambda: Apply(lambda m, ids: m.table(ids).mean(1), table=nn.Embedding(50, 16)), lambda: [{"ids": torch.randint(0, 50, (2, 7))}, {"ids": torch.randint(0, 50, (3, 9))}], False, 17, {"ids": (0, 1)}),
}  # fmt: skip


def list_exports() -> Iterator[Export]:
    """Yield every module."""
    for name in PLAIN:
        yield Export(name, "torch", partial(_make, name))


def list_modules() -> Iterator[Module]:
    """Yield every module as it is."""
    for name in PLAIN:
        yield Module(name, "torch", partial(_make_module, name))


def _make_module(name: str) -> tuple[nn.Module, Calls]:
    torch.manual_seed(0)
    return PLAIN[name][0]().eval(), PLAIN[name][1]()


def _make(name: str) -> CreatedModel:
    _, _, dynamo, opset, axes = PLAIN[name]
    return export_module(*_make_module(name), dynamo=dynamo, opset=opset, axes=axes)
