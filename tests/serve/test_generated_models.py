"""A law of serving: whatever the model, a request gives the bits of a direct call, in binary form and in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

import xrt
from tests.serve.serving import ask, binary, run, tensor
from xrt.errors import OptionError, XRTError
from xrt.graph import Function
from xrt.operators.sample_inputs import sample_inputs as sample
from xrt.serve import app
from xrt.serve.protocol import DATATYPES, NAMES, decode_binary, decode_json
from xrt.testing.strategies import functions


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
        narrow = any(not DATATYPES[NAMES[xrt.DType.of(array)]].has_json for array in (*inputs.values(), *expected))

        async def test() -> None:
            for is_binary in (True,) if narrow else (True, False):
                body, headers = binary(inputs, parameters={"binary_data_output": True})
                if not is_binary:
                    tensors = [tensor(name, array, NAMES[xrt.DType.of(array)]) for name, array in inputs.items()]
                    body, headers = json.dumps({"inputs": tensors}).encode(), {}
                reply = await ask(application, "POST", "/v2/models/model/infer", body, headers)
                assert reply.status == 200, reply.body
                for mine, direct in zip(read_outputs(reply), expected, strict=True):
                    assert same(np.asarray(mine), np.asarray(direct), bits=is_binary)

        run(application, test)
