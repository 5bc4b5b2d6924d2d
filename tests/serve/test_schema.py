"""The schema of the protocol, with which `serving.ask` compares the responses of all tests: it is tested itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator

import xrt
from tests.serve.schema import DOCUMENT, FORMS, check_reply, find_form, is_request, list_faults
from tests.serve.serving import ask, double, identity, infer, run, tensor
from xrt.graph import DType
from xrt.serve import app
from xrt.serve.protocol import DATATYPES

X = np.array([[1, 2, 3]], np.float32)
INPUT = {"name": "x", "shape": [1], "datatype": "FP32"}


def test_the_schema_is_one_and_has_the_datatypes_of_the_application() -> None:
    Draft202012Validator.check_schema(DOCUMENT)
    assert DOCUMENT["$defs"]["datatype"]["enum"] == list(DATATYPES)
    assert set(FORMS.values()) <= set(DOCUMENT["$defs"])


def test_the_examples_of_the_specification_are_requests_and_responses() -> None:
    inputs = [
        {"name": "input0", "shape": [2, 2], "datatype": "UINT32", "data": [1, 2, 3, 4]},
        {"name": "input1", "shape": [3], "datatype": "BOOL", "data": [True, False, True]},
    ]
    assert list_faults("inference_request", {"id": "42", "inputs": inputs, "outputs": [{"name": "output0"}]}) == []
    nested = {"name": "output0", "shape": [3, 2], "datatype": "FP32", "data": [[1.0, 1.1], [2.0, 2.1], [3.0, 3.1]]}
    assert list_faults("inference_response", {"model_name": "m", "id": "42", "outputs": [nested]}) == []


@pytest.mark.parametrize(
    ("form", "document"),
    [
        ("inference_request", {"inputs": [{**INPUT}]}),
        ("inference_request", {"inputs": [{**INPUT, "data": 1.0}]}),
        ("inference_request", {"inputs": [{**INPUT, "data": [1.0], "parameters": {"binary_data_size": 4}}]}),
        ("inference_request", {"inputs": [{**INPUT, "parameters": {"binary_data_size": -4}}]}),
        ("inference_request", {"inputs": [{**INPUT, "datatype": "FLOAT", "data": [1.0]}]}),
        ("inference_request", {"inputs": [{**INPUT, "datatype": "FP16", "data": [1.0]}]}),
        ("inference_request", {"inputs": [{**INPUT, "shape": [-1], "data": [1.0]}]}),
        ("inference_request", {"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}),
        ("inference_request", {"id": 7, "inputs": []}),
        ("inference_response", {"outputs": []}),
        ("inference_response", {"model_name": "m", "outputs": [], "more": 1}),
        ("inference_response", {"model_name": "m", "outputs": [{**INPUT, "data": [None]}]}),
        ("metadata_model_response", {"name": "m", "platform": "xrt", "inputs": [{"name": "x", "shape": [-2]}], "outputs": []}),
        ("metadata_server_response", {"name": "xrt", "version": "1"}),
        ("inference_response", {"model_name": "m", "outputs": [{**INPUT, "data": [1], "parameters": {"a": None}}]}),
        ("error_response", {"error": ""}),
    ],
)
def test_what_is_not_the_protocol_is_refused(form: str, document: Any) -> None:
    assert list_faults(form, document)


@pytest.mark.parametrize(
    ("path", "status", "headers", "body"),
    [
        ("/v2", 200, {}, b'{"name": "xrt"}'),
        ("/v2", 404, {}, b'{"message": "none"}'),
        ("/v2", 200, {"content-type": "text/plain"}, b'{"name": "xrt", "version": "1", "extensions": []}'),
        ("/v2/health/ready", 200, {}, b'{"live": true, "ready": false}'),
        ("/v2/health/ready", 400, {}, b'{"live": true, "ready": true, "error": "why"}'),
        (
            "/v2/models/m/infer",
            200,
            {},
            b'{"model_name": "m", "outputs": [{"name": "y", "shape": [2], "datatype": "FP32", "data": [1]}]}',
        ),
        ("/v2/models/m/infer", 200, {"inference-header-content-length": "32"}, b'{"model_name": "m", "outputs":[]}'),
    ],
)
def test_a_response_that_is_not_the_protocols_is_found(path: str, status: int, headers: dict[str, str], body: bytes) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_reply("GET", path, status, {"content-type": "application/json", **headers}, body)


def test_each_form_of_a_response_is_sent() -> None:
    """`ask` compares them with the schema; a form that is never sent would not be compared."""
    application = app(
        {
            "double": xrt.XRTModule(double(), engine="toy"),
            "kinds": xrt.XRTModule(identity(DType.BOOL, DType.STRING, DType.UINT64), engine="toy"),
        }
    )
    seen = set()
    kinds = [
        tensor("x0", [[True, False]], "BOOL"),
        tensor("x1", [["a", "\u00e9"]], "BYTES"),
        tensor("x2", np.array([[0, 2**64 - 1]], np.uint64), "UINT64"),
    ]

    async def test() -> None:
        for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/double", "/v2/models/kinds/versions/1/ready"):
            reply = await ask(application, "GET", path)
            seen.add(check_reply("GET", path, reply.status, reply.headers, reply.body))
        for model, inputs in (("double", [tensor("x", X)]), ("kinds", kinds)):
            for flag in (False, True):
                document = {"id": "7", "inputs": inputs, "parameters": {"binary_data_output": flag}}
                reply = await infer(application, model, document)
                assert reply.status == 200
                seen.add(check_reply("POST", f"/v2/models/{model}/infer", reply.status, reply.headers, reply.body))
        application.begin_drain()
        for path in ("/v2/health/ready", "/v2/models/none", "/v2/models/double/infer"):
            reply = await ask(application, "GET", path)
            assert reply.status in (400, 404, 405)
            seen.add(check_reply("GET", path, reply.status, reply.headers, reply.body))

    run(application, test)
    assert seen == {*FORMS.values(), "error_response"}


PIECES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats(width=32) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "binary_data", "a"]), inner, max_size=2),
    max_leaves=4,
)
VALID: Any = {
    "id": "7",
    "parameters": {},
    "inputs": [tensor("x", X, parameters={})],
    "outputs": [{"name": "add_1", "parameters": {}}],
}
PLACES = [(), ("id",), ("parameters",), ("inputs",), ("inputs", 0), ("outputs",), ("outputs", 0), ("outputs", 0, "name")]
PLACES += [("inputs", 0, key) for key in VALID["inputs"][0]] + [("inputs", 0, "data", 1), ("inputs", 0, "shape", 0)]
PLACES += [("parameters", "binary_data_output"), ("inputs", 0, "parameters", "binary_data_size")]


@pytest.mark.slow
@given(place=st.sampled_from(PLACES), piece=PIECES)
@settings(max_examples=150, deadline=None)
def test_whatever_the_schema_refuses_is_refused(place: tuple[Any, ...], piece: Any) -> None:
    """A value of a request is replaced by another one: the answer is 200 or 400, and 400 where the schema says so."""
    document = json.loads(json.dumps(VALID))
    if place:
        parent = document
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = piece
    else:
        document = piece

    application = app({"double": MODULE})

    async def test() -> None:
        reply = await infer(application, "double", document)
        assert reply.status in ((200, 400) if is_request({}, json.dumps(document).encode()) else (400,))

    run(application, test)


MODULE = xrt.XRTModule(double(), engine="toy")


@pytest.mark.parametrize(
    ("path", "form"), [("/v2/models/a/versions/2/infer", "inference_response"), ("/v2/models", None), ("/", None)]
)
def test_a_path_has_a_form(path: str, form: str | None) -> None:
    assert find_form(path) == form
