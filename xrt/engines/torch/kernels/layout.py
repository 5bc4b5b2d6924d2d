"""Operators that move elements without computing: shapes, transposes, joins, splits, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, pi, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from xrt.engines.toolkit.array_ops.elements import center, even, trim
from xrt.engines.torch.dtypes import from_numpy, get_torch_dtype
from xrt.engines.torch.kernel_context import Factory, Run, Tensor, ops
from xrt.engines.torch.kernels.arithmetic import NARROW
from xrt.graph import DType
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["apply_padding"]

# ---------------------------------------------------------------------- shapes


@ops("Shape")
def shape(at: TorchKernelContext) -> Run:
    start, end = at.attr("start", 0), at.attr("end")
    return lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64)


ops("Size")(lambda at: lambda x: torch.tensor(x.numel(), dtype=torch.int64))


def _reshape(x: Tensor, target: Sequence[int], allow_zero: bool) -> Tensor:
    """Return the tensor in another shape; a zero copies the extent in that place, unless zeros are allowed."""
    extents = list(target) if allow_zero else [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
    if -1 in extents and x.numel() == 0:  # torch cannot tell the one that is left out of others that are zero
        rest = prod(n for n in extents if n != -1)
        extents[extents.index(-1)] = 0 if rest else 1
    return x.reshape(extents)


@ops("Reshape", until=4)
def reshape_by_attribute(at: TorchKernelContext) -> Run:
    target = at.attr("shape", ())
    return lambda x: _reshape(x, target, False)


@ops("Reshape", since=5)
def reshape(at: TorchKernelContext) -> Run:
    target_of, allow_zero = at.read_numbers(1), bool(at.attr("allowzero", 0))
    return lambda x, target: _reshape(x, target_of(target), allow_zero)


@ops("Flatten")
def flatten(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 1)

    def run(x: Tensor) -> Tensor:
        start = axis + x.ndim if axis < 0 else axis
        return x.reshape(prod(x.shape[:start]), prod(x.shape[start:]))

    return run


def _squeeze(x: Tensor, axes: Sequence[int] | None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@ops("Squeeze", until=12)
def squeeze_by_attribute(at: TorchKernelContext) -> Run:
    axes = at.attr("axes")
    return lambda x: _squeeze(x, axes)


@ops("Squeeze", since=13)
def squeeze(at: TorchKernelContext) -> Run:
    axes_of = at.read_numbers(1)
    return lambda x, axes=None: _squeeze(x, None if axes is None else axes_of(axes))


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@ops("Unsqueeze", until=12)
def unsqueeze_by_attribute(at: TorchKernelContext) -> Run:
    axes = at.attr("axes")
    return lambda x: _unsqueeze(x, axes)


@ops("Unsqueeze", since=13)
def unsqueeze(at: TorchKernelContext) -> Run:
    axes_of = at.read_numbers(1)
    return lambda x, axes: _unsqueeze(x, axes_of(axes))


@ops("Expand")
def expand(at: TorchKernelContext) -> Run:
    target_of = at.read_numbers(1)
    return lambda x, target: x.expand(np.broadcast_shapes(x.shape, target_of(target)))


@ops("Tile", since=6)
def tile(at: TorchKernelContext) -> Run:
    counts_of = at.read_numbers(1)
    return lambda x, repeats: x.tile(counts_of(repeats))


# ---------------------------------------------------------------------- order of axes and elements


@ops("Transpose")
def transpose(at: TorchKernelContext) -> Run:
    perm = at.attr("perm")
    return lambda x: x.permute(tuple(range(x.ndim))[::-1] if perm is None else perm)


@ops("DepthToSpace")
def depth_to_space(at: TorchKernelContext) -> Run:
    block, by_columns = at.attr("blocksize"), at.attr("mode", "DCR") == "CRD"

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        if by_columns:
            whole = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
        else:
            whole = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return whole.reshape(n, c // block**2, h * block, w * block)

    return run


@ops("SpaceToDepth")
def space_to_depth(at: TorchKernelContext) -> Run:
    block, by_columns = at.attr("blocksize"), at.attr("mode", "DCR") == "CRD"

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        whole = x.reshape(n, c, h // block, block, w // block, block)
        whole = whole.permute(0, 1, 3, 5, 2, 4) if by_columns else whole.permute(0, 3, 5, 1, 2, 4)
        return whole.reshape(n, c * block**2, h // block, w // block)

    return run


@ops("ReverseSequence")
def reverse_sequence(at: TorchKernelContext) -> Run:
    """Each batch entry is reversed in its own leading part of the time axis."""
    batch, time = at.attr("batch_axis", 1), at.attr("time_axis", 0)

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        steps, ends = torch.arange(x.shape[time]), lengths.long()[:, None]
        places = torch.where(steps < ends, ends - 1 - steps, steps)  # (batch, time)
        places = places if batch < time else places.T
        return x.gather(time, places.reshape(*places.shape, *(1,) * (x.ndim - 2)).expand(x.shape))

    return run


@ops("Trilu")
def trilu(at: TorchKernelContext) -> Run:
    cut = torch.triu if at.attr("upper", 1) else torch.tril
    offset_of = at.read_numbers(1)
    return lambda x, k=None: cut(x, 0 if k is None else offset_of(k)[0])


# ---------------------------------------------------------------------- joins and splits


@ops("Concat")
def concat(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 1)  # the default is version 1's; later ones require it
    return lambda *parts: torch.cat(parts, axis)


@ops("Split", since=2, until=12)
def split_by_attribute(at: TorchKernelContext) -> Run:
    axis, sizes, count = at.attr("axis", 0), at.attr("split"), at.n_outputs
    return lambda x: x.split(list(sizes or even(x.shape[axis], count)), axis)


@ops("Split", since=13)
def split(at: TorchKernelContext) -> Run:
    axis, count, sizes_of = at.attr("axis", 0), at.attr("num_outputs", at.n_outputs), at.read_numbers(1)
    return lambda x, sizes=None: x.split(even(x.shape[axis], count) if sizes is None else sizes_of(sizes), axis)


# ---------------------------------------------------------------------- padding


def apply_padding(x: Tensor, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Tensor:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if not any(begin or end for begin, end in more):
        return x
    if mode == "constant":
        return functional.pad(x, [n for both in reversed(more) for n in both], value=value)
    for axis, (begin, end) in enumerate(more):
        if begin or end:
            x = x.index_select(axis, _mirror(torch.arange(-begin, x.shape[axis] + end), x.shape[axis], mode))
    return x


def _mirror(places: Tensor, extent: int, mode: str) -> Tensor:
    """Return from where each place beyond the ends is read."""
    if mode == "edge":
        return places.clamp(0, extent - 1)
    if mode == "wrap":
        return places.remainder(extent)
    if extent == 1:
        return torch.zeros_like(places)
    around = places.remainder(2 * extent - 2)
    return torch.minimum(around, 2 * extent - 2 - around)


@ops("Pad", since=2, until=10)
def pad_by_attributes(at: TorchKernelContext) -> Run:
    pads, mode, value = at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0)
    return lambda x: apply_padding(x, pads, mode, value)


@ops("Pad", since=11)
def pad(at: TorchKernelContext) -> Run:
    mode, pads_of, value_of, axes_of = at.attr("mode", "constant"), at.read_numbers(1), at.read_numbers(2), at.read_numbers(3)

    def run(x: Tensor, pads: Tensor, value: Tensor = None, axes: Tensor = None) -> Tensor:
        fill = 0 if value is None else value_of(value)[0]
        return apply_padding(x, pads_of(pads), mode, fill, None if axes is None else axes_of(axes))

    return run


@ops("CenterCropPad")
def center_crop_pad(at: TorchKernelContext) -> Run:
    axes, target_of = at.attr("axes"), at.read_numbers(1)

    def run(x: Tensor, target: Tensor) -> Tensor:
        chosen = axes or range(x.ndim)
        return apply_padding(x, center([x.shape[axis] for axis in chosen], target_of(target)), "constant", 0, chosen)

    return run


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
