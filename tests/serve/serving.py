"""Models, an application without a server, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

import xrt
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.serve.application import Application
from xrt.serve.protocol import DATATYPE_NAMES, encode_binary

TOP = Path(__file__).parents[2]
HANGS = 120
"""Seconds after which something hangs; nothing that works waits for it."""


def identity(*dtypes: DType, shape: tuple[Any, ...] = ("n", 2)) -> Function:
    """Return a model that gives back each of its inputs ``x0, x1, ...`` as ``y0, y1, ...``."""
    types = [TensorType(dtype, shape) for dtype in dtypes]
    ends = [tuple(Value(f"{letter}{place}", type_) for place, type_ in enumerate(types)) for letter in "xy"]
    nodes = tuple(Node("Identity", (x.name,), (y.name,), name=f"i{x.name}") for x, y in zip(*ends, strict=True))
    return Function(*ends, nodes, opsets={"": 20})


class Double(xrt.Graph):
    """Twice the input."""

    def build(self, x: Any) -> Any:
        return xrt.ops.Add(x, x)


def double(shape: tuple[Any, ...] = ("n", 3), dtype: DType = DType.FLOAT32) -> Function:
    return Double().trace(TensorType(dtype, shape))


class Total(xrt.Graph):
    """The sum of the inputs of a session."""

    def build(self, x: Any) -> Any:
        total = self.state("total", TensorType(DType.FLOAT32, (2,)))
        after = xrt.ops.Add(total, x)
        self.update(total, after)
        return xrt.ops.Identity(after)


def total() -> Function:
    return Total().trace(TensorType(DType.FLOAT32, (2,)))


# ---------------------------------------------------------------------- the schema of the protocol

DOCUMENT = json.loads(Path(__file__).with_name("open_inference.schema.json").read_text())
LENGTH = "inference-header-content-length"
LONGEST = 1 << 16
"""Bytes of a JSON that is validated: the schema asks each number of it what it is."""
FORMS = {
    ("v2",): "metadata_server_response",
    ("v2", "health", "live"): "live_server_response",
    ("v2", "health", "ready"): "ready_server_response",
    ("v2", "models", "*"): "metadata_model_response",
    ("v2", "models", "*", "ready"): "ready_model_response",
    ("v2", "models", "*", "infer"): "inference_response",
}
"""The form of a response with status 200, by the path without a version."""
EXTENSION = re.compile(r"metrics|v2/models|v2/models/stats|v2/models/.+/(config|stats)|v2/repository/.+")
"""Paths that are not the protocol's own."""
IS_READY = ("ready_server_response", "ready_model_response")


@lru_cache
def make_validator(name: str) -> Draft202012Validator:
    """Return what validates one of the forms of the schema."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DOCUMENT["$defs"]})


def list_faults(name: str, document: Any) -> list[str]:
    """Return where a document differs from a form."""
    return [f"{error.json_path}: {error.message[:300]}" for error in make_validator(name).iter_errors(document)]


def find_form(path: str) -> str | None:
    """Return the form of a response with status 200 at a path; None where the protocol has none."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["v2", "models"] and len(parts) > 2:
        parts[2] = "*"
    if parts[3:4] == ["versions"]:
        del parts[3:5]
    return FORMS.get(tuple(parts))


def check_reply(path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Assert that a response is the protocol's."""
    form = find_form(path)
    if form is None and status == 200:
        assert EXTENSION.fullmatch(path.strip("/"))
        return
    length = int(headers[LENGTH]) if LENGTH in headers else len(body)
    assert 0 < length <= len(body)
    wanted = "application/octet-stream" if LENGTH in headers else "application/json"
    assert headers["content-type"] == wanted
    document = json.loads(body[:length])
    if status != 200:
        assert 400 <= status < 600
        if form not in IS_READY or "error" not in document or len(document) == 1:
            form = "error_response"
        else:
            assert document["ready"] is False
    elif form in IS_READY:
        assert document["ready"] is True
        assert "error" not in document
    assert form is not None
    if length <= LONGEST:
        assert list_faults(form, document) == []


def is_request(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether the JSON of a body is a request by the schema. What the tensors hold is not part of it."""
    named = {name.lower(): value for name, value in headers.items()}
    text = named.get(LENGTH, str(len(body)))
    if not (text.isdigit() and int(text) <= len(body)):
        return False
    try:
        return not list_faults("inference_request", json.loads(body[: int(text)].decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return False


# ---------------------------------------------------------------------- an application without a server


@dataclass(frozen=True)
class Reply:
    """A response of HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert list(self.document) == ["error"]
        return str(self.document["error"])


async def exchange(application: Application, receive: Callable[[], Awaitable[Any]], **scope: Any) -> Reply:
    """Return the response to a request of HTTP, by default for the model ``double``, whose messages ``receive`` returns."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    request = {"type": "http", "method": "POST", "path": "/v2/models/double/infer", "headers": [], "root_path": "", **scope}
    await application(request, receive, send)
    start, content = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert int(headers["content-length"]) == len(content["body"])
    check_reply(request["path"], start["status"], headers, bytes(content["body"]))
    return Reply(start["status"], headers, bytes(content["body"]))


async def ask(
    application: Application, method: str, path: str, body: bytes | Sequence[bytes] = b"", headers: Mapping[str, str] = {}
) -> Reply:
    """Return the response to one request, which is the protocol's; a sequence is a body in several messages."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    messages = [{"type": "http.request", "body": c, "more_body": place + 1 < len(chunks)} for place, c in enumerate(chunks)]

    async def receive() -> Any:
        return messages.pop(0)

    named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    reply = await exchange(application, receive, method=method, path=path, headers=named)
    whole = b"".join(chunks)
    if reply.status == 200 and path.rstrip("/").endswith("infer") and len(whole) <= LONGEST:
        assert is_request(headers, whole)  # what the schema refuses is not served
    return reply


async def infer(application: Application, model: str, document: Any, **headers: str) -> Reply:
    return await ask(application, "POST", f"/v2/models/{model}/infer", json.dumps(document).encode(), headers)


def tensor(name: str, array: Any, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    """Return an input with JSON data."""
    values = np.asarray(array)
    return {"name": name, "shape": list(values.shape), "datatype": datatype, "data": values.reshape(-1).tolist(), **more}


def binary(arrays: Mapping[str, Any], *, shape: Sequence[int] = (), **more: Any) -> tuple[bytes, dict[str, str]]:
    """Return a body with binary inputs and its header; ``shape`` is announced in place of the inputs' own."""
    parts = {name: bytes(encode_binary(array)) for name, array in arrays.items()}
    inputs = [
        {
            "name": name,
            "shape": shape or array.shape,
            "datatype": DATATYPE_NAMES[DType.from_array(array)],
            "parameters": {"binary_data_size": len(parts[name])},
        }
        for name, array in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + b"".join(parts.values()), {"Inference-Header-Content-Length": str(len(head))}


@asynccontextmanager
async def running(application: Application, *, ready: bool = True) -> AsyncIterator[Application]:
    """Start an application, which must then be ready, and close it afterwards."""
    try:
        if ready:
            await application.start()
            assert application.explain_not_ready() == ""
        yield application
    finally:
        await application.close()


class Gate:
    """A call that waits until the test opens it, and then returns ``result`` of its arguments."""

    def __init__(self, result: Callable[..., Any] = lambda *values: values) -> None:
        self.entered, self.opened, self.result = threading.Semaphore(0), threading.Event(), result
        self.calls: list[Any] = []

    def __call__(self, *values: Any) -> Any:
        self.calls.append(values)
        self.entered.release()
        assert self.opened.wait(HANGS)
        return self.result(*values)

    async def wait_for_entry(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, True, HANGS)


# ---------------------------------------------------------------------- a server in a process


@dataclass(frozen=True)
class ServerProcess:
    """``xrt serve`` with the ports that it printed."""

    process: subprocess.Popen[str]
    lines: list[str]

    @property
    def http(self) -> str:
        return next(line.rpartition("//")[2] for line in self.lines if line.startswith("listening"))

    @property
    def grpc(self) -> str:
        return next(line.rpartition(" ")[2] for line in self.lines if line.startswith("gRPC"))

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit status and what was printed since."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=HANGS)
        return self.process.returncode, rest


@contextmanager
def serve(*arguments: object) -> Iterator[ServerProcess]:
    """Start ``xrt serve`` on free ports, and wait until it says that it is ready."""
    command = [sys.executable, "-m", "xrt.cli", "serve", "--port", "0", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(TOP), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith(("ready", "warning: not ready")):
                break
        assert lines and lines[-1] == "ready", lines
        yield ServerProcess(process, lines)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        elif process.stdout is not None:
            process.stdout.close()
