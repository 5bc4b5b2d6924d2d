"""Operators that make tensors from little or nothing: constants, ranges, windows, random numbers; and Dropout."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, pi
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xrt.engines.torch.dtypes import from_numpy, get_torch_dtype
from xrt.engines.torch.kernels.precision import NARROW
from xrt.engines.torch.table import Factory, Run, Tensor, ops
from xrt.graph import DType
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []


@ops("Constant")
def constant(at: TorchKernelContext) -> Run:
    value = find_constant(at.node, at.function)
    if value is None:
        raise at.refuse("holds no numbers")
    tensor = from_numpy(value.dtype)(value.array)
    return lambda: tensor


@ops("ConstantOfShape")
def constant_of_shape(at: TorchKernelContext) -> Run:
    given, extents_of = at.attr("value"), at.read_numbers(0)
    one = torch.zeros((), dtype=torch.float32) if given is None else from_numpy(given.dtype)(given.array).reshape(())
    return lambda shape: one.expand(extents_of(shape)).clone()


@ops("EyeLike")
def eye_like(at: TorchKernelContext) -> Run:
    k, dtype = at.attr("k", 0), at.attribute_torch_dtype("dtype")

    def run(x: Tensor) -> Tensor:
        rows, columns = x.shape
        return torch.arange(columns, device="cpu").eq(torch.arange(rows, device="cpu")[:, None] + k).to(dtype or x.dtype)

    return run


@ops("Range")
def range_(at: TorchKernelContext) -> Run:
    """Element i is ``start + i * delta``, in float32 for narrower floats."""
    reads = [at.read_numbers(i) for i in range(3)]

    def run(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
        first, end, step = (read(v)[0] for read, v in zip(reads, (start, limit, delta), strict=True))
        wide = torch.float32 if start.dtype in NARROW else start.dtype
        steps = torch.arange(max(0, ceil((end - first) / step))).to(wide)
        return (torch.tensor(first, dtype=wide) + steps * torch.tensor(step, dtype=wide)).to(start.dtype)

    return run


# ---------------------------------------------------------------------- windows for signals


def _cosines(*terms: float) -> Factory:
    """Return a factory of a window that is a sum of cosines of multiples of the angle once around."""

    def factory(at: TorchKernelContext) -> Run:
        dtype = at.attribute_torch_dtype("output_datatype") or torch.float32
        shorter, count_of = 0 if at.attr("periodic", 1) else 1, at.read_numbers(0)

        def run(size: Tensor) -> Tensor:
            count = int(count_of(size)[0])
            angle = torch.arange(count, dtype=torch.float64) * (2 * pi / max(1, count - shorter))
            whole: Any = sum(term * torch.cos(k * angle) for k, term in enumerate(terms))
            return whole.to(dtype)

        return run

    return factory


ops("HannWindow")(_cosines(0.5, -0.5))
ops("HammingWindow")(_cosines(25 / 46, -21 / 46))
ops("BlackmanWindow")(_cosines(0.42, -0.5, 0.08))


# ---------------------------------------------------------------------- random numbers


def _generator(at: TorchKernelContext) -> Callable[[], torch.Generator]:
    """Return what gives a generator per call: always the same numbers where the node carries a seed."""
    seed = at.attr("seed")
    bits = None if seed is None else int(np.float32(seed).view(np.uint32))

    def make() -> torch.Generator:
        generator = torch.Generator()
        if bits is None:
            generator.seed()
        else:
            generator.manual_seed(bits)
        return generator

    return make


def _drawing(at: TorchKernelContext) -> Callable[[Any, torch.dtype], Tensor]:
    """Return what draws what the operator's name says: Normal with mean and scale, or Uniform between low and high."""
    generator = _generator(at)
    if "Normal" in at.node.op_type:
        mean, scale = at.attr("mean", 0.0), at.attr("scale", 1.0)
        return lambda shape, dtype: (torch.randn(shape, generator=generator(), dtype=torch.float64) * scale + mean).to(dtype)
    low, high = at.attr("low", 0.0), at.attr("high", 1.0)
    return lambda shape, dtype: (torch.rand(shape, generator=generator(), dtype=torch.float64) * (high - low) + low).to(dtype)


@ops("RandomNormal", "RandomUniform")
def random(at: TorchKernelContext) -> Run:
    draw, shape, dtype = _drawing(at), at.attr("shape"), at.attribute_torch_dtype("dtype") or torch.float32
    return lambda: draw(shape, dtype)


@ops("RandomNormalLike", "RandomUniformLike")
def random_like(at: TorchKernelContext) -> Run:
    draw, dtype = _drawing(at), at.attribute_torch_dtype("dtype")
    return lambda x: draw(x.shape, dtype or x.dtype)


@ops("Bernoulli")
def bernoulli(at: TorchKernelContext) -> Run:
    generator, dtype = _generator(at), at.attribute_torch_dtype("dtype")
    return lambda x: (torch.rand(x.shape, generator=generator(), dtype=torch.float64) < x).to(dtype or x.dtype)


@ops("Multinomial")
def multinomial(at: TorchKernelContext) -> Run:
    """Draw classes from each row of unnormalised log-probabilities: where a uniform number falls in their running sum."""
    generator, count = _generator(at), at.attr("sample_size", 1)
    dtype = get_torch_dtype(at.attribute_dtype("dtype") or DType.INT32)

    def run(logs: Tensor) -> Tensor:
        wide = logs.double()
        sums = torch.cumsum(torch.exp(wide - wide.amax(1, keepdim=True)), 1)
        drawn = torch.rand((len(logs), count, 1), generator=generator(), dtype=torch.float64) * sums[:, None, -1:]
        return (drawn >= sums[:, None, :]).sum(2).to(dtype)

    return run


# ---------------------------------------------------------------------- Dropout


@ops("Dropout", until=11, train=True)
def dropout_by_attributes(at: TorchKernelContext) -> Run:
    """Versions up to 6 train unless ``is_test`` says otherwise, later ones never; the mask was of x's type before 10."""
    training = at.version <= 6 and not at.attr("is_test", 0)
    ratio, generator, version = at.attr("ratio", 0.5) if training else 0.0, _generator(at), at.version

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        y, mask = _drop(x, ratio, generator)
        return y, mask if version >= 10 else mask.to(x.dtype)

    return run


@ops("Dropout", since=12, train=True)
def dropout(at: TorchKernelContext) -> Run:
    generator, ratio_of, training_of = _generator(at), at.read_numbers(1), at.read_numbers(2)

    def run(x: Tensor, ratio: Tensor = None, training: Tensor = None) -> tuple[Tensor, Tensor]:
        share = 0.5 if ratio is None else ratio_of(ratio)[0]
        return _drop(x, share if training is not None and training_of(training)[0] else 0.0, generator)

    return run


def _drop(x: Tensor, ratio: float, generator: Callable[[], torch.Generator]) -> tuple[Tensor, Tensor]:
    """Return the tensor with a share of elements zeroed and the rest scaled up, and which were kept."""
    if ratio == 0.0:
        return x, torch.ones(x.shape, dtype=torch.bool)
    mask = torch.rand(x.shape, generator=generator(), dtype=torch.float64) >= ratio
    return torch.where(mask, x / (1 - ratio), 0).to(x.dtype), mask
