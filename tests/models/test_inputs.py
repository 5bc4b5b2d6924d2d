"""Random inputs for every type that a Function may ask for."""

from __future__ import annotations

import numpy as np
import pytest

from xrt.errors import InputError
from xrt.graph import (
    Attribute,
    Constant,
    DType,
    Function,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
)
from xrt.models import sample_inputs


def asking(*types: Type | None) -> Function:
    return Function(tuple(Value(f"x{index}", type_) for index, type_ in enumerate(types)), ())


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_a_tensor_has_its_declared_type_and_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    given = sample_inputs(asking(TensorType(dtype, shape)))["x0"]
    assert isinstance(given, np.ndarray)
    assert (given.dtype, given.shape) == (dtype.numpy, shape)
    assert dtype is not DType.STRING or all(isinstance(text, str) for text in given.flat)


def test_the_seed_decides_the_values() -> None:
    function = asking(TensorType(DType.FLOAT32, (4,)))
    first, again, other = (sample_inputs(function, seed)["x0"] for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_symbolic_extents_get_the_size_that_is_given_and_one_otherwise() -> None:
    given = sample_inputs(asking(TensorType(DType.INT64, ("n", None, "m", 2))), sizes={"n": 5})["x0"]
    assert given.shape == (5, 1, 1, 2)
    assert set(given.flat) <= {0, 1}


def test_a_sequence_is_a_list_and_an_optional_is_there() -> None:
    given = sample_inputs(asking(OptionalType(SequenceType(TensorType(DType.BOOL, (1,))))))["x0"]
    assert [item.dtype for item in given] == [np.dtype(bool)] * 2


@pytest.mark.parametrize(
    ("type_", "what"),
    [
        (None, "x0: ? is of unknown type"),
        (TensorType(DType.FLOAT32), "x0: float32[...] is of unknown rank"),
        (MapType(DType.INT64, TensorType(DType.FLOAT32, ())), "x0: map(int64,float32[]) is a map"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(type_: Type | None, what: str) -> None:
    with pytest.raises(InputError) as caught:
        sample_inputs(asking(type_))
    assert str(caught.value) == f"input {what}, so no random value can be made for it; give one"


def test_bytes_are_any_and_indices_are_any_row_of_the_table_that_they_read() -> None:
    ids, picture, mask = (Value(name, TensorType(dtype, (2, 500))) for name, dtype in INTEGERS.items())
    nodes = (
        Node("Gather", ("ids", "second"), ("part",)),
        Node("Reshape", ("part", "flat"), ("some",)),
        Node("Gather", ("table", "some"), ("rows",), (Attribute.of("axis", -1),)),
        Node("Gather", ("wide", "ids"), ("more",)),
    )
    shapes = {"table": (2, 30), "wide": (40, 2)}
    constants = {name: Constant(np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    constants |= {"second": Constant(np.array(1)), "flat": Constant(np.array([-1]))}
    outputs = (Value("rows"), Value("more"), Value("picture"), Value("mask"))
    given = sample_inputs(Function((ids, picture, mask), outputs, nodes, constants, {"": 20}))
    assert {name: (int(x.min()), int(x.max())) for name, x in given.items()} == {
        "ids": (0, 29),
        "picture": (0, 255),
        "mask": (0, 1),
    }


INTEGERS = {"ids": DType.INT64, "picture": DType.UINT8, "mask": DType.INT64}
