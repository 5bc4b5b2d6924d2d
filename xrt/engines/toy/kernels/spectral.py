"""Short-time Fourier transforms. They are computed in double precision, and rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("STFT", devices=CPU)
def short_time_fourier(node: Node, env: KernelContext) -> Run:
    """Return (batch, frames, bins, 2) of a signal (batch, length, 1 or 2), or (batch, length), as TorchScript exports it."""
    xp, onesided = env.xp, bool(node.attr("onesided", 1))

    def run(signal: Array, step: Array, window: Array | None = None, length: Array | None = None) -> Array:
        given = signal[..., None] if signal.ndim == 2 else signal
        if given.ndim != 3 or given.shape[-1] not in (1, 2):
            raise ValueError(
                f"the signal has shape {list(signal.shape)}; it must be [batch, length], [batch, length, 1] or [batch, length, 2]"
            )
        if onesided and given.shape[-1] == 2:
            raise ValueError(f"the signal {list(signal.shape)} is complex; its transform has two sides, so set onesided=0")
        size = _number(length) if length is not None else given.shape[1] if window is None else len(window)
        width = size if window is None else len(window)
        frames = _frames(xp, given.astype(np.float64), _number(step), size, width)
        if window is not None:
            frames = frames * window.astype(np.float64)[:, None]
        values = frames[..., 0] + 1j * frames[..., 1] if given.shape[-1] == 2 else frames[..., 0]
        result = (xp.fft.rfft if onesided else xp.fft.fft)(values, n=size, axis=-1)
        return xp.stack([result.real, result.imag], axis=-1).astype(signal.dtype)

    return run


def _number(value: Array) -> int:
    return int(value.reshape(()))


def _frames(xp: Any, signal: Array, step: int, size: int, width: int) -> Array:
    """Return the frames (batch, frames, width, parts) of a signal (batch, length, parts): as many as hold ``size`` elements.

    A window that is wider than that reads zeros beyond the signal.
    """
    count = max(0, 1 + (signal.shape[1] - size) // step)
    if width > size:
        signal = xp.concatenate([signal, xp.zeros((len(signal), width - size, signal.shape[2]))], axis=1)
    indices = xp.arange(count)[:, None] * step + xp.arange(width)
    return signal[:, indices]
