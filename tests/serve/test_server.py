"""``xrt serve`` as a process: where it listens, how it ends, and what happens when a worker or the server itself is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import xrt
from tests.exact_errors import raises_exactly
from tests.serve.serving import HANGS, Gate, double, infer, running, serve, tensor
from xrt.cli.serve import parse_models
from xrt.errors import FallbackWarning, OptionError
from xrt.formats import onnx
from xrt.logging import LOG_VARIABLE
from xrt.processes.spawn import kill, list_descendants
from xrt.serve import app, open_inference_pb2 as messages
from xrt.serve.application import Addresses, Application, run_server
from xrt.serve.grpc_service import SERVICE


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "double.xrt"
    with xrt.XRTModule(double(), engine="ort") as module:
        module.save(path)
    return path


def ask(address: str, path: str, document: Any = None) -> tuple[int, Any]:
    body = None if document is None else json.dumps(document)
    with closing(http.client.HTTPConnection(address, timeout=HANGS)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        reply = connection.getresponse()
        text = reply.read()
    return reply.status, json.loads(text) if reply.headers["content-type"] == "application/json" else text.decode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_listens_on_loopback_and_ends_cleanly(number: int, bundle: Path) -> None:
    with serve(bundle, f"other:2={bundle}", "--batch", "1,4", "--threads", "1") as process:
        assert process.lines[0].startswith("listening on http://127.0.0.1:")
        assert process.lines[1:] == ["ready"]
        document = {"inputs": [tensor("x", [[1, 2, 3]])]}
        for path, version in (("double", "1"), ("other/versions/2", "2")):
            status, reply = ask(process.http, f"/v2/models/{path}/infer", document)
            assert (status, reply["model_version"], reply["outputs"][0]["data"]) == (200, version, [2, 4, 6])
        assert 'xrt_batch_rows_sum{model="double",version="1"} 1.0' in ask(process.http, "/metrics")[1]
        assert process.end(number) == (0, "")


@pytest.mark.slow
async def test_a_killed_worker_under_load_gives_no_wrong_answer() -> None:
    """The region moves to another engine, and every request is answered, or refused with a status of a server's failure."""
    module = xrt.XRTModule(double(), engine="ort", isolate=xrt.Isolation(run=True))
    before = {*list_descendants(os.getpid())}
    with pytest.warns(FallbackWarning):
        async with running(app({"double": module}, instances=4, max_queue=1000)) as application:

            async def one(number: int) -> int:
                reply = await infer(application, "double", {"inputs": [tensor("x", [[number] * 3])]})
                if reply.status == 200:
                    assert reply.document["outputs"][0]["data"] == [2 * number] * 3
                return reply.status

            assert await one(0) == 200
            pending = [asyncio.ensure_future(one(number)) for number in range(200)]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            kill({*list_descendants(os.getpid())} - before)
            statuses = [await future for future in pending]
            assert set(statuses) <= {200, 500} and statuses.count(200) >= 190
            assert await one(7) == 200


def run_with_client(application: Application, client: Callable[[Addresses], None], **options: Any) -> None:
    """Run a server in this thread until its client, in another one from when it is ready, has ended it."""
    clients: list[threading.Thread] = []

    def start(addresses: Addresses) -> None:
        clients.append(threading.Thread(target=client, args=(addresses,)))

    run_server(application, port=0, grpc_port=0, on_start=start, on_ready=lambda reason: clients[0].start(), **options)
    clients[0].join(HANGS)


def send_signal(application: Application, number: int) -> None:
    """Send a signal to this process, and wait until the application is no longer ready."""
    signal.raise_signal(number)
    while not application.explain_not_ready():
        threading.Event().wait(0.001)


@pytest.mark.slow
def test_signals_end_a_server_after_its_requests(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is under way when the signal comes is answered, and the server is not ready meanwhile."""
    application, gate = app({"double": bundle}), Gate(xrt.XRTModule.__call__)
    document = {"inputs": [tensor("x", [[1, 2, 3]])]}
    replies: list[Any] = []

    def client(addresses: Addresses) -> None:
        monkeypatch.setattr(xrt.XRTModule, "__call__", lambda *values: gate(*values))
        address = f"{addresses.host}:{addresses.http}"
        request = threading.Thread(target=lambda: replies.append(ask(address, "/v2/models/double/infer", document)))
        request.start()
        assert gate.entered.acquire(timeout=HANGS)
        with closing(http.client.HTTPConnection(address, timeout=HANGS)) as idle:
            idle.connect()
            send_signal(application, signal.SIGTERM)
            gate.opened.set()
            request.join(HANGS)

    run_with_client(application, client)
    assert replies[0][0] == 200 and replies[0][1]["outputs"][0]["data"] == [2, 4, 6]
    assert application.explain_not_ready() == "the server is shutting down"


@pytest.mark.slow
def test_a_second_signal_drops_calls_of_grpc(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application, gate = app({"double": bundle}), Gate(xrt.XRTModule.__call__)
    statuses: list[str] = []

    def client(addresses: Addresses) -> None:
        monkeypatch.setattr(xrt.XRTModule, "__call__", lambda *values: gate(*values))
        tensor = messages.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 3])
        tensor.contents.fp32_contents.extend([1, 2, 3])
        request = messages.ModelInferRequest(model_name="double", inputs=[tensor])
        with grpc.insecure_channel(f"{addresses.host}:{addresses.grpc}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer").future(request.SerializeToString())
            assert gate.entered.acquire(timeout=HANGS)
            send_signal(application, signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            try:
                statuses.append(call.exception(HANGS).code().name)
            finally:
                gate.opened.set()

    run_with_client(application, client, drain=2 * HANGS)
    assert statuses == ["UNAVAILABLE"]


@pytest.mark.slow
def test_sighup_serves_what_the_files_hold_now(tmp_path: Path) -> None:
    """A file that is damaged keeps the old model in service, and one that cannot be served from the start keeps no other out."""
    path, bad = tmp_path / "double.onnx", tmp_path / "bad.onnx"
    onnx.save(double(), path)
    bad.write_bytes(b"no model")
    document = {"inputs": [tensor("x", [[1, 2, 3]])]}
    with serve(path, bad, "-e", "toy", "--access-log") as process:
        stdout = process.process.stdout
        assert stdout is not None
        assert "ERROR xrt.serve.repository: model bad, version 1, is not served: " in "\n".join(process.lines)

        def reload_until(word: str) -> str:
            process.process.send_signal(signal.SIGHUP)
            return next(line for line in stdout if word in line)

        for text, expected in ((b"", [2, 4, 6]), (None, [1, 2, 3])):
            if text is None:
                onnx.save(identity_of_double(), path)
            else:
                path.write_bytes(text)
            reload_until("model 'bad', version '1', cannot be loaded: ")
            assert ask(process.http, "/v2/models/double/infer", document)[1]["outputs"][0]["data"] == expected
        line = next(line for line in stdout if "POST /v2/models/double/infer" in line)
        assert " INFO xrt.serve.access: 127.0.0.1 'POST /v2/models/double/infer' 200 " in line


def identity_of_double() -> Any:
    """Return a model of the inputs and outputs of `double` that gives its input back."""
    function = double()
    (node,) = function.nodes
    return function.replace(nodes=(replace(node, op_type="Identity", inputs=node.inputs[:1]),))


@pytest.mark.parametrize("missing", ["uvicorn", "prometheus_client"])
def test_without_the_extra_the_error_has_the_pip_line(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = app({"double": xrt.XRTModule(double(), engine="toy")})
    monkeypatch.setitem(sys.modules, missing, None)
    with raises_exactly(OptionError, f"a server needs the package {missing}, which is missing: pip install 'xrt-engine[serve]'"):
        run_server(ready, port=0) if missing == "uvicorn" else app({"double": xrt.XRTModule(double(), engine="toy")})


def test_names_and_versions_of_models() -> None:
    assert parse_models(["a/bert.xrt", "text=b.onnx", "text:2=c.xrt"]) == {
        "bert": {"1": "a/bert.xrt"},
        "text": {"1": "b.onnx", "2": "c.xrt"},
    }
    assert parse_models(["models/bert"]) == {"bert": {"1": "models/bert"}}
    for text in ("=a.xrt", "a:=b.xrt", ":2=b.xrt", "a=", "a:1="):
        with raises_exactly(OptionError, f"a model is PATH, NAME=PATH or NAME:VERSION=PATH; got {text!r}"):
            parse_models([text])
    with raises_exactly(OptionError, "model 'a' is given twice; give each its own name, or a version: a:2=b/a.xrt"):
        parse_models(["a.xrt", "b/a.xrt"])


def test_mistakes_on_the_command_line(command: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_VARIABLE, "info")  # the command leaves the logger as it is
    with closing(socket.create_server(("127.0.0.1", 0))) as used:
        port = used.getsockname()[1]
        in_use = f"cannot listen on 127.0.0.1, port {port}: [Errno 98] Address already in use; choose another host or port"
        for arguments, text in (
            ((bundle, "--batch", "x"), "--batch takes positive integers, such as 1,2,4; got 'x'"),
            ((bundle, "-e", "ort"), "a bundle has fixed engines; leave --engine out, or compile the model again"),
            ((f"a b={bundle}",), "a model's name has letters, digits, '.', '-' and '_'; got 'a b': give name=path"),
            ((bundle, "--port", port), in_use),
        ):
            code, _, err = command("serve", *arguments)
            assert (code, err.strip()) == (2, f"error: {text}")
