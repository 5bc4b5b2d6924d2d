"""What a call is given, and what is said when it does not fit. Each text is asserted in full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xrt.errors import DeviceError, InputError
from xrt.graph import DType, OptionalType, SequenceType, TensorType, Value
from xrt.runtime import inputs

X = Value("x", TensorType(DType.FLOAT32, ("N", 3)))
Y = Value("y", TensorType(DType.FLOAT32, ("N",)))
SCALAR = Value("s", TensorType(DType.FLOAT32, ()))


def accepted(values: tuple[Value, ...], *args: Any, **named: Any) -> list[Any]:
    out = [inputs.normalize(v, given) for v, given in zip(values, inputs.bind(values, args, named), strict=True)]
    inputs.check(values, out)
    return out


def refused(values: tuple[Value, ...], *args: Any, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        accepted(values, *args, **named)
    return str(caught.value)


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("args", "named", "text"),
    [
        ((zeros(2, 3), zeros(2), zeros(2)), {}, "the model takes 2 inputs (x, y); got 3 positional values"),
        ((zeros(2, 3),), {}, "no value for input 'y'; the model takes 2 inputs (x, y)"),
        ((), {}, "no value for inputs 'x', 'y'; the model takes 2 inputs (x, y)"),
        ((zeros(2, 3),), {"x": zeros(2, 3)}, "input 'x' is given twice, by position and by name"),
        ((zeros(2, 3),), {"yy": zeros(2)}, "the model has no input 'yy'. Did you mean 'y'? The model takes 2 inputs (x, y)"),
        ((zeros(2, 4), zeros(2)), {}, "input 'x' must be float32[N,3]; got shape [2, 4]: axis 1 is 4, not 3"),
        ((zeros(2), zeros(2)), {}, "input 'x' must have rank 2 (float32[N,3]); got rank 1, shape [2]"),
        ((zeros(2, 3), zeros(4)), {}, "dimension 'N' is 2 in input 'x' and 4 in input 'y'; equal names are equal sizes"),
        (
            (zeros(2, 3, dtype="float64"), zeros(2)),
            {},
            "input 'x' must be float32; got float64; convert it with .astype('float32')",
        ),
        (
            ([[1.0, 2, 3]], zeros(1)),
            {},
            "input 'x' must be a NumPy array; got a list; convert it with np.asarray(..., dtype=...)",
        ),
        ((1.0, zeros(1)), {}, "input 'x' (float32[N,3]) must be a NumPy array; a Python float is taken for a 0-d input only"),
        (
            (np.zeros((1, 3), "datetime64[s]"), zeros(1)),
            {},
            (
                "input 'x' must be float32[N,3]; arrays of NumPy type datetime64[s] have no ONNX element type; "
                "convert the array first"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_named(args: Any, named: Any, text: str) -> None:
    assert refused((X, Y), *args, **named) == text


def test_a_foreign_byte_order_is_brought_home() -> None:
    (array, _) = accepted((X, Y), np.arange(6, dtype=">f4").reshape(2, 3), zeros(2))
    assert array.dtype == np.dtype("float32") and array.dtype.isnative
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_strided_array_is_taken_as_it_is() -> None:
    given = np.arange(12, dtype="float32").reshape(3, 4).T[:2]
    assert accepted((X, Y), given, zeros(2))[0] is given


@pytest.mark.parametrize("given", [2, 2.0, np.float32(2), np.array(2, "float32")])
def test_a_scalar_is_taken_for_a_0d_input(given: Any) -> None:
    (array,) = accepted((SCALAR,), given)
    assert type(array) is np.ndarray and array.dtype == np.float32 and array.shape == () and array == 2


def test_a_scalar_that_would_lose_its_value_is_refused() -> None:
    whole = Value("k", TensorType(DType.INT8, ()))
    assert refused((whole,), 1.5) == "input 'k' must be int8; got float64; convert it with .astype('int8')"
    assert refused((whole,), 300) == "input 'k' is int8[], which cannot hold 300"


TEXTS = Value("t", TensorType(DType.STRING, (2,)))


def test_a_tensor_of_strings_holds_nothing_else() -> None:
    """Engines spelt out whatever else they were given, such as ``b'a'`` and ``None``."""
    (given,) = accepted((TEXTS,), np.array(["a", "b"]))
    assert given.dtype == object and given.tolist() == ["a", "b"]
    end = ": make each element a str"
    assert refused((TEXTS,), np.array(["a", None], object)) == f"input 't' must hold text; element 1 is NoneType None{end}"
    assert refused((TEXTS,), np.array([b"a", b"b"])) == f"input 't' must hold text; element 0 is bytes b'a'{end}"


def test_sequences_and_optionals() -> None:
    sequence = Value("q", SequenceType(TensorType(DType.INT64, None)))
    optional = Value("o", OptionalType(TensorType(DType.INT64, (1,))))
    assert accepted((optional,)) == [None]
    assert [a.shape for a in accepted((sequence,), [np.zeros(2, "int64"), np.zeros((), "int64")])[0]] == [(2,), ()]
    assert (
        refused((sequence,), zeros(2)) == "input 'q' is a sequence (seq(int64[...])); pass a list of arrays, not a numpy.ndarray"
    )
    assert refused((sequence,), [zeros(2)]) == "input 'q[0]' must be int64; got float32; convert it with .astype('int64')"


def test_arrays_of_other_libraries_come_through_dlpack() -> None:
    class Foreign:
        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    given = zeros(2, 3)
    (array, _) = accepted((X, Y), Foreign(given), zeros(2))
    assert np.shares_memory(array, given)


@pytest.mark.slow
def test_types_that_numpy_has_no_word_for_come_through_dlpack() -> None:
    """JAX's arrays of bfloat16 and float8, where they lie; they are read-only, and hold their owner's memory."""
    import jax

    for name, dtype in (("bfloat16", DType.BFLOAT16), ("float8_e4m3fn", DType.FLOAT8E4M3FN)):
        given = jax.numpy.arange(6).astype(name).reshape(2, 3)
        value = Value("x", TensorType(dtype, (2, 3)))
        (array,) = accepted((value,), given)
        assert array.dtype == dtype.numpy and array.astype("float32").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert array.ctypes.data == given.unsafe_buffer_pointer() and not array.flags.writeable
        del given
        assert array.astype("float32").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.slow
def test_small_floats_of_pytorch_share_their_memory() -> None:
    import torch

    for kind, dtype in ((torch.bfloat16, DType.BFLOAT16), (torch.float8_e4m3fn, DType.FLOAT8E4M3FN)):
        tensor = torch.arange(6.0).to(kind).reshape(2, 3).T
        (array,) = accepted((Value("x", TensorType(dtype, (3, 2))),), tensor)
        assert array.dtype == dtype.numpy and array.astype("float32").tolist() == [[0, 3], [1, 4], [2, 5]]
        assert array.ctypes.data == tensor.data_ptr()


class Distant:
    """An array on another device."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it lies elsewhere")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


def test_an_array_on_another_device_is_named_with_its_place() -> None:
    where = r"^input 'y' \(a .*Distant\) lies on cuda:1, and the module runs on cpu; copy it there$"
    with pytest.raises(DeviceError, match=where):
        accepted((X, Y), zeros(2, 3), Distant())
