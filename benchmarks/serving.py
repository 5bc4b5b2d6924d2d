"""What does a request cost over a call, and how much of the in-process throughput does a server give?

*Overhead*: a small model is called in this process, and by ``xrt serve`` on loopback through HTTP with binary tensors, HTTP with
JSON, and gRPC. The ways take turns within rounds, on one kept connection each; the client encodes its input and decodes the
result. A row is the median of a round's calls less that of the calls in the process, over all rounds. ``health`` is a request
that calls no model: what the transport itself costs.

*Throughput*: a larger model, one thread, batches of ``--batch`` rows. In this process: calls of full batches, one after the
other. Served: requests of one row on ``--connections`` connections, which the server joins. Turns again; a ratio is of a round.

    python -m benchmarks.serving [--quick] [--json] [--rounds N] [--calls N] [--floats 1024]
                                 [--model mobilenet|perceptron] [--batch 8] [--connections 32] [--seconds 2]

The server has one thread, so that on two cores the client has the other. Targets: 0.6 ms at p50, 0.90 of the throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import xrt
from xrt import models
from xrt.graph import DType, FrozenDict, Function, TensorType, Value
from xrt.measure.interleave import take_turns

TRANSPORTS = ("health", "http binary", "http json", "grpc")


def perceptron(floats: int) -> Function:
    """Return a model of two products, whose input and output have that many numbers."""
    weights = np.random.default_rng(0).standard_normal((2, floats, floats)).astype(np.float32) / floats**0.5

    class Perceptron(xrt.Graph):
        def build(self, x: Any) -> Any:
            return xrt.ops.MatMul(xrt.ops.Relu(xrt.ops.MatMul(x, weights[0])), weights[1])

    return Perceptron().trace(TensorType(DType.FLOAT32, ("n", floats)))


@contextmanager
def serve(bundle: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run ``xrt serve`` and give its addresses of HTTP and gRPC."""
    command = [sys.executable, "-u", "-m", "xrt.cli", "serve", str(bundle), "--port", "0", "--grpc-port", "0", "--threads", "1"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().strip() for _ in range(3)]
        if lines[-1] != "ready":
            raise SystemExit(f"the server did not start: {lines}")
        yield lines[0].rpartition("//")[2], lines[1].rpartition(" ")[2]
    finally:
        process.terminate()
        process.communicate()


# ---------------------------------------------------------------------- overhead


def make_binary(array: Any, name: str, datatype: str = "FP32") -> tuple[bytes, dict[str, str]]:
    """Return the body of a request with a binary tensor, and its header."""
    tensor = {"name": name, "shape": array.shape, "datatype": datatype, "parameters": {"binary_data_size": array.nbytes}}
    head = msgspec.json.encode({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return head + array.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def make_calls(x: Any, name: str, module: Any, web: str, grpc_address: str) -> dict[str, Callable[[], Any]]:
    """Return a call for each way; each returns the first output as an array."""
    import grpc

    from xrt.serve import open_inference_pb2 as messages

    connection = http.client.HTTPConnection(web)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask = grpc.insecure_channel(grpc_address).unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        messages.ModelInferRequest.SerializeToString,
        messages.ModelInferResponse.FromString,
    )

    def health() -> None:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()

    def binary() -> Any:
        connection.request("POST", "/v2/models/model/infer", *make_binary(x, name))
        reply = connection.getresponse()
        return np.frombuffer(reply.read()[int(reply.headers["Inference-Header-Content-Length"]) :], np.float32)

    def as_json() -> Any:
        tensor = {"name": name, "shape": x.shape, "datatype": "FP32", "data": x.reshape(-1).tolist()}
        connection.request("POST", "/v2/models/model/infer", msgspec.json.encode({"inputs": [tensor]}))
        return np.array(msgspec.json.decode(connection.getresponse().read())["outputs"][0]["data"], np.float32)

    def over_grpc() -> Any:
        request = messages.ModelInferRequest(model_name="model", raw_input_contents=[x.tobytes()])
        request.inputs.add(name=name, datatype="FP32", shape=x.shape)
        return np.frombuffer(ask(request).raw_output_contents[0], np.float32)

    return {"in process": lambda: module(x), "health": health, "http binary": binary, "http json": as_json, "grpc": over_grpc}


def measure_overhead(folder: Path, floats: int, rounds: int, calls: int) -> dict[str, Any]:
    function, bundle = perceptron(floats), folder / "model.xrt"
    x = np.random.default_rng(1).standard_normal((1, floats)).astype(np.float32)
    with xrt.XRTModule(function, engine="ort", threads=1) as module:
        module.save(bundle, x)
        with serve(bundle) as addresses:
            ways = make_calls(x, function.inputs[0].name, module, *addresses)
            expected = module(x)
            for name in TRANSPORTS[1:]:
                if not np.array_equal(ways[name]().reshape(1, -1), expected):
                    raise SystemExit(f"{name} gives another result")
            found = take_turns({name: lambda call=call: time_calls(call, calls) for name, call in ways.items()}, rounds)
    own = [statistics.median(one) for one in found["in process"]]
    rows = {}
    for name in TRANSPORTS:
        overhead = sorted(statistics.median(one) - base for one, base in zip(found[name], own, strict=True))
        every = sorted(seconds for one in found[name] for seconds in one)
        rows[name] = {
            "overhead": statistics.median(overhead),
            "range": [overhead[0], overhead[-1]],
            "p99": every[len(every) * 99 // 100],
        }
    return {"floats": floats, "call": statistics.median(own), "ways": rows}


def time_calls(call: Callable[[], Any], calls: int) -> list[float]:
    """Return the seconds of each call, after a tenth as many that do not count."""
    for _ in range(max(calls // 10, 1)):
        call()
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


# ---------------------------------------------------------------------- throughput


async def load(address: str, request: bytes, connections: int, seconds: float) -> float:
    """Return requests per second of that many connections, each with a request under way at any time."""
    host, _, port = address.rpartition(":")
    ends = time.perf_counter() + seconds
    done = 0

    async def one() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < ends:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server refused: {head[:200]!r}")
            await reader.readexactly(int(head.lower().partition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0]))
            done += 1
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return done / (time.perf_counter() - began)


def call_batches(module: Any, inputs: dict[str, Any], batch: int, seconds: float) -> float:
    """Return rows per second of calls in this process."""
    ends, done, began = time.perf_counter() + seconds, 0, time.perf_counter()
    while time.perf_counter() < ends:
        module(**inputs)
        done += batch
    return done / (time.perf_counter() - began)


def write_request(inputs: dict[str, Any]) -> bytes:
    """Return a whole request of HTTP with the first row of each input."""
    kinds = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
    rows = {name: np.ascontiguousarray(array[:1]) for name, array in inputs.items()}
    tensors = [
        {"name": n, "shape": a.shape, "datatype": kinds[str(a.dtype)], "parameters": {"binary_data_size": a.nbytes}}
        for n, a in rows.items()
    ]
    head = msgspec.json.encode({"inputs": tensors, "parameters": {"binary_data_output": True}})
    body = head + b"".join(array.tobytes() for array in rows.values())
    lines = ["POST /v2/models/model/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, f"Inference-Header-Content-Length: {len(head)}", "", ""]).encode() + body


def measure_throughput(folder: Path, name: str, batch: int, rounds: int, connections: int, seconds: float) -> dict[str, Any]:
    function = perceptron(1024) if name == "perceptron" else open_batch(models.load(name))
    inputs = models.sample_inputs(function, sizes={"n": batch})
    bundle = folder / "model.xrt"
    with xrt.XRTModule(function, engine="ort", threads=1) as module:
        module.save(bundle, **inputs)
        request = write_request(inputs)
        with serve(bundle, "--batch", str(batch), "--max-queue", str(2 * connections)) as (address, _):
            asyncio.run(load(address, request, connections, seconds / 4))
            ways = {
                "in process": lambda: call_batches(module, inputs, batch, seconds),
                "served": lambda: asyncio.run(load(address, request, connections, seconds)),
            }
            found = take_turns(ways, rounds)
    ratios = sorted(mine / own for mine, own in zip(found["served"], found["in process"], strict=True))
    medians = {way: statistics.median(rates) for way, rates in found.items()}
    return {
        "model": name,
        "batch": batch,
        "rows per second": medians,
        "ratio": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
    }


def open_batch(function: Function) -> Function:
    """Return a model of one picture as a model of any number, as exporters declare it."""

    def open_first(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(Value(v.name, v.type.with_shape(("n", *v.type.shape[1:]))) for v in values)  # type: ignore[union-attr, index]

    return replace(function, inputs=open_first(function.inputs), outputs=open_first(function.outputs), types=FrozenDict())


# ---------------------------------------------------------------------- report


def report(found: dict[str, Any]) -> str:
    overhead, throughput = found["overhead"], found["throughput"]
    lines = [
        found["machine"],
        f"a call in the process: {1e3 * overhead['call']:.3f} ms ({overhead['floats']} numbers in and out)",
        f"{'way':12} {'over it, ms':>12} {'(rounds)':>16} {'p99, ms':>9}",
    ]
    for name, row in overhead["ways"].items():
        low, high = (1e3 * seconds for seconds in row["range"])
        lines.append(f"{name:12} {1e3 * row['overhead']:12.3f} {f'({low:.3f} to {high:.3f})':>16} {1e3 * row['p99']:9.3f}")
    rates = throughput["rows per second"]
    low, high = throughput["range"]
    lines.append(
        f"{throughput['model']}, batches of {throughput['batch']}: {rates['in process']:.0f} rows/s in the process, "
        f"{rates['served']:.0f} served: {throughput['ratio']:.2f} ({low:.2f} to {high:.2f})"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--floats", type=int, default=1024)
    parser.add_argument("--model", default="mobilenet", choices=("mobilenet", "perceptron"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="few calls of small models: that it runs, no figures")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.calls, given.floats, given.model, given.seconds, given.connections = 2, 5, 64, "perceptron", 0.2, 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            "machine": f"{platform.processor() or platform.machine()}, xrt {xrt.__version__}",
            "overhead": measure_overhead(folder, given.floats, given.rounds, given.calls),
            "throughput": measure_throughput(folder, given.model, given.batch, given.rounds, given.connections, given.seconds),
        }
    print(json.dumps(found) if given.json else report(found))


if __name__ == "__main__":
    main()
