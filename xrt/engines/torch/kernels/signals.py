"""Fourier transforms, in double precision, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []


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
