"""The Open Inference Protocol over HTTP: every path, datatype and error, and requests that were damaged by a seed."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from tests.integrations.models import write_classifier
from tests.malformed_inputs.mutators import BLIND, TEXTUAL, alter_field, mutate
from tests.serve.serving import HANGS, Gate, ask, binary, double, exchange, identity, infer, running, tensor, total
from xrt.errors import OptionError
from xrt.formats import onnx
from xrt.graph import DType, TensorType
from xrt.serve import app, open_inference_pb2 as messages, start_grpc
from xrt.serve.application import THREAD_CONVERSION_BYTES
from xrt.serve.metrics import ACCESS_LOGGER
from xrt.serve.protocol import DATATYPES, InferRequest, RequestRefusal
from xrt.serve.repository import open_module
from xrt.testing.corpus.entry import graph, sequence

X = np.array([[1, -2, 3.5]], np.float32)
REQUEST = {"inputs": [tensor("x", X)]}
BODY = json.dumps(REQUEST).encode()


def one_model(**options: Any) -> Any:
    return app({"double": xrt.XRTModule(double(), engine="toy")}, **options)


@pytest.mark.parametrize("slash", ["", "/"])
async def test_facts_have_both_forms_of_each_path(slash: str) -> None:
    application = app({"double": {version: xrt.XRTModule(double(), engine="toy") for version in ("1", "10", "2")}})
    tensors = [{"datatype": "FP32", "shape": [-1, 3]}]
    described = {
        "name": "double",
        "versions": ["1", "2", "10"],
        "platform": "xrt",
        "inputs": [{"name": "x", **tensors[0]}],
        "outputs": [{"name": "add_1", **tensors[0]}],
    }
    facts = {
        "/v2": {
            "name": "xrt",
            "version": xrt.__version__,
            "extensions": ["binary_tensor_data", "sequence", "model_repository", "model_configuration", "statistics"],
            "models": {"double": ["1", "2", "10"]},
        },
        "/v2/models": {"models": {"double": ["1", "2", "10"]}},
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"live": True, "ready": True},
        "/v2/models/double": described,
        "/v2/models/double/versions/2": described,
        "/v2/models/double/ready": {"name": "double", "ready": True},
        "/v2/models/double/versions/2/ready": {"name": "double", "ready": True},
    }
    async with running(application):
        for path, expected in facts.items():
            reply = await ask(application, "GET", path + slash)
            assert (reply.status, reply.document) == (200, expected)
            assert (await ask(application, "HEAD", path + slash)).status == 200
        for path, version in (("", "10"), ("/versions/2", "2")):
            reply = await ask(application, "POST", f"/v2/models/double{path}/infer{slash}", BODY)
            assert (reply.status, reply.document["model_version"]) == (200, version)


async def test_a_request_in_json() -> None:
    async with running(one_model()) as application:
        whole = await infer(application, "double", {"id": "a\u00e9", "inputs": [tensor("x", X)]})
        assert whole.document == {
            "model_name": "double",
            "model_version": "1",
            "id": "a\u00e9",
            "outputs": [{"name": "add_1", "datatype": "FP32", "shape": [1, 3], "data": [2.0, -4.0, 7.0]}],
        }
        nested = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [[1, 2, 3], [4, 5, 6]]}
        reply = await infer(application, "double", {"inputs": [nested], "outputs": [{"name": "add_1"}]})
        assert reply.document["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]
        assert "id" not in reply.document
        special = await infer(application, "double", {"inputs": [tensor("x", [[np.nan, np.inf, -np.inf]])]})
        assert str(special.document["outputs"][0]["data"]) == "[nan, inf, -inf]"


async def test_binary_tensors_by_output_and_for_all() -> None:
    application = app({"pair": xrt.XRTModule(identity(DType.FLOAT32, DType.INT64), engine="toy")})
    arrays = {"x0": np.arange(4, dtype=np.float32).reshape(2, 2), "x1": np.arange(4).reshape(2, 2)}
    async with running(application):
        body, headers = binary(arrays, parameters={"binary_data_output": True})
        reply = await ask(application, "POST", "/v2/models/pair/infer", [body[:7], body[7:50], body[50:]], headers)
        length = int(reply.headers["inference-header-content-length"])
        assert reply.headers["content-type"] == "application/octet-stream"
        assert json.loads(reply.body[:length])["outputs"] == [
            {"name": "y0", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
            {"name": "y1", "datatype": "INT64", "shape": [2, 2], "parameters": {"binary_data_size": 32}},
        ]
        assert reply.body[length:] == arrays["x0"].tobytes() + arrays["x1"].tobytes()
        body, headers = binary(arrays, outputs=[{"name": "y1"}, {"name": "y0", "parameters": {"binary_data": True}}])
        reply = await ask(application, "POST", "/v2/models/pair/infer", body, headers)
        length = int(reply.headers["inference-header-content-length"])
        assert [document["name"] for document in json.loads(reply.body[:length])["outputs"]] == ["y1", "y0"]
        assert json.loads(reply.body[:length])["outputs"][0]["data"] == [0, 1, 2, 3]
        assert reply.body[length:] == arrays["x0"].tobytes()


REFUSED = {
    "no JSON": (b"{", "the request is not the protocol's JSON: "),
    "no object": (b"[1]", "the request is not the protocol's JSON: Expected `object`, got `array`"),
    "no inputs": (b"{}", "the request is not the protocol's JSON: Object missing required field `inputs`"),
    "deep": (b'{"parameters": {"a": ' + b"[" * 100_000, "the request's JSON is nested too deeply"),
    "a string without an end": (
        b'{"id": "' + b'\\"' * 100_000,
        "the request is not the protocol's JSON: Input data was truncated",
    ),
    "a string that is no UTF-8": (
        b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "BYTES", "data": ["a", "\xff", "c"]}]}',
        "the data of input 'x' are invalid: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "an unknown input": ({"inputs": [tensor("z", X)]}, "the model has no input 'z'. The model takes 1 input (x)"),
    "twice": ({"inputs": [tensor("x", X)] * 2}, "the request gives an input more than once"),
    "no data": (
        {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32"}]},
        "input 'x' has neither data nor the parameter binary_data_size",
    ),
    "another datatype": ({"inputs": [tensor("x", X, "FP64")]}, "input 'x' of model 'double' is FP32; the request has FP64"),
    "another extent": (
        {"inputs": [tensor("x", [[1, 2]])]},
        "input 'x' must be float32[n,3]; got shape [1, 2]: axis 1 is 2, not 3",
    ),
    "a negative extent": (
        {"inputs": [tensor("x", X, shape=[-1, 3])]},
        "input 'x' has shape [-1, 3]; dimensions must be 0 or more",
    ),
    "large for nothing": (
        {"inputs": [tensor("x", X, shape=[0, 2**40], data=[])]},
        "input 'x' has shape [0, 1099511627776], which exceeds the size limit of a request",
    ),
    "an unknown output": (
        {"inputs": [tensor("x", X)], "outputs": [{"name": "y"}]},
        "model 'double' has no output 'y'; it has: add_1",
    ),
    "a flag that is none": (
        {"inputs": [tensor("x", X)], "parameters": {"binary_data_output": 1}},
        "parameter 'binary_data_output' of the request must be true or false",
    ),
    "a session without state": (
        {"inputs": [tensor("x", X)], "parameters": {"session_id": "a"}},
        "model 'double' has no state, so a request cannot have a session",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_and_why(case: str) -> None:
    document, message = REFUSED[case]
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    async with running(one_model()) as application:
        reply = await ask(application, "POST", "/v2/models/double/infer", body)
        assert reply.status == 400
        assert reply.error.startswith(message) if case == "no JSON" else reply.error == message


async def test_paths_methods_and_sizes_that_are_refused() -> None:
    application = one_model(max_request_bytes=1000)
    large = json.dumps({"inputs": [tensor("x", np.ones((100, 3)))]}).encode()
    async with running(application):
        for method, path, status, error in (
            ("GET", "/v2/models/none", 404, "there is no model 'none'; available: double"),
            ("GET", "/v2/models/double/versions/7", 404, "model 'double' has no version '7'; it has: 1"),
            ("GET", "/", 404, "there is no path '/'; the protocol's begin with /v2"),
            ("GET", "/v2/models/../../etc/passwd", 404, "there is no path '/v2/models/../../etc/passwd'"),
            ("GET", "/v2/repository/index", 405, "GET is not supported for this path; use POST"),
            ("POST", "/v2/repository/models/none/load", 404, "there is no model 'none'; available: double"),
            ("POST", "/v2/repository/models/double", 404, "there is no path '/v2/repository/models/double'"),
            ("POST", "/v2", 405, "POST is not supported for this path; use GET"),
            ("POST", "/v2/models/none", 405, "POST is not supported for this path; use GET"),
            ("POST", "/v2/none", 404, "there is no path '/v2/none'"),
            ("GET", "/v2/models/double/infer", 405, "GET is not supported for this path; use POST"),
        ):
            reply = await ask(application, method, path)
            assert reply.status == status
            assert error in (None, reply.error)
        for headers, body in (({"content-length": str(len(large))}, []), ({}, [large[:900], large[900:]])):
            reply = await ask(application, "POST", "/v2/models/double/infer", body or b"", headers)
            assert (reply.status, reply.error) == (
                413,
                "the body is larger than 1000 bytes, the limit for a request",
            )
        reply = await ask(application, "POST", "/v2/models/double/infer", b"x", {"Content-Encoding": "gzip"})
        assert (reply.status, reply.error) == (400, "content-encoding 'gzip' is not supported; send the body as it is")
        reply = await ask(application, "POST", "/v2/models/double/infer", b"{}", {"Inference-Header-Content-Length": "3"})
        assert reply.error == "Inference-Header-Content-Length is '3'; it must be the size of the JSON, 1 to 2"


async def test_binary_bodies_that_do_not_fit() -> None:
    application = one_model()

    async def refuse(body: bytes, headers: dict[str, str]) -> str:
        reply = await ask(application, "POST", "/v2/models/double/infer", body, headers)
        assert reply.status == 400
        return reply.error

    async with running(application):
        body, headers = binary({"x": X})
        assert await refuse(body + b"1", headers) == "1 bytes follow the last tensor of the request"
        assert await refuse(body[:-1], headers) == "binary_data_size of input 'x' is 12, and 11 bytes are left"
        body, headers = binary({"x": X[:, :2]}, shape=[1, 3])
        assert await refuse(body, headers) == "input 'x' is FP32 of shape [1, 3], 12 bytes; got 8"


async def test_bodies_that_do_not_come_keep_nobody_out() -> None:
    async with running(one_model(max_queue=3)) as application:
        opened, waiting = asyncio.Event(), []

        async def receive() -> Any:
            waiting.append(1)
            await opened.wait()
            return {"type": "http.request", "body": BODY}

        slow = [asyncio.ensure_future(exchange(application, receive)) for _ in range(40)]
        while len(waiting) < 40:
            await asyncio.sleep(0)
        assert (await infer(application, "double", REQUEST)).status == 200
        opened.set()
        statuses = {reply.status for reply in await asyncio.gather(*slow)}
        assert statuses <= {200, 503} and 200 in statuses


async def test_a_request_for_a_full_queue_is_refused_before_its_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(xrt.XRTModule.__call__)
    async with running(one_model(max_queue=3)) as application:
        monkeypatch.setattr(xrt.XRTModule, "__call__", lambda *values: gate(*values))
        pending = [asyncio.ensure_future(infer(application, "double", REQUEST)) for _ in range(4)]
        await gate.wait_for_entry()
        while 'xrt_queued_requests{model="double",version="1"} 3.0' not in application.metrics.write().decode():
            await asyncio.sleep(0)
        reply = await ask(application, "POST", "/v2/models/double/infer", [])
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.error == "3 requests are waiting, and no more are queued; try again"
        gate.opened.set()
        assert [reply.status for reply in await asyncio.gather(*pending)] == [200] * 4
        assert (await infer(application, "double", REQUEST)).status == 200


async def test_requests_whose_responses_are_being_encoded_are_bounded() -> None:
    """A fast model computes large outputs faster than they are encoded, one at a time."""
    gate = Gate(lambda request, response: response)
    request = InferRequest({"x": np.ones((THREAD_CONVERSION_BYTES // 12 + 1, 3), np.float32)}, "", {}, {}, False)
    async with running(one_model(max_queue=2)) as application:
        answers = [asyncio.ensure_future(application.infer("double", "", "", 0, lambda: request, gate)) for _ in range(3)]
        await gate.wait_for_entry()
        with pytest.raises(RequestRefusal) as refusal:
            await application.infer("double", "", "", 0, lambda: request, gate)
        assert str(refusal.value) == "3 requests are under way, and no more are accepted; try again"
        assert (refusal.value.status, refusal.value.retry_after) == (503, 1)
        gate.opened.set()
        assert [answer.model for answer in await asyncio.gather(*answers)] == ["double"] * 3


async def test_bodies_that_arrive_are_bounded_in_bytes() -> None:
    """Slow clients take room from each other: more bytes than the admitted requests may have are not held."""
    async with running(one_model(max_queue=1, max_request_bytes=100)) as application:
        opened = asyncio.Event()

        def post() -> asyncio.Task[Any]:
            parts = [b"x" * 90, b""]

            async def receive() -> Any:
                if len(parts) == 1:
                    await opened.wait()
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

            return asyncio.ensure_future(exchange(application, receive))

        slow = [post() for _ in range(3)]
        (refused,), _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        reply = refused.result()
        assert (reply.status, reply.error) == (503, "too many bodies arrive at once, and no more are read; try again")
        opened.set()
        assert sorted(reply.status for reply in await asyncio.gather(*slow)) == [400, 400, 503]


async def test_a_body_that_does_not_arrive_is_refused() -> None:
    """Ray hands on the requests of a replica that died, and their bodies are gone with it: nothing comes, no end either."""
    async with running(one_model(max_queue=3, body_timeout=0.01)) as application:
        reply = await exchange(application, asyncio.Event().wait, headers=[(b"content-length", b"9")])
        assert (reply.status, reply.error) == (408, "the body did not arrive within 0.01 s")
        assert reply.headers["connection"] == "close"
        assert (await infer(application, "double", REQUEST)).status == 200


async def test_a_wrong_answer_of_the_self_test_keeps_the_model_out_of_service() -> None:
    failing, good = xrt.XRTModule(double(), engine="toy"), xrt.XRTModule(double(), engine="toy")
    failing.run_self_test = Mock(side_effect=xrt.XRTError("output 'add_1' differs from the saved one"))
    async with running(app({"bad": failing, "good": good}), ready=False) as application:
        await application.start()
        reason = "its self-test failed: output 'add_1' differs from the saved one"
        assert application.explain_not_ready() == f"model 'bad': {reason}"
        assert (await ask(application, "GET", "/v2/health/ready")).status == 400
        assert (await ask(application, "POST", "/v2/health/ready")).status == 405
        assert (await infer(application, "bad", REQUEST)).status == 503
        assert (await infer(application, "good", REQUEST)).status == 200
        text = (await ask(application, "GET", "/metrics")).body.decode()
        assert 'xrt_model_ready{model="bad",version="1"} 0.0' in text
        assert 'xrt_model_ready{model="good",version="1"} 1.0' in text
        assert 'xrt_requests_total{model="bad",protocol="http",status="503",version="1"} 1.0' in text


async def test_metrics_count_the_requests_of_each_operation() -> None:
    async with running(one_model()) as application:
        await infer(application, "double", REQUEST)
        for path in ("/v2/models/double", "/v2/models/other", "/nowhere"):
            await ask(application, "GET", path)
        text = (await ask(application, "GET", "/metrics")).body.decode()
    for operation, status in (("ModelInfer", 200), ("ModelMetadata", 200), ("ModelMetadata", 404), ("unknown", 404)):
        assert f'xrt_operations_total{{operation="{operation}",protocol="http",status="{status}"}} 1.0' in text


async def test_lifespan_begins_and_ends_with_the_server() -> None:
    module = xrt.XRTModule(double(), engine="toy")
    async with running(app({"double": module}, replica="r1"), ready=False) as application:
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent = []

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await application({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        reply = await ask(application, "GET", "/v2/health/ready")
        assert (reply.status, reply.headers["xrt-replica"]) == (400, "r1")
    assert np.array_equal(module(X), 2 * X)  # a module that was handed in stays open


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explicit_sessions": 1}, "explicit_sessions must be True or False; got 1"),
        ({"batch": 0}, "batch must be a positive number of rows or a list of such; got 0"),
        ({"max_wait": -1}, "max_wait must be a number of at least 0 or None; got -1"),
        ({"body_timeout": 0}, "body_timeout must be a positive number; got 0"),
        ({"session_idle": 0.0}, "session_idle must be a positive number; got 0.0"),
        ({"session_idle": None}, "session_idle must be a positive number; got None"),
        ({"instances": 0}, "instances must be a positive integer or None; got 0"),
        ({"session_header": "a b"}, "session_header is the name of a header; got 'a b'"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with raises_exactly(OptionError, message):
        one_model(**options)


def test_an_unknown_option_gets_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"^xrt.serve has no option 'batches'\. Did you mean 'batch'\? It has: batch, max_wait"):
        one_model(batches=3)


def test_models_that_cannot_be_served() -> None:
    untyped = {"x": sequence("float32[2]")}
    for models, message in (
        ({}, "there is no model to serve; give at least one"),
        (
            {"a/b": xrt.XRTModule(double(), engine="toy")},
            "a model's name has letters, digits, '.', '-' and '_'; got 'a/b': give name=path",
        ),
        ({"a": 7}, "a model is an XRTModule or the path of a bundle or ONNX file; got int"),
        (
            {"a": xrt.XRTModule(graph(untyped, untyped), engine="toy")},
            "'x' of model 'a' is seq(float32[2]), which the Open Inference Protocol has no datatype for; it has: "
            + ", ".join(DATATYPES),
        ),
    ):
        with raises_exactly(OptionError, message):
            app(models)


class Lookup(xrt.Graph):
    """Rows of a table by their numbers."""

    def build(self, ids: Any) -> Any:
        return xrt.ops.Gather(np.eye(4, dtype=np.float32), ids)


@pytest.mark.parametrize("engine", ["toy", "ort"])
async def test_an_index_out_of_range_is_the_mistake_of_the_client(engine: str) -> None:
    function = Lookup().trace(ids=TensorType(DType.INT64, ("n",)))
    async with running(app({"lookup": xrt.XRTModule(function, engine=engine)})) as application:
        for _ in range(2):
            bad = await infer(application, "lookup", {"inputs": [tensor("ids", [1, 99], "INT64")]})
            assert bad.status == 400 and "99" in bad.error
            good = await infer(application, "lookup", {"inputs": [tensor("ids", [1], "INT64")]})
            assert good.document["outputs"][0]["data"] == [0, 1, 0, 0]


async def test_failures_are_logged_with_their_reason_and_all_requests_on_demand(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level("WARNING", "xrt"):
        async with running(one_model()) as application:
            await infer(application, "double", {"inputs": [tensor("y", X)]})
            assert caplog.records == []
            with monkeypatch.context() as patch:
                patch.setattr(xrt.XRTModule, "__call__", Mock(side_effect=xrt.errors.RunFailed("the engine is gone")))
                await infer(application, "double", REQUEST)
            (record,) = caplog.records
            message = "'POST /v2/models/double/infer': status 500: model 'double' failed: the engine is gone"
            assert (record.levelname, record.name, record.getMessage()) == ("ERROR", "xrt.serve", message)
            application.models.find("double", None).why_not_ready = "it is being prepared"
            for _ in range(100):
                await infer(application, "double", REQUEST)
            assert len(caplog.records) == 2 and caplog.records[-1].levelname == "WARNING"  # at most one line a second
            caplog.clear()
            with caplog.at_level("INFO", ACCESS_LOGGER):
                await ask(application, "GET", "/v2")
            assert caplog.messages[0].startswith(" 'GET /v2' 200 ")


async def test_long_names_of_a_client_are_not_told_back_whole() -> None:
    async with running(one_model()) as application:
        for document in (
            {"inputs": [tensor("z" * 100_000, X)]},
            {"inputs": [tensor("z" * 100_000, X, "FP33")]},
            {"inputs": [tensor("x", X)], "outputs": [{"name": "z" * 100_000}]},
        ):
            reply = await infer(application, "double", document)
            assert reply.status == 400 and len(reply.error) < 2100


async def test_models_are_loaded_again_and_unloaded(tmp_path: Path) -> None:
    path = tmp_path / "total.onnx"
    onnx.save(total(), path)
    application = app({"total": path, "double": xrt.XRTModule(double())}, engine="toy")

    async def control(path: str, document: Any = None) -> Any:
        return await ask(application, "POST", f"/v2/repository/{path}", json.dumps(document or {}).encode())

    async def step(value: float) -> Any:
        return await infer(application, "total", {"inputs": [tensor("x", [value, 0])], "parameters": {"session_id": "a"}})

    async with running(application):
        assert (await step(1)).status == 200
        old = application.models.find("total", None)
        assert (await control("models/total/load")).status == 200
        assert application.models.find("total", None) is not old and old.why_not_ready == "it is closed"
        gone = await step(2)
        assert (gone.status, gone.error) == (
            410,
            "session 'a' is gone: the model was loaded again; begin again with session_start",
        )
        sound = path.read_bytes()
        path.write_bytes(b"no model")
        failed = await control("models/total/load")
        assert failed.status == 400 and failed.error.startswith("model 'total', version '1', cannot be loaded: ")
        path.write_bytes(sound)
        assert application.models.find("total", None).why_not_ready == ""
        assert 'xrt_model_ready{model="total",version="1"} 1.0' in (await ask(application, "GET", "/metrics")).body.decode()
        assert (await control("models/double/unload", {"parameters": {"unload_dependents": False}})).status == 200
        assert [model["name"] for model in (await control("index", {"ready": True})).document] == ["total"]
        assert (await control("models/double/load")).status == 200  # a module that was handed in is still open
        assert (await infer(application, "double", REQUEST)).status == 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the model ``double``."""
    onnx.save(double(), tmp_path / "double.onnx")
    return tmp_path / "double.onnx"


async def test_a_model_may_be_loaded_again_while_a_body_arrives(path: Path) -> None:
    async with running(app({"double": path}, engine="toy")) as application:

        async def receive() -> Any:
            await application.models.load("double")
            return {"type": "http.request", "body": BODY, "more_body": False}

        assert (await exchange(application, receive)).status == 200


async def test_during_a_load_the_metrics_are_those_of_the_model_in_service(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    async with running(app({"double": path}, engine="toy")) as application:
        monkeypatch.setattr(xrt.XRTModule, "run_self_test", lambda module: gate())
        loading = asyncio.ensure_future(application.models.load("double"))
        await gate.wait_for_entry()
        text = (await ask(application, "GET", "/metrics")).body.decode()
        gate.opened.set()
        await loading
        assert 'xrt_model_ready{model="double",version="1"} 1.0' in text


async def test_requests_are_answered_while_a_replaced_model_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a module may wait for an engine's process."""
    gate = Gate(xrt.XRTModule.close)
    async with running(app({"double": path}, engine="toy")) as application:
        monkeypatch.setattr(xrt.XRTModule, "close", lambda module: gate(module))
        loading = asyncio.ensure_future(application.models.load("double"))
        await gate.wait_for_entry()
        assert (await infer(application, "double", REQUEST)).status == 200
        gate.opened.set()
        await loading


async def test_a_load_is_completed_when_its_client_goes_away(path: Path) -> None:
    async with running(app({"double": path}, engine="toy")) as application:
        old = application.models.find("double", None)
        loading = asyncio.ensure_future(application.models.load("double"))
        for _ in range(3):  # it opens the file
            await asyncio.sleep(0)
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
        await application.models.wait_for_changes()
        assert application.models.find("double", None) is not old and old.why_not_ready == "it is closed"
        assert 'xrt_model_ready{model="double",version="1"} 1.0' in (await ask(application, "GET", "/metrics")).body.decode()


async def test_a_reload_that_fails_in_any_way_is_logged_and_the_next_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = {name: tmp_path / f"{name}.onnx" for name in ("bad", "good")}
    for path in paths.values():
        onnx.save(double(), path)
    application = app(paths, engine="toy")

    def open_or_fail(path: Path, options: Any) -> Any:
        if path == paths["bad"]:
            raise ValueError("the loader has a defect")
        return open_module(path, options)

    async with running(application):
        old = {name: application.models.find(name, None) for name in paths}
        monkeypatch.setattr("xrt.serve.repository.open_module", open_or_fail)
        await application.models.reload()
        assert {name: application.models.find(name, None) is model for name, model in old.items()} == {"bad": True, "good": False}
        assert [record.getMessage() for record in caplog.records if record.exc_info] == ["model bad cannot be loaded again"]


async def test_model_control_can_be_refused() -> None:
    async with running(one_model(model_control=False)) as application:
        for what in ("load", "unload"):
            reply = await ask(application, "POST", f"/v2/repository/models/double/{what}")
            message = "model_control is off, so requests cannot load or unload models; send SIGHUP, or restart the server"
            assert (reply.status, reply.error) == (400, message)


async def test_a_model_that_cannot_be_served_does_not_keep_others_from_it(tmp_path: Path) -> None:
    paths = {"good": tmp_path / "good.onnx", "churn": Path(write_classifier(tmp_path)), "none": tmp_path / "none.onnx"}
    onnx.save(double(), paths["good"])
    async with running(app(paths, engine="toy")) as application:
        assert (await ask(application, "GET", "/v2/health/ready")).status == 200
        assert (await infer(application, "good", REQUEST)).status == 200
        reply = await ask(application, "GET", "/v2/models/churn")
        assert reply.status == 404
        assert reply.error.startswith(
            "model 'churn' is not served: 'output_probability' of model 'churn' is seq(map(int64,float32[]))"
        )
        assert reply.error.endswith('. skl2onnx writes tensors instead of maps with options={"zipmap": False}')
        index = (await ask(application, "POST", "/v2/repository/index")).document
        assert [position["state"] for position in index] == ["READY", "UNAVAILABLE", "UNAVAILABLE"]


COUNT = 1000


def valid_requests() -> list[tuple[str, bytes, int | None]]:
    """Return valid requests: a model, a body, and the bytes of its JSON where tensors follow."""
    both = [tensor("x0", [[1.5, 2]]), tensor("x1", [["a", "\u00e9"]], "BYTES")]
    text = b"\1\0\0\0a\3\0\0\0abc"
    raw = [("x0", "FP32", np.ones((1, 2), np.float32).tobytes()), ("x1", "BYTES", text)]
    heads = [
        {"name": name, "shape": [1, 2], "datatype": kind, "parameters": {"binary_data_size": len(data)}}
        for name, kind, data in raw
    ]
    head = json.dumps({"id": "7", "inputs": heads, "parameters": {"binary_data_output": True}}).encode()
    session = {"inputs": [tensor("x", [1, 2])], "parameters": {"session_id": "a", "session_start": True, "session_end": False}}
    wanted = [{"name": "y0", "parameters": {"binary_data": True}}, {"name": "y1"}]
    return [
        ("pair", json.dumps({"id": "1", "inputs": both, "outputs": wanted}).encode(), None),
        ("pair", head + b"".join(data for _, _, data in raw), len(head)),
        ("total", json.dumps(session).encode(), None),
    ]


def two_models() -> Any:
    models = {"pair": identity(DType.FLOAT32, DType.STRING), "total": total()}
    return app(
        {name: xrt.XRTModule(function, engine="toy") for name, function in models.items()},
        max_request_bytes=1 << 16,
        max_sessions=10_000,
    )


@pytest.mark.slow
async def test_a_thousand_damaged_bodies(caplog: pytest.LogCaptureFixture) -> None:
    served, chance = two_models(), Random(20)
    caplog.set_level(logging.ERROR)
    async with running(served):
        seen = dict.fromkeys((200, 400), 0)
        for number in range(COUNT):
            model, body, length = valid_requests()[number % 3]
            damaged = mutate(body, BLIND + TEXTUAL, chance)
            headers = (
                {} if length is None else {"Inference-Header-Content-Length": chance.choice([str(length), "7", "-1", "9" * 50])}
            )
            reply = await ask(served, "POST", f"/v2/models/{model}/infer", damaged, headers)
            assert reply.status in (200, 400, 404, 410, 413), (number, reply)
            assert reply.status == 200 or reply.error
            seen[reply.status] = seen.get(reply.status, 0) + 1
        assert seen[400] > COUNT / 2 and seen[200] > 20  # the damage is not always in what is read
    assert caplog.records == []


@pytest.mark.slow
async def test_damaged_messages_of_grpc(caplog: pytest.LogCaptureFixture) -> None:
    import grpc.aio

    served, chance = two_models(), Random(20)
    request = messages.ModelInferRequest(model_name="pair", id="1")
    request.inputs.add(name="x0", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    request.inputs.add(name="x1", datatype="BYTES", shape=[1, 2]).contents.bytes_contents.extend([b"a", b"b"])
    raw = messages.ModelInferRequest(model_name="pair", raw_input_contents=[b"\0" * 8, b"\1\0\0\0a\0\0\0\0"])
    raw.inputs.add(name="x0", datatype="FP32", shape=[1, 2])
    raw.inputs.add(name="x1", datatype="BYTES", shape=[1, 2])
    good = [request.SerializeToString(), raw.SerializeToString()]
    caplog.set_level(logging.ERROR)
    async with running(served):
        server, port = await start_grpc(served)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            codes: set[Any] = set()
            for number in range(300):
                try:
                    await asyncio.wait_for(call(mutate(good[number % 2], (alter_field, alter_field, *BLIND), chance)), HANGS)
                    codes.add("OK")
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code().name)
            assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"} and {"OK", "INVALID_ARGUMENT"} <= codes
        await server.stop(None)
    assert caplog.records == []
