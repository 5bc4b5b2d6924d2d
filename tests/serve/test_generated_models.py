"""A law of serving: whatever the model, a request gives the bits of a direct call, in binary form and in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import xrt
from tests.serve.serving import ask, run
from xrt.errors import OptionError, XRTError
from xrt.graph import Function
from xrt.operators.sample_inputs import sample_inputs as sample
from xrt.serve import app
from xrt.serve.protocol import DATATYPES, NAMES, decode_binary, decode_json, encode_binary
from xrt.testing.strategies import functions


def make_request(inputs: dict[str, Any], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return a body and its header; FP16 and BF16 are binary in any case."""
    tensors, tail = [], b""
    for name, array in inputs.items():
        datatype = NAMES[xrt.DType.of(array)]
        described = {"name": name, "shape": array.shape, "datatype": datatype}
        if binary or not DATATYPES[datatype].has_json:
            data = bytes(encode_binary(array))
            tail += data
            tensors.append({**described, "parameters": {"binary_data_size": len(data)}})
        else:
            tensors.append({**described, "data": array.reshape(-1).tolist()})
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": binary}}).encode()
    return head + tail, {"Inference-Header-Content-Length": str(len(head))}


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


def same(item: Any, other: Any, *, bits: bool) -> bool:
    if item.dtype != other.dtype or item.shape != other.shape:
        return False
    if bits and item.dtype != object:
        return bool(item.tobytes() == other.tobytes())
    pairs = zip(item.flat, other.flat, strict=True)
    return all(a == b or (not isinstance(a, str) and math.isnan(a) and math.isnan(b)) for a, b in pairs)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(functions())
def test_a_served_model_gives_the_bits_of_a_direct_call(function: Function) -> None:
    assume(not function.aliases)  # its calls are steps of sessions
    with xrt.XRTModule(function, engine="toy") as module:
        try:
            application = app({"model": module})
        except OptionError as error:
            assume("has no datatype for" not in str(error) and "is given twice" not in str(error))
            raise
        inputs = sample(function)
        try:
            results = module(**inputs)
        except XRTError:  # random sizes that the model does not take
            assume(False)
        expected = results if isinstance(results, tuple) else (results,)
        narrow = any(not DATATYPES[NAMES[xrt.DType.of(array)]].has_json for array in expected)

        async def test() -> None:
            for binary in (True,) if narrow else (True, False):
                body, headers = make_request(inputs, binary=binary)
                reply = await ask(application, "POST", "/v2/models/model/infer", body, headers)
                assert reply.status == 200, reply.body
                for mine, direct in zip(read_outputs(reply), expected, strict=True):
                    assert same(np.asarray(mine), np.asarray(direct), bits=binary)

        run(application, test)
