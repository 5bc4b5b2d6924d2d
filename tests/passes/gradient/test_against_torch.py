"""Gradients of operators and of networks beside those of torch.autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import xrt
from tests.passes.gradient.checking import Array, make_function, run
from xrt import ops

DRAW = np.random.default_rng(3)
Build = Callable[..., Any]


def f(*shape: int, dtype: Any = np.float64) -> Array:
    return DRAW.standard_normal(shape).astype(dtype)


def operators() -> Iterator[tuple[str, Build, Build, tuple[Array, ...]]]:
    for dtype in (np.float32, np.float64):
        for k in range(3):
            n, c, h = (int(DRAW.integers(1, 4)) for _ in range(3))
            x = f(n, 2 * c, 5 + h, 6, dtype=dtype)
            weights = f(4, c, 3, 2, dtype=dtype)
            strides, pads = [int(s) for s in DRAW.integers(1, 3, 2)], [int(p) for p in DRAW.integers(0, 2, 2)]
            yield (
                f"Conv {k} {dtype.__name__}",
                lambda x, w, s=strides, p=pads: ops.Conv(x, w, strides=s, pads=[*p, *p], group=2),
                lambda x, w, s=strides, p=pads: functional.conv2d(x, w, stride=s, padding=p, groups=2),
                (x, weights),
            )
            yield (
                f"MaxPool {k} {dtype.__name__}",
                lambda x, s=strides: ops.MaxPool(x, kernel_shape=[3, 2], strides=s, outputs=1)[0],
                lambda x, s=strides: functional.max_pool2d(x, (3, 2), stride=s),
                (x,),
            )
            yield (
                f"Softmax {k} {dtype.__name__}",
                lambda x: ops.Softmax(x, axis=1) * ops.LogSoftmax(x, axis=-1),
                lambda x: functional.softmax(x, 1) * functional.log_softmax(x, -1),
                (x,),
            )
            yield (
                f"LayerNormalization {k} {dtype.__name__}",
                lambda x, w, d=dtype: ops.LayerNormalization(x, w, stash_type=11 if d is np.float64 else 1, outputs=1)[0],
                lambda x, w: functional.layer_norm(x, (6,), w),
                (x, f(6, dtype=dtype)),
            )
            yield (
                f"extremes {k} {dtype.__name__}",
                lambda a, b: ops.Max(ops.Round(a * 2), ops.Round(b * 2)) * a + ops.ReduceMax(ops.Relu(b), [1]),
                lambda a, b: torch.maximum((a * 2).round(), (b * 2).round()) * a + torch.amax(torch.relu(b), 1, True),
                (x, f(1, 2 * c, 1, 6, dtype=dtype)),
            )

    order = np.concatenate([np.arange(gate * 3, gate * 3 + 3) for gate in (0, 3, 1, 2)])  # PyTorch's gates are in another order

    def lstm(x: Any, w: Any, r: Any, b: Any, c: Any) -> Any:
        rows = [ops.Unsqueeze(ops.Gather(one, order), np.asarray([0])) for one in (w, r, b, c)]
        return ops.Squeeze(ops.LSTM(x, *rows[:2], ops.Concat(*rows[2:], axis=1), hidden_size=3, outputs=1)[0], np.asarray([1]))

    def witness(x: Any, w: Any, r: Any, b: Any, c: Any) -> Any:
        zeros = torch.zeros(1, 2, 3, dtype=x.dtype)
        return torch.lstm(x, (zeros, zeros), [w, r, b, c], True, 1, 0.0, False, False, False)[0]

    for dtype in (np.float32, np.float64):
        arrays = tuple(f(*shape, dtype=dtype) for shape in ((5, 2, 4), (12, 4), (12, 3), (12,), (12,)))
        yield f"LSTM {dtype.__name__}", lstm, witness, arrays


@pytest.mark.parametrize(
    ("name", "build", "witness", "arrays"), list(operators()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_operator_has_the_gradient_of_torch(name: str, build: Build, witness: Build, arrays: tuple[Array, ...]) -> None:
    function = make_function(build, arrays)
    y = run(function, arrays)[0]
    seed = f(*y.shape, dtype=y.dtype)
    found = run(xrt.gradient(function, seeds=True), [*arrays, seed])[1:]
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays]
    expected = torch.autograd.grad(witness(*tensors), tensors, torch.from_numpy(seed), allow_unused=True)
    tolerance = 1e-10 if y.dtype == np.float64 else 2e-5
    for a, e in zip(found, expected, strict=True):
        wanted = np.zeros_like(a) if e is None else e.numpy()
        np.testing.assert_allclose(a, wanted, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(wanted).max())))


# ---------------------------------------------------------------------- networks


class Loss(nn.Module):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    """The cross entropy of a network's scores."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.network(x), labels)


class Decoder(nn.Module):  # type: ignore[misc]  # as above
    """One block of a decoder with causal attention and tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.out = nn.Embedding(7, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.first, self.second = nn.LayerNorm(8), nn.RMSNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embedding(x)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.first(h)).chunk(3, -1))
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attention.transpose(1, 2).flatten(2))
        h = h + self.down(functional.gelu(self.up(self.second(h)), approximate="tanh"))
        return (h @ self.embedding.weight.T).mean(1)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...], int, int]]:
    """Return networks, each with the shape of its input, the bound of its integers (0 for floats) and the number of classes."""
    convolutional = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=4),
        nn.SiLU(),
        nn.MaxPool2d(2, padding=1),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.GroupNorm(2, 4),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )
    layers = (nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.ELU(), nn.Linear(9, 4))
    encoder = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(24, 3))
    return {
        "layers": (nn.Sequential(*layers), (3, 6), 0, 4),
        "convolutional": (convolutional, (2, 3, 9, 8), 0, 5),
        "encoder": (encoder, (2, 3, 8), 0, 3),
        "decoder": (Decoder(), (2, 4), 7, 7),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(networks()))
def test_a_network_has_the_gradients_of_torch(name: str) -> None:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        network, shape, bound, classes = networks()[name]
    finally:
        torch.set_default_dtype(torch.float32)
    module = Loss(network).train()
    x = torch.from_numpy(DRAW.integers(0, bound, shape) if bound else DRAW.standard_normal(shape))
    labels = torch.from_numpy(DRAW.integers(0, classes, shape[0]))
    buffers = {key: value.clone() for key, value in module.named_buffers()}
    function = xrt.from_torch(module, (x, labels))
    parameters = dict(module.named_parameters())
    names = [key for key in parameters if key in function.constants]
    assert len(names) == len(parameters)
    differentiated = xrt.gradient(function, of=function.outputs[0].name, with_respect_to=names)
    states = [buffers[value.name].numpy() for value in function.inputs[2:]]
    results = run(differentiated, [x.numpy(), labels.numpy(), *states])
    loss = module(x, labels)
    expected = torch.autograd.grad(loss, [parameters[key] for key in names])
    np.testing.assert_allclose(results[0], loss.detach().numpy(), rtol=1e-6)
    for key, found, wanted in zip(names, results[len(function.outputs) :], expected, strict=True):
        scale = float(wanted.abs().max())  # epsilons are float32 in ONNX
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6 * scale, err_msg=key)
