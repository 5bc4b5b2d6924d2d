"""What the openvino engine does with float8 and with what is narrower than a byte: codes in, codes out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines.openvino_running import CONTEXT, F32, compiled, function, node, run, tensor
from xrt.engines import RunOptions
from xrt.engines.openvino import OpenVino
from xrt.engines.toy.kernels.casting import conversion
from xrt.graph import DType, Function

Array = np.ndarray[Any, Any]

INTEGERS = [DType.INT2, DType.UINT2, DType.INT4, DType.UINT4]
FLOATS = [DType.FLOAT4E2M1, DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ]
CODED = [*INTEGERS, *FLOATS, DType.FLOAT8E8M0]


def all_of(dtype: DType) -> Array:
    return np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)


def cast(size: int, source: DType, to: DType, **attributes: Any) -> Function:
    types = tensor(size, dtype=source), tensor(size, dtype=to)
    return function({"x": types[0]}, {"y": types[1]}, [node("Cast", "x", "y", to=to.onnx, **attributes)], opset=25)


def same(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    raw = f"u{got.itemsize}"
    is_nan = np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.where(is_nan, 0, got.view(raw)), np.where(is_nan, 0, want.view(raw)))


@pytest.mark.parametrize("to", [F32, DType.FLOAT16], ids=str)
@pytest.mark.parametrize("dtype", CODED, ids=str)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_every_code_says_its_number(dtype: DType, to: DType) -> None:
    x = all_of(dtype)
    same(run(cast(x.size, dtype, to), x)[0], x.astype(to.numpy))


def hard_numbers(dtype: DType) -> Array:
    """Numbers of the type, the middles of neighbours, and what lies next to either; what is large and what is nothing."""
    with np.errstate(all="ignore"):
        numbers = np.unique(all_of(dtype).astype(np.float32))
        numbers = numbers[np.isfinite(numbers)]
        middles = (numbers[1:] + numbers[:-1]) / 2
        edges = np.concatenate([numbers, middles, [2 * numbers[-1]], [1.0625 * numbers[-1]]]).astype(np.float32)
        near = [edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))]
        some = np.random.default_rng(0).integers(0, 1 << 32, 10_000, np.uint32).view(np.float32)
        ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38, -1e-38], np.float32)
    return np.concatenate([*near, *(-edge for edge in near), some, ends])


def with_code(x: Array, to: DType) -> Array:
    """Return the numbers without NaN where the type has no code for it."""
    return x[~np.isnan(x.astype(np.float32))] if to is DType.FLOAT4E2M1 else x


@pytest.mark.slow
@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("to", FLOATS, ids=str)
def test_numbers_become_the_code_next_to_them(to: DType, saturate: int) -> None:
    x = with_code(hard_numbers(to), to)
    attributes = {} if to is DType.FLOAT4E2M1 else {"saturate": saturate}
    with np.errstate(all="ignore"):
        want = conversion(to, bool(saturate))(x)
    same(run(cast(x.size, F32, to, **attributes), x)[0], want)


@pytest.mark.slow
@pytest.mark.parametrize("source", [DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("to", FLOATS, ids=str)
def test_every_half_becomes_the_code_next_to_it(to: DType, source: DType) -> None:
    x = with_code(np.arange(1 << 16, dtype=np.uint16).view(source.numpy), to)
    with np.errstate(all="ignore"):
        want = conversion(to)(x.astype(np.float32))
    same(run(cast(x.size, source, to), x)[0], want)


@pytest.mark.parametrize("source", [F32, DType.FLOAT16, DType.INT8, DType.INT32], ids=str)
@pytest.mark.parametrize("to", INTEGERS, ids=str)
def test_integers_keep_their_low_bits(to: DType, source: DType) -> None:
    x = np.arange(-100, 100).astype(source.numpy)
    want = (x.astype(np.int32) % 2**to.bits).astype(np.uint8).view(to.numpy)
    (got,) = run(cast(x.size, source, to), x)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("to", CODED[:-1], ids=str)
@pytest.mark.parametrize("source", [DType.INT4, DType.UINT4, DType.FLOAT4E2M1, DType.FLOAT8E5M2, DType.FLOAT8E8M0], ids=str)
def test_codes_of_one_type_become_those_of_another(source: DType, to: DType) -> None:
    x = all_of(source)
    numbers = x.astype(np.float32)
    if to in INTEGERS:
        x, numbers = x[np.abs(numbers) < 8], numbers[np.abs(numbers) < 8]
        want = (np.trunc(numbers).astype(np.int32) % 2**to.bits).astype(np.uint8).view(to.numpy)
    else:
        x, numbers = with_code(x, to), with_code(numbers, to)
        with np.errstate(all="ignore"):
            want = conversion(to)(numbers)
    same(run(cast(x.size, source, to), x)[0], want)


def test_the_other_bits_of_a_byte_mean_nothing() -> None:
    x = np.arange(256, dtype=np.uint8).view(ml_dtypes.int4)
    np.testing.assert_array_equal(run(cast(256, DType.INT4, F32), x)[0], x.astype(np.float32))


@pytest.mark.parametrize("dtype", CODED, ids=str)
def test_codes_are_moved_about(dtype: DType) -> None:
    x = np.resize(all_of(dtype), (4, 6))
    f = function(
        {"x": tensor(4, 6, dtype=dtype)},
        {"y": tensor(3, 8, dtype=dtype)},
        [node("Transpose", "x", "t"), node("Reshape", "t s", "y")],
        {"s": np.array([3, 8])},
        opset=25,
    ).replace(types={"t": tensor(6, 4, dtype=dtype)})
    same(run(f, x)[0], x.T.reshape(3, 8))


def test_constants_may_be_codes() -> None:
    w, scale = np.resize(all_of(DType.INT4), (8, 4)), np.array([0.5, 1, 2, 4], np.float32)
    f = function(
        {"x": tensor(3, 8)},
        {"y": tensor(3, 4)},
        [node("DequantizeLinear", "w s z", "d", axis=1), node("MatMul", "x d", "y")],
        {"w": w, "s": scale, "z": np.array([1, -2, 3, 0]).astype(ml_dtypes.int4)},
    ).replace(types={"d": tensor(8, 4)})
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_allclose(run(f, x)[0], x @ ((w.astype(np.float32) - [1, -2, 3, 0]) * scale), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100_000], ids=["copied", "set"])
def test_buffers_and_bound_calls_are_of_codes(size: int) -> None:
    x = np.resize(all_of(DType.FLOAT8E4M3FN)[:100], size)
    want = conversion(DType.FLOAT8E5M2)(x.astype(np.float32))
    executable = compiled(cast(size, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2))
    out, other = np.empty_like(want), np.empty_like(want)
    (got,) = executable.run([x], RunOptions(out=[out]))
    assert got is out
    same(out, want)
    same(executable.fast_call()(x)[0], want)
    executable.bind([x], [other])()
    same(other, want)


def test_a_saved_model_takes_codes() -> None:
    x, f, engine = all_of(DType.INT4), cast(16, DType.INT4, F32), OpenVino()
    data = engine.save(compiled(f, engine), CONTEXT)
    same(engine.load(memoryview(data), f, CONTEXT).run([x])[0], x.astype(np.float32))


def test_codes_are_not_computed_with() -> None:
    f = function({"x": tensor(3, dtype=DType.FLOAT8E5M2)}, {"y": tensor(3, dtype=DType.FLOAT8E5M2)}, [node("Relu", "x", "y")])
    assert "as codes, on which Relu cannot be said" in str(OpenVino().why_not(f.nodes[0], f))
