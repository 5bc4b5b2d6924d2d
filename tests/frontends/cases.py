"""Calls of PyTorch, each with inputs of several shapes and types; a rule is right where XRT computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # as everybody writes it

from xrt.frontends.torch.backend import xrt_backend

__all__ = ["CASES", "Call", "Case", "compiled", "write"]


@dataclass(frozen=True)
class Case:
    """A function of tensors, which are made by a name for each: ``f23`` is float32[2,3], ``i4`` int64[4], ``b2`` bool[2]."""

    name: str
    function: Callable[..., Any]
    tensors: tuple[str, ...]

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(make(tensor, generator) for tensor in self.tensors)


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def compiled(
    model: Callable[..., Any], engine: Any = "toy", dynamic: bool | None = None, fullgraph: bool = True, **options: Any
) -> Any:
    """Compile a module or a function by XRT's backend."""
    options = {"engine": engine, **options}
    return torch.compile(model, backend=xrt_backend, dynamic=dynamic, fullgraph=fullgraph, options=options)


def make(text: str, generator: torch.Generator) -> torch.Tensor:
    """Make a tensor: f float32, d float64, i int64, n int32, u uint8, b bool, p positive float32, k float32 in (-1, 1)."""
    kind, shape = text[0], tuple(int(digit) for digit in text[1:])
    numbers = torch.randn(shape, generator=generator)
    results = {
        "f": lambda: numbers * 2,
        "d": lambda: numbers.double() * 2,
        "i": lambda: (numbers * 4).long(),
        "n": lambda: (numbers * 4).int(),
        "u": lambda: (numbers.abs() * 9).to(torch.uint8),
        "b": lambda: numbers > 0,
        "p": lambda: numbers.abs() + 0.1,
        "k": lambda: numbers.clamp(-0.9, 0.9),
        "x": lambda: numbers.abs().long() % 2,
    }
    return results[kind]()


def named(table: dict[str, Callable[..., Any]], *tensors: str) -> Iterator[Case]:
    for name, function in table.items():
        for tensor in tensors:
            yield Case(f"{name}-{tensor}", function, tuple(tensor.split()))


def listed() -> Iterator[Case]:
    """Yield every case."""
    yield from named({n: getattr(torch, n) for n in ("abs", "neg", "sign", "floor", "ceil", "round", "trunc", "square", "relu")}, "f23", "i4", "d")  # fmt: skip
    yield from named({n: getattr(torch, n) for n in ("exp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "sigmoid", "atan", "asinh", "expm1", "exp2")}, "f23", "i4", "d2")  # fmt: skip
    yield from named({n: getattr(torch, n) for n in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")}, "p23", "p")
    yield from named({n: getattr(torch, n) for n in ("asin", "acos", "atanh", "frac", "logit")}, "k23")
    yield from named({n: getattr(torch, n) for n in ("isnan", "isinf", "isfinite")}, "f23", "i3")
    yield from named({"small log1p": lambda x: torch.log1p(x * 1e-6), "small expm1": lambda x: torch.expm1(x * 1e-6)}, "f23")
    yield from named({n: getattr(torch, n) for n in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2")}, "f23 f3", "d23 f", "i4 i4")  # fmt: skip
    yield from named({"hypot": torch.hypot, "logaddexp": torch.logaddexp}, "f23 f3", "d23 f")
    yield from named(
        {n: getattr(torch, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")}, "f23 f3", "i4 f4", "b4 b4", "u3 i3", "f3 i"
    )
    yield from named({n: getattr(torch, n) for n in ("logical_and", "logical_or", "logical_xor")}, "b23 b3", "i4 f4")
    yield from named({n: getattr(torch, n) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")}, "b23 b3", "i4 i4", "u4 n4")
    yield from named({"add bool": lambda x, y: (x + y, torch.add(x, y, alpha=False), torch.add(x, y, alpha=True))}, "b4 b4")
    yield from named({"logical_not": torch.logical_not, "bitwise_not": torch.bitwise_not}, "b3", "i4")
    yield from named(
        {
            "add alpha": lambda x, y: torch.add(x, y, alpha=2),
            "sub alpha": lambda x, y: torch.sub(x, y, alpha=3),
            "floor div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
            "trunc div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
            "floor_divide": torch.floor_divide,
            "remainder": torch.remainder,
            "fmod": torch.fmod,
        },
        "f23 p3", "f23 p",
    )  # fmt: skip
    yield from named({"int floor div": lambda x: x // 3, "int rem": lambda x: x % 3, "int div": lambda x: x / 3, "shift": lambda x: (x << 2) + (x >> 1)}, "i23", "n4")  # fmt: skip
    yield from named({"rsub": lambda x: 2 - x}, "f3", "i4")
    yield from named({"radd": lambda x: x + 1.5, "rdiv": lambda x: 2 / x, "half": lambda x: x * 0.5}, "f3", "i4", "b3", "u3")  # fmt: skip
    yield from named({f"pow {e}": (lambda x, e=e: x**e) for e in (2, 3, 0.5, -1, -0.5, 1, 2.5)}, "p23")
    yield from named({"int pow": lambda x: x**3, "scalar pow": lambda x: 2.0**x}, "i4", "f23")
    yield from named({"pow": torch.pow}, "p23 f3")
    yield from named(
        {
            "where": lambda c, x, y: torch.where(c, x, y),
            "where scalar": lambda c, x, y: torch.where(c, x, 2.0) + torch.where(c, 1.0, y),
            "masked_fill": lambda c, x, y: x.masked_fill(c, -math.inf).masked_fill(~c, 3),
        },
        "b23 f23 f3",
    )
    yield from named({"clamp": lambda x: x.clamp(-1, 1), "clamp min": lambda x: x.clamp(min=0), "clamp max": lambda x: x.clamp(max=1), "clip": lambda x: torch.clip(x, 0.5, 1.5)}, "f23", "i4")  # fmt: skip
    yield from named({"clamp tensors": lambda x, y: torch.clamp(x, y, y + 1)}, "f23 f3")
    yield from named({"nan_to_num": lambda x: torch.nan_to_num(torch.where(x > 0, math.nan, x / 0.0), 1.0, 2.0)}, "f23")
    yield from named({n: getattr(F, n) for n in ("gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "hardswish", "hardsigmoid", "hardtanh", "relu6", "softplus", "logsigmoid", "softsign", "tanhshrink")}, "f23", "f")  # fmt: skip
    yield from named(
        {
            "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
            "elu alpha": lambda x: F.elu(x, 0.3),
            "celu alpha": lambda x: F.celu(x, 0.3),
            "celu double": lambda x: F.celu(x.double(), 0.3),
            "leaky": lambda x: F.leaky_relu(x, 0.3),
            "softplus": lambda x: F.softplus(x * 20, 2.0, 5.0),
            "threshold": lambda x: F.threshold(x, 0.5, -1.0),
            "glu": lambda x: F.glu(x, 0),
            "softmax": lambda x: F.softmax(x, 0),
            "log_softmax": lambda x: F.log_softmax(x, -1),
            "softmax dtype": lambda x: F.softmax(x, 1, dtype=torch.float64),
            "dropout": lambda x: F.dropout(x, 0.5, training=False),
            "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
            "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5) + torch.addcdiv(x, x, x * x + 1, value=2),
        },
        "f43",
    )
    yield from named({"prelu": F.prelu}, "f234 f3", "f23 f1")
    yield from shape_cases()
    yield from reduce_cases()
    yield from index_cases()
    yield from neural_cases()


def shape_cases() -> Iterator[Case]:
    yield from named(
        {
            "view": lambda x: x.view(6, 4),
            "reshape": lambda x: x.reshape(-1, 3),
            "flatten": lambda x: x.flatten(1),
            "unflatten": lambda x: x.unflatten(2, (2, 2)),
            "permute": lambda x: x.permute(2, 0, 1),
            "transpose": lambda x: x.transpose(0, -1),
            "mT": lambda x: x.mT,
            "movedim": lambda x: x.movedim(0, 2) + x.movedim((0, 1), (2, 0)).sum(),
            "squeeze": lambda x: x[:, :1].squeeze(1) + x[:1].squeeze().sum() + x.squeeze(0).sum(),
            "unsqueeze": lambda x: x.unsqueeze(-1) + x.unsqueeze(0).sum(),
            "expand": lambda x: x[:, :1].expand(2, 3, 4) + x[0, 0].expand(5, -1).sum(),
            "expand_as": lambda x: x[:, :1].expand_as(x),
            "repeat": lambda x: x.repeat(1, 2, 1) + x.repeat(2, 1, 2, 1).sum(),
            "tile": lambda x: x.tile(2),
            "interleave": lambda x: x.repeat_interleave(2, 1) + x.repeat_interleave(2, -1).sum() + x.repeat_interleave(2).sum(),
            "cat": lambda x: torch.cat([x, x * 2, torch.zeros(0)], -1),
            "cat types": lambda x: torch.cat([x, x > 0]),
            "stack": lambda x: torch.stack([x, x * 2], -1) + torch.stack([x, x], 0).sum(),
            "split": lambda x: x.split(3, 2),
            "split sizes": lambda x: x.split([1, 2], 1),
            "chunk": lambda x: x.chunk(3, -1),
            "unbind": lambda x: x.unbind(1),
            "slice": lambda x: (x[:, 1:], x[..., ::2], x[:, -2:-1], x[1:0], x[:, :, 100:]),
            "select": lambda x: (x[1], x[:, -1], x[..., 0]),
            "narrow": lambda x: x.narrow(1, 1, 2),
            "flip": lambda x: x.flip(0, 2),
            "roll": lambda x: x.roll(1, 0) + x.roll((1, -2), (1, 2)) + x.roll(5),
            "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
            "pad cut": lambda x: F.pad(x, (-1, 2)),
            "pad reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
            "pad replicate": lambda x: F.pad(x, (1, 2), mode="replicate"),
            "pad circular": lambda x: F.pad(x, (1, 2), mode="circular"),
            "tril": lambda x: x.tril() + x.triu(1) + x.tril(-1),
            "tril bool": lambda x: (x > 0).tril(),
            "diagonal": lambda x: (x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-1, 2, 0)),
            "unfold": lambda x: x.unfold(2, 2, 1),
            "as_strided": lambda x: x.as_strided((2, 3), (4, 1), 5),
            "to": lambda x: (x.to(torch.float64), x.to(torch.int64), x.bool(), x.half(), x.type_as(x), x.int()),
            "clone": lambda x: x.clone().contiguous() + x.detach(),
            "full": lambda x: (torch.full((2, 2), 3.0), torch.zeros(2), torch.ones(2, dtype=torch.int64), torch.full_like(x, 2)),
            "like": lambda x: (torch.zeros_like(x), torch.ones_like(x, dtype=torch.bool), x.new_zeros(2), x.new_full((2,), 5)),
            "arange": lambda x: (torch.arange(5), torch.arange(1, 7, 2), torch.arange(0, 1, 0.3), torch.linspace(0, 1, 5)),
            "eye": lambda x: (torch.eye(3), torch.eye(2, 3)),
            "broadcast": lambda x: torch.broadcast_tensors(x, x[0, :1]),
            "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
        },
        "f234",
    )  # fmt: skip
    yield from named(
        {"empty view": lambda x: (x.view(2, 0, 0), x.reshape(0, 7), x.flatten(), x.flatten(1, 2), x.squeeze())}, "f1200"
    )
    yield from named({"empty shape": lambda x: (x.diagonal(), x.roll(1), x.repeat_interleave(2), x.view(25, 0))}, "f550")
    yield from named({"t": torch.t, "numpy_T": lambda x: x.T}, "f23")
    yield from named({"shuffle": lambda x: F.pixel_shuffle(x, 2), "unshuffle": lambda x: F.pixel_unshuffle(x, 2), "channels": lambda x: F.channel_shuffle(x, 2)}, "f1446")  # fmt: skip
    yield from named({"scalar": lambda x: (x.reshape(1), x.unsqueeze(0), x.sum(0), x.view(-1), x.expand(3))}, "f")
    yield from named({"im2col": lambda x: F.unfold(x, (2, 3), dilation=(1, 1), padding=(1, 0), stride=(2, 1))}, "f2345")


def reduce_cases() -> Iterator[Case]:
    yield from named(
        {
            "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum(0, dtype=torch.float64)),
            "prod": lambda x: (x.prod(), x.prod(1)),
            "max": lambda x: (x.max(), *x.max(1), x.amax((0, 1)), x.argmax(), x.argmax(0, keepdim=True)),
            "min": lambda x: (x.min(), *x.min(1, keepdim=True), x.amin(0), x.argmin(), x.argmin(-1)),
            "any": lambda x: ((x > 1).any(), (x > 1).any(0), x.any(1, keepdim=True)),
            "all": lambda x: ((x > -1).all(), (x > -1).all(0), x.all(1)),
            "count": lambda x: (x.count_nonzero(), (x > 0).count_nonzero(0)),
            "cumsum": lambda x: (x.cumsum(0), x.cumsum(-1), (x > 0).cumsum(1)),
            "cumprod": lambda x: x.cumprod(1),
            "topk": lambda x: (*x.topk(2), x.topk(2, 0, largest=False)[0]),
            "sort": lambda x: (x.sort()[0], x.sort(0, descending=True)[0], x.msort()),
        },
        "f34", "i34",
    )  # fmt: skip
    yield from named(
        {
            "mean": lambda x: (x.mean(), x.mean((0, 1)), x.mean(-1, keepdim=True)),
            "var": lambda x: (
                x.var(),
                x.var(1),
                x.var(0, correction=0),
                x.std(),
                x.std(1, keepdim=True),
                x.var(0, unbiased=False),
            ),
            "var_mean": lambda x: torch.var_mean(x, (0, 1), correction=0),
            "logsumexp": lambda x: x.logsumexp(1),
            "norm": lambda x: (x.norm(), x.norm(1, 0), torch.linalg.vector_norm(x, 3, 1), torch.linalg.vector_norm(x, math.inf)),
            "normalize": lambda x: F.normalize(x, dim=1),
            "aminmax": lambda x: torch.aminmax(x, dim=0),
        },
        "f34",
        "d345",
    )


def index_cases() -> Iterator[Case]:
    yield from named(
        {
            "embedding": lambda x, i: F.embedding(i, x),
            "index": lambda x, i: (x[i], x[:, i], x[i, i], x[i[:, None], i]),
            "index_select": lambda x, i: x.index_select(1, i),
            "index_add": lambda x, i: x.index_add(0, i, torch.ones(3, 4)),
            "index_copy": lambda x, i: x.index_copy(1, torch.tensor([2, 0, 1]), torch.ones(4, 3)),
            "index_fill": lambda x, i: x.index_fill(1, i, 2.0),
            "index_put": lambda x, i: x.index_put((i,), torch.tensor(7.0)),
            "index_put pair": lambda x, i: x.index_put((i, i), torch.arange(3.0), accumulate=True),
            "take": lambda x, i: x.take(i),
            "bucketize": lambda x, i: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
            "one_hot": lambda x, i: F.one_hot(i, 4),
        },
        "f44 x3",
    )
    yield from named(
        {
            "gather": lambda x, i: (x.gather(0, i), x.gather(1, i)),
            "scatter": lambda x, i: (x.scatter(1, i, 5.0), x.scatter(0, i, x * 2)),
            "scatter_add": lambda x, i: x.scatter_add(0, i, torch.ones(3, 4)),
            "scatter_reduce": lambda x, i: (x.scatter_reduce(0, i, x, "amax"), x.scatter_reduce(1, i, x, "sum")),
        },
        "f34 x34",
    )
    yield from named(
        {
            "mask": lambda x: x[x > 0],
            "mask rows": lambda x: x[x[:, 0] > 0],
            "masked_select": lambda x: x.masked_select(x > 0),
            "nonzero": lambda x: (x > 0).nonzero(),
            "masked_scatter": lambda x: x.masked_scatter(x > 0, torch.arange(12.0)),
            "mask put": lambda x: x.index_put((x > 0,), torch.tensor(1.0)),
            "writes": write,
        },
        "f34",
    )

    yield from named(
        {"masked_scatter wide": lambda x, y, b: (x.masked_scatter(b, y), x.masked_scatter(b[0] > b[1], y))},
        "f4 f34 b34",
        "f14 f55 b34",
    )


def write(x: torch.Tensor) -> torch.Tensor:
    """Write to parts of a copy, in the ways that PyTorch makes functional by scatters."""
    y = x.clone()
    y[:, 1] = 2
    y[0] += 1
    y[1:, ::2] = x[1:, ::2] * 3
    y[:, -1].mul_(2)
    y[x > 1] = 0
    return y.add_(1).relu_()


def neural_cases() -> Iterator[Case]:
    yield from named({"matmul": torch.matmul}, "f234 f45", "f34 f4", "f4 f4", "f4 f45", "i23 i34", "d234 d245")
    yield from named(
        {"linear": lambda x, w: (F.linear(x, w), F.linear(x, w, w[:, 0]))}, "f24 f34", "f234 f54", "f4 f34", "d24 d34"
    )
    yield from named({"addmm": lambda b, x, y: (torch.addmm(b, x, y), torch.addmm(b, x, y, beta=0.5, alpha=2))}, "f3 f24 f43")
    yield from named({"baddbmm": lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2)}, "f253 f254 f243")
    yield from named(
        {"einsum": lambda x, y: (torch.einsum("bij, bkj -> bik", x, y), torch.einsum("bij,bkj->b", x, y))}, "f234 f254"
    )
    yield from named({"outer": torch.outer, "dot": torch.dot}, "f3 f3")
    yield from named({"cdist": torch.cdist}, "f23 f43")
    yield from named(
        {"cosine_similarity": F.cosine_similarity, "quantile": lambda x, y: x.quantile(0.3, 1) + y.nanmean()}, "f23 f23"
    )
    yield from named(
        {
            "conv1d": lambda x, w: F.conv1d(x, w, w[:, 0, 0], stride=2, padding=1),
            "conv1d same": lambda x, w: F.conv1d(x, w, padding="same", dilation=2),
            "conv1d single": lambda x, w: F.conv1d(x[0], w),
            "transposed": lambda x, w: F.conv_transpose1d(x, w.transpose(0, 1), stride=2, padding=1, output_padding=1),
        },
        "f239 f433",
    )
    yield from named({"conv2d": lambda x, w: F.conv2d(x, w, None, (1, 2), (1, 0), (1, 2), 2), "transposed2d": lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2)}, "f2467 f4233")  # fmt: skip
    yield from named({"conv3d": lambda x, w: F.conv3d(x, w, padding=1)}, "f12444 f32333")
    yield from named(
        {
            "batch_norm": lambda x, p: F.batch_norm(x, p, p + 1, p * 2, p, eps=1e-3),
            "batch_norm bare": lambda x, p: F.batch_norm(x, p, p + 1),
            "group_norm": lambda x, p: F.group_norm(x, 2, p, p * 2),
            "native_group_norm": lambda x, p: (
                torch.native_group_norm(x, p, p, 2, 4, 5, 2, 1e-5),
                torch.native_group_norm(x[:0], p, p, 0, 4, 5, 2, 1e-5),
            ),
            "instance_norm": lambda x, p: F.instance_norm(x, weight=p, bias=p),
            "lrn": lambda x, p: F.local_response_norm(x, 3),
        },
        "f245 p4",
    )
    yield from named(
        {
            "layer_norm": lambda x, w: F.layer_norm(x, (4,), w, w + 1, 1e-3),
            "layer_norm bare": lambda x, w: F.layer_norm(x, (3, 4)),
            "rms_norm": lambda x, w: (F.rms_norm(x, (4,), w), F.rms_norm(x, (4,), eps=1e-3)),
        },
        "f234 f4",
    )
    yield from named(
        {
            "max_pool1d": lambda x: F.max_pool1d(x[:, :, 0], 3, 2, 1),
            "max_pool2d": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True), F.max_pool2d(x, 2, dilation=2)),
            "avg_pool2d": lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
            "avg_pool ceil": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
            "adaptive": lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool2d(x, (4, None))),
            "max_pool2d indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
            "adaptive max": lambda x: (F.adaptive_max_pool2d(x, (3, 4)), F.adaptive_max_pool2d(x, 1)),
            "nearest": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(5, 9))),
            "bilinear": lambda x: (F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=True)),
            "bicubic": lambda x: F.interpolate(x, size=(5, 9), mode="bicubic"),
        },
        "f2268", "f2378",
    )  # fmt: skip
    yield from named({"grid": lambda x, g: (F.grid_sample(x, g / 3, align_corners=False), F.grid_sample(x, g / 3, "nearest", "border", True))}, "f1245 f1342")  # fmt: skip

    lowest = float("-inf")
    yield from named({"squeeze of no axes": lambda x: x.squeeze(()) + 1}, "f11")
    yield from named({"view_as": lambda x, y: x.view_as(y) * 2}, "f23 f32")
    yield from named({"meshgrid of a number": lambda x, y: torch.meshgrid(x, y, indexing="ij")}, "f f3", "f3 f")
    yield from named({"a copy that casts": lambda x, y: x.clone().copy_(y)}, "f23 i3", "i23 f23")
    yield from named({"indices of int32": lambda x: x[torch.tensor([0, 1]).int(), torch.tensor([1, 0]).int()]}, "f23")
    yield from named({"write at int32": lambda x, y: x.index_put((y % 2, y % 2), x[0, :2])}, "f23 n2")
    yield from named({"softmax of a number that is 0": lambda x: F.softmax(x * 0, 0)}, "f")
    yield from named({"rows that are hidden": lambda x: torch.ops.aten._safe_softmax(torch.cat([x, x - torch.inf]), -1)}, "f23")
    yield from named({mode: lambda x, mode=mode: F.pad(x, (-3, 2), mode) for mode in ("replicate", "reflect")}, "f234")
    yield from named({f"norm {p}": lambda x, p=p: torch.linalg.vector_norm(x, p) for p in (1, 2, 3)}, "f", "f23")
    yield from named({"inner": torch.inner}, "f f33", "f33 f", "f23 f43")
    yield from named({"logaddexp of infinities": lambda x: torch.logaddexp(torch.full_like(x, lowest), torch.full_like(x, lowest))}, "f2")  # fmt: skip
    yield from named({"index_fill of a number": lambda x: x.index_fill(0, torch.tensor([0]), 1)}, "f")
    yield from named({"matrix_power": lambda x: torch.linalg.matrix_power(x, 3)}, "f33")


CASES = list(listed())
