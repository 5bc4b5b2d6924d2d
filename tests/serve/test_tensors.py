"""Tensors of the protocol: every datatype comes back to the bit, as JSON and as bytes; and so do the results of any model."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import xrt
from tests.serve.serving import ask, binary, running, tensor
from xrt.errors import OptionError, XRTError
from xrt.graph import Function
from xrt.operators.sample_inputs import sample_inputs as sample
from xrt.serve import app
from xrt.serve.protocol import (
    DATATYPE_NAMES,
    DATATYPES,
    RequestRefusal,
    decode_binary,
    decode_json,
    encode_binary,
    encode_document,
    encode_json,
)
from xrt.testing.strategies import functions

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
TEXTS = st.text(max_size=5)


def tensors(datatype: str) -> st.SearchStrategy[Any]:
    kind = DATATYPES[datatype]
    if datatype == "BYTES":
        return arrays.arrays(object, SHAPES, elements=TEXTS, fill=TEXTS)
    if datatype == "BF16":
        return arrays.arrays(np.uint16, SHAPES).map(lambda bits: bits.view(kind.dtype.numpy))
    return arrays.arrays(kind.dtype.numpy, SHAPES)


def are_equal(item: Any, other: Any, *, bits: bool = True) -> bool:
    if item.dtype != other.dtype or item.shape != other.shape:
        return False
    if bits and item.dtype != object:
        return bool(item.tobytes() == other.tobytes())
    pairs = zip(item.flat, other.flat, strict=True)
    return all(a == b or (not isinstance(a, str) and math.isnan(a) and math.isnan(b)) for a, b in pairs)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_bytes_come_back(datatype: str) -> None:
    @settings(max_examples=30)
    @given(tensors(datatype), st.integers(0, 3))
    def check(array: Any, offset: int) -> None:
        data = bytes(offset) + bytes(encode_binary(array))
        result = decode_binary("x", datatype, array.shape, memoryview(data)[offset:])
        assert are_equal(result, array) and result.flags.aligned
        with pytest.raises(RequestRefusal):
            decode_binary("x", datatype, array.shape, memoryview(data + b"1")[offset:])

    check()


@pytest.mark.parametrize("datatype", [name for name, kind in DATATYPES.items() if kind.has_json])
def test_json_comes_back(datatype: str) -> None:
    @settings(max_examples=30)
    @given(tensors(datatype))
    def check(array: Any) -> None:
        parsed = encode_document(encode_json(array))
        for text in (parsed, json.dumps(array.tolist()).encode()):
            result = decode_json("x", datatype, array.shape, text, json.loads)
            assert result.dtype == array.dtype and np.array_equal(result, array, equal_nan=datatype.startswith("FP"))

    check()


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("INT8", [128], "the data of input 'x' have a number that INT8 cannot hold"),
        ("UINT64", [-1], "the data of input 'x' have a number that UINT64 cannot hold"),
        ("UINT64", [2**64], "the data of input 'x' have a number that UINT64 cannot hold"),
        ("INT64", [2**63], "the data of input 'x' have a number that INT64 cannot hold"),
        ("INT32", [1.5], "the data of input 'x' do not have the datatype INT32"),
        ("BOOL", [2], "the data of input 'x' have a number that BOOL cannot hold"),
        ("FP32", [None], "the data of input 'x' do not have the datatype FP32"),
        ("FP64", [[1], [1, 2]], "input 'x' has shape [1], 1 elements; its data have 3, with another nesting"),
        ("FP64", {"a": 1}, "the data of input 'x' do not have the datatype FP64"),
        ("FP64", [[1, 2]], "input 'x' has shape [1], 1 elements; its data have 2, with another nesting"),
        ("BYTES", [7], "the data of input 'x' do not have the datatype BYTES; in JSON its elements are strings"),
        ("BYTES", [], "input 'x' has shape [1], 1 elements; its data have 0"),
        ("BYTES", [[["a"]]], "input 'x' has shape [1], 1 elements; its data have 1, with another nesting"),
        ("BF16", [1], "input 'x' is BF16, which JSON cannot hold; send it as a binary tensor"),
    ],
)
def test_json_that_does_not_fit(datatype: str, data: Any, message: str) -> None:
    with pytest.raises(RequestRefusal) as refused:
        decode_json("x", datatype, (1,), json.dumps(data).encode())
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        ("BOOL", b"\2", "input 'x' is BOOL; its bytes must be 0 or 1"),
        ("BYTES", b"\1\0\0\0\xff", "element 0 of input 'x' is not valid UTF-8: invalid start byte"),
        (
            "BYTES",
            b"\xff\xff\xff\xffa",
            "input 'x' is BYTES of shape [1]: 1 elements, each after its length in four bytes; its 5 bytes have another format",
        ),
    ],
)
def test_bytes_that_do_not_fit(datatype: str, data: bytes, message: str) -> None:
    with pytest.raises(RequestRefusal) as refused:
        decode_binary("x", datatype, (1,), memoryview(data))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("shape", "text", "message"),
    [
        ((1, 3), b"[" + b"[]," * 1_000_000 + b"[]]", "its data have 0, with another nesting"),
        ((1, 3), b"[" + b"1," * 1_000_000 + b"1]", "its data have 1000001"),
        ((1_000_000,), b"[1]", "its data have 1"),
        ((2, 2), b"[[1],[2,3,4]]", "its data have 4, with another nesting"),
        ((2, 2), b"[[1,2],[3]]", "its data have 3, with another nesting"),
    ],
)
def test_elements_are_counted_before_they_are_converted(shape: tuple[int, ...], text: bytes, message: str) -> None:
    def parse(piece: bytes) -> Any:
        raise AssertionError("converted")

    with pytest.raises(RequestRefusal) as refused:
        decode_json("x", "FP32", shape, text, parse)
    assert str(refused.value) == f"input 'x' has shape {list(shape)}, {np.prod(shape)} elements; {message}"


@pytest.mark.parametrize("shape", [(100_000,), (100, 1000), (10, 10, 1000)])
def test_large_data_are_converted_in_pieces(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    array.reshape(-1)[[5, -1]] = np.nan, -np.inf
    sizes: list[int] = []

    def parse(piece: bytes) -> Any:
        sizes.append(len(piece))
        return json.loads(piece)

    for text in (json.dumps(array.tolist()).encode(), encode_document(encode_json(array))):
        assert np.array_equal(decode_json("x", "FP64", shape, text, parse), array, equal_nan=True)
    assert len(sizes) > 20 and max(sizes) < 100_000


def read_outputs(reply: Any) -> list[Any]:
    length = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    document, rest = json.loads(reply.body[:length]), memoryview(reply.body)[length:]
    results = []
    for output in document["outputs"]:
        shape = tuple(output["shape"])
        if (size := output.get("parameters", {}).get("binary_data_size")) is None:
            text = json.dumps(output["data"]).encode()
            results.append(decode_json(output["name"], output["datatype"], shape, text, json.loads))
        else:
            results.append(decode_binary(output["name"], output["datatype"], shape, rest[:size]))
            rest = rest[size:]
    return results


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(functions())
def test_a_served_model_gives_the_bits_of_a_direct_call(function: Function) -> None:
    assume(not function.aliases)  # its calls are steps of sessions
    with xrt.XRTModule(function, engine="toy") as module:
        try:
            application = app({"model": module})
        except OptionError as error:
            assume("has no datatype for" not in str(error) and "is listed twice" not in str(error))
            raise
        inputs = sample(function)
        try:
            results = module(**inputs)
        except XRTError:  # random sizes that the model does not take
            assume(False)
        expected = results if isinstance(results, tuple) else (results,)
        dtypes = [xrt.DType.from_array(array) for array in (*inputs.values(), *expected)]
        narrow = any(not DATATYPES[DATATYPE_NAMES[dtype]].has_json for dtype in dtypes)

        async def test() -> None:
            async with running(application):
                for is_binary in (True,) if narrow else (True, False):
                    body, headers = binary(inputs, parameters={"binary_data_output": True})
                    if not is_binary:
                        kinds = {name: DATATYPE_NAMES[xrt.DType.from_array(array)] for name, array in inputs.items()}
                        tensors = [tensor(name, array, kinds[name]) for name, array in inputs.items()]
                        body, headers = json.dumps({"inputs": tensors}).encode(), {}
                    reply = await ask(application, "POST", "/v2/models/model/infer", body, headers)
                    assert reply.status == 200, reply.body
                    for mine, direct in zip(read_outputs(reply), expected, strict=True):
                        assert are_equal(np.asarray(mine), np.asarray(direct), bits=is_binary)

        asyncio.run(test())
