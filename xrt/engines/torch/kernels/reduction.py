"""Reductions over axes, and running sums along one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.kernel_context import Run, Tensor, ops
from xrt.engines.torch.kernels.arithmetic import extreme, is_whole, widen

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

Reduce = Callable[[Tensor, list[int], bool], Tensor]
"""Takes the tensor, the axes, of which there is one at least, and whether they are kept with extent 1."""


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.mean(x.double() if is_whole(x) else x, axes, keep)


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _extreme(name: str, lowest: bool) -> Reduce:
    reduce: Any = getattr(torch, name)

    def run(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if all(x.shape[axis] for axis in axes):
            return reduce(x, axes, keep)
        return torch.full_like(_sum(x, axes, keep), extreme(x.dtype, lowest=lowest))

    return run


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x.double() if is_whole(x) else x, axes, keep)


REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: _sum(torch.abs(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.sqrt(_sum(x * x, axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme("amax", lowest=True),
    "ReduceMean": _mean,
    "ReduceMin": _extreme("amin", lowest=False),
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}
FIRST_WITH_INPUT = {"ReduceSum": 13}
"""The opset since when the axes are an input, where it is not 18."""


def _reduce(compute: Reduce, x: Tensor, axes: Sequence[int] | None, keep: bool) -> Tensor:
    """Reduce, in float32 for narrower floats; the result has the tensor's type."""
    wide = widen(x)
    if axes is None:
        axes = range(x.ndim)
    chosen = [axis % x.ndim for axis in axes]
    if not chosen:  # nothing is reduced, but each element is computed as if it were a sum of one
        return compute(wide.unsqueeze(0), [0], False).to(x.dtype)
    return compute(wide, chosen, keep).to(x.dtype)


def _by_attribute(compute: Reduce) -> Callable[[TorchKernelContext], Run]:
    def factory(at: TorchKernelContext) -> Run:
        axes, keep = at.attr("axes") or None, bool(at.attr("keepdims", 1))
        return lambda x: _reduce(compute, x, axes, keep)

    return factory


def _by_input(compute: Reduce) -> Callable[[TorchKernelContext], Run]:
    def factory(at: TorchKernelContext) -> Run:
        axes_of, keep = at.read_numbers(1), bool(at.attr("keepdims", 1))
        empty: tuple[int, ...] | None = () if at.attr("noop_with_empty_axes", 0) else None
        return lambda x, axes=None: _reduce(compute, x, axes_of(axes) or empty, keep)

    return factory


for _op, _compute in REDUCTIONS.items():
    ops(_op, until=FIRST_WITH_INPUT.get(_op, 18) - 1)(_by_attribute(_compute))
    ops(_op, since=FIRST_WITH_INPUT.get(_op, 18))(_by_input(_compute))


@ops("CumSum", "CumProd")
def cumulative(at: TorchKernelContext) -> Run:
    accumulate, neutral = (torch.cumsum, 0) if at.node.op_type == "CumSum" else (torch.cumprod, 1)
    backwards, exclusive, axis_of = at.attr("reverse", 0), at.attr("exclusive", 0), at.read_numbers(1)

    def run(x: Tensor, axis: Tensor) -> Tensor:
        along, wide = axis_of(axis)[0] % x.ndim, widen(x)
        wide = wide.flip(along) if backwards else wide
        total = accumulate(wide, along, dtype=wide.dtype)
        if exclusive and x.shape[along]:
            first = torch.full_like(total.narrow(along, 0, 1), neutral)
            total = torch.cat([first, total.narrow(along, 0, x.shape[along] - 1)], along)
        return (total.flip(along) if backwards else total).to(x.dtype)

    return run


@ops("DFT", until=19)
def dft_by_attribute(at: TorchKernelContext) -> Run:
    axis, length_of = at.attr("axis", 1), at.read_numbers(1)
    return lambda x, length=None: _transform(at, x, None if length is None else length_of(length)[0], axis)


@ops("DFT", since=20)
def dft(at: TorchKernelContext) -> Run:
    length_of, axis_of = at.read_numbers(1), at.read_numbers(2)

    def run(x: Tensor, length: Tensor = None, axis: Tensor = None) -> Tensor:
        n, along = None if length is None else length_of(length)[0], -2 if axis is None else axis_of(axis)[0]
        return _transform(at, x, n, along)

    return run


def _transform(at: TorchKernelContext, x: Tensor, length: int | None, axis: int) -> Tensor:
    """Transform along an axis of a tensor whose last axis holds real parts, or real and imaginary ones."""
    axis, onesided, inverse = axis % x.ndim, at.attr("onesided", 0), at.attr("inverse", 0)
    whole = _complex(x)
    n = length or x.shape[axis]
    if onesided and inverse:
        return torch.fft.irfft(whole, n=length, dim=axis)[..., None].to(x.dtype)
    y = (torch.fft.ifft if inverse else torch.fft.fft)(whole, n=n, dim=axis)
    if onesided:
        y = y.narrow(axis, 0, n // 2 + 1)
    return torch.view_as_real(y).to(x.dtype)


def _complex(x: Tensor) -> Tensor:
    """Return real parts, or real and imaginary ones, of the last axis as complex numbers."""
    wide = x.double()
    return torch.complex(wide[..., 0], wide[..., 1] if x.shape[-1] == 2 else torch.zeros_like(wide[..., 0]))


@ops("STFT")
def short_time_fourier(at: TorchKernelContext) -> Run:
    """Return (batch, frames, bins, 2) of a signal (batch, length, 1 or 2), or (batch, length), as TorchScript exports it."""
    onesided, step_of, length_of = bool(at.attr("onesided", 1)), at.read_numbers(1), at.read_numbers(3)

    def run(signal: Tensor, step: Tensor, window: Tensor = None, length: Tensor = None) -> Tensor:
        given = signal[..., None] if signal.ndim == 2 else signal
        if given.ndim != 3 or given.shape[-1] not in (1, 2):
            raise ValueError(
                f"the signal has shape {list(signal.shape)}; it must be [batch, length], [batch, length, 1] or [batch, length, 2]"
            )
        if onesided and given.shape[-1] == 2:
            raise ValueError(f"the signal {list(signal.shape)} is complex; its transform has two sides, so set onesided=0")
        size = length_of(length)[0] if length is not None else given.shape[1] if window is None else len(window)
        width = size if window is None else len(window)
        frames = _frames(_complex(given), step_of(step)[0], size, width)
        if window is not None:
            frames = frames * window.double()
        y = torch.fft.fft(frames, n=size, dim=-1)
        y = y[..., : size // 2 + 1] if onesided else y
        return torch.view_as_real(y).to(signal.dtype)

    return run


def _frames(signal: Tensor, step: int, size: int, width: int) -> Tensor:
    """Return the frames (batch, frames, width) of a signal (batch, length): as many as hold ``size`` elements.

    A window that is wider than that reads zeros beyond the signal.
    """
    count = max(0, 1 + (signal.shape[1] - size) // step)
    if width > size:
        signal = torch.cat([signal, signal.new_zeros((len(signal), width - size))], 1)
    return signal[:, torch.arange(count)[:, None] * step + torch.arange(width)]


DOMAIN = "ai.onnx.preview.training"
Step = Callable[[float, int, list[Tensor]], tuple[Tensor, ...]]
"""Takes the rate, the count of steps and a tensor with its gradient and states; returns the tensor and its states."""


def _each(step: Step, kinds: int) -> Run:
    """Return a kernel that takes all tensors, then all gradients, then each kind of state, and returns them in this order."""

    def run(rate: Tensor, count: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        n = len(tensors) // kinds
        groups = [[tensors[i + part * n] for part in range(kinds)] for i in range(n)]
        found = [step(float(rate), int(count), [x.double() for x in group]) for group in groups]
        kept = [(group[0], *group[2:]) for group in groups]
        return tuple(found[i][part].to(kept[i][part].dtype) for part in range(kinds - 1) for i in range(n))

    return run


@ops("Adam", domain=DOMAIN, model_update=True)
def adam(at: TorchKernelContext) -> Run:
    alpha, beta, epsilon = at.attr("alpha", 0.9), at.attr("beta", 0.999), at.attr("epsilon", 1e-6)
    norm, norm_post = at.attr("norm_coefficient", 0.0), at.attr("norm_coefficient_post", 0.0)

    def step(rate: float, count: int, values: list[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, mean, square = values
        rate = rate * sqrt(1 - beta**count) / (1 - alpha**count) if count > 0 else rate
        gradient = norm * x + gradient
        mean = alpha * mean + (1 - alpha) * gradient
        square = beta * square + (1 - beta) * gradient * gradient
        return (1 - norm_post) * (x - rate * mean / (torch.sqrt(square) + epsilon)), mean, square

    return _each(step, 4)


@ops("Adagrad", domain=DOMAIN, model_update=True)
def adagrad(at: TorchKernelContext) -> Run:
    decay, epsilon, norm = at.attr("decay_factor", 0.0), at.attr("epsilon", 1e-6), at.attr("norm_coefficient", 0.0)

    def step(rate: float, count: int, values: list[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, square = values
        gradient = norm * x + gradient
        square = square + gradient * gradient
        return x - rate / (1 + count * decay) * gradient / (torch.sqrt(square) + epsilon), square

    return _each(step, 3)


@ops("Momentum", domain=DOMAIN, model_update=True)
def momentum(at: TorchKernelContext) -> Run:
    """With Nesterov's mode, the step looks ahead by one more gradient."""
    alpha, beta, norm = at.attr("alpha"), at.attr("beta"), at.attr("norm_coefficient")
    ahead = at.attr("mode") == "nesterov"

    def step(rate: float, count: int, values: list[Tensor]) -> tuple[Tensor, ...]:
        x, gradient, velocity = values
        gradient = norm * x + gradient
        velocity = alpha * velocity + (beta if count > 0 else 1.0) * gradient
        return x - rate * (gradient + alpha * velocity if ahead else velocity), velocity

    return _each(step, 3)
