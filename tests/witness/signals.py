"""Fourier transforms, windows and filters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import scipy.fft
import scipy.signal

from tests.witness.case import Array, Case, Drawn, case
from xrt.comparison import Tolerance

DRAWN = Drawn("signals")
NEAR = Tolerance(1e-5, 1e-6, 1e-5)


def transforms() -> Iterator[Case]:
    for parts, onesided, axis, length, dtype in product((1, 2), (0, 1), (1, 2), (None, 6, 12), (np.float32, np.float64)):
        if parts == 2 and onesided:
            continue
        x = DRAWN.floats(2, 8, 9, parts, dtype=dtype)
        given = [x, None if length is None else np.array(length), np.array(axis)]
        formula = lambda x, *_, a=axis, n=length, o=onesided: _dft(x, n, a, o)
        yield case(
            "DFT",
            given,
            {"onesided": onesided},
            label=f"{parts},{onesided},{axis},{length},{dtype.__name__}",
            opset=20,
            formula=formula,
            source="SciPy",
            tolerance=NEAR,
        )
    for axis, onesided in product((1, 2), (0, 1)):
        x = DRAWN.floats(2, 8, 5, 2)
        inverse = lambda x, *_, a=axis, o=onesided: _inverse(x, a, o)
        yield case(
            "DFT",
            [x, None, np.array(axis)],
            {"inverse": 1, "onesided": onesided},
            label=f"inverse,{axis},{onesided}",
            opset=20,
            formula=inverse,
            source="SciPy",
            tolerance=NEAR,
        )
    yield case(
        "DFT",
        [DRAWN.floats(2, 8, 1)],
        {"axis": 1},
        opset=17,
        formula=lambda x: _dft(x, None, 1, 0),
        source="SciPy",
        tolerance=NEAR,
    )


def _dft(x: Array, length: int | None, axis: int, onesided: int) -> Array:
    values = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    return _pairs(
        (scipy.fft.rfft if onesided else scipy.fft.fft)(
            values.astype(np.complex128 if x.shape[-1] == 2 else np.float64), length, axis
        ),
        x,
    )


def _inverse(x: Array, axis: int, onesided: int) -> Array:
    values = (x[..., 0] + 1j * x[..., 1]).astype(np.complex128)
    return (
        scipy.fft.irfft(values, axis=axis)[..., None].astype(x.dtype)
        if onesided
        else _pairs(scipy.fft.ifft(values, axis=axis), x)
    )


def _pairs(values: Array, like: Array) -> Array:
    return np.stack([values.real, values.imag], axis=-1).astype(like.dtype)


def frames() -> Iterator[Case]:
    window = scipy.signal.get_window("hann", 16).astype(np.float32)
    for shape, onesided, step, how in product(((2, 50), (2, 50, 1), (2, 50, 2)), (0, 1), (4, 7), ("length", "window", "both")):
        if shape[-1] == 2 and len(shape) == 3 and onesided:
            continue
        given = [
            DRAWN.floats(*shape),
            np.array(step),
            None if how == "length" else window,
            None if how == "window" else np.array(16),
        ]
        formula = lambda x, *_, o=onesided, s=step, w=how != "length": _stft(x, s, window if w else np.ones(16), o)
        yield case(
            "STFT",
            given,
            {"onesided": onesided},
            label=f"{shape},{onesided},{step},{how}",
            opset=17,
            formula=formula,
            source="SciPy",
            tolerance=NEAR,
        )
    short = [DRAWN.floats(2, 3), np.array(2), None, np.array(8)]
    yield case("STFT", short, label="short", opset=17, formula=lambda x, *_: np.zeros((2, 0, 5, 2), np.float32))


def _stft(x: Array, step: int, window: Array, onesided: int) -> Array:
    """As SciPy's own transform, which centres its frames and scales them: here neither is asked for."""
    signal = x[..., 0] + 1j * x[..., 1] if x.ndim == 3 and x.shape[-1] == 2 else x.reshape(len(x), -1)
    plan = scipy.signal.ShortTimeFFT(
        window.astype(np.float64), step, fs=1.0, fft_mode="onesided" if onesided else "twosided", phase_shift=None
    )
    count = 1 + (signal.shape[1] - len(window)) // step
    found = plan.stft_detrend(
        signal.astype(np.complex128 if signal.dtype.kind == "c" else np.float64), None, p0=0, p1=count, k_offset=len(window) // 2
    )
    turned = np.swapaxes(found, -1, -2)
    return _pairs(turned, x)


def windows() -> Iterator[Case]:
    for op, name in (("HannWindow", "hann"), ("HammingWindow", None), ("BlackmanWindow", "blackman")):
        for periodic, size, kind in product((0, 1), (5, 10), (1, 11)):
            formula = lambda n, k=name, p=periodic, t=kind: _window(k, int(n), p).astype(np.float32 if t == 1 else np.float64)
            options = {"periodic": periodic, "output_datatype": kind}
            yield case(
                op, [np.array(size)], options, label=f"{size},{periodic},{kind}", opset=17, formula=formula, source="SciPy"
            )
    for bins, low, high in ((8, 0.0, 4000.0), (5, 300.0, 8000.0)):
        given = [np.array(bins), np.array(64), np.array(16000), np.array(low, np.float32), np.array(high, np.float32)]
        yield case("MelWeightMatrix", given, label=f"{bins},{low},{high}", opset=17)


def _window(name: str | None, size: int, periodic: int) -> Array:
    kind = ("general_hamming", 25 / 46) if name is None else name
    return scipy.signal.get_window(kind, size, fftbins=bool(periodic))


def families() -> Iterator[Case]:
    for family in (transforms, frames, windows):
        yield from family()
