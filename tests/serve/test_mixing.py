"""Requests that share a call get their own rows: models of one to three inputs, named and unnamed axes, NaN neighbours."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.serve.serving import HANGS, Reply, infer, run, serve, tensor
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.serve import app
from xrt.serve.scheduler import explain_mixed_rows

CLIENTS = 32


def make_sum(count: int, dim: str | None) -> Function:
    """Return the sum of inputs of shape [dim, 2], whose unnamed rows NumPy would broadcast."""
    type_ = TensorType(DType.FLOAT32, (dim, 2))
    inputs = tuple(Value(f"x{place}", type_) for place in range(count))
    names = [inputs[0].name, *(f"s{place}" for place in range(1, count)), "y"]
    nodes = [Node("Add", (names[place - 1], inputs[place].name), (names[place],), name=f"n{place}") for place in range(1, count)]
    nodes.append(Node("Identity", (names[count - 1],), ("y",), name="last"))
    return Function(inputs, (Value("y", type_),), tuple(nodes), opsets={"": 20})


MODELS = [(count, dim) for count in (1, 2, 3) for dim in ("n", None)]


def make_request(seed: int, count: int, dim: str | None) -> tuple[list[Any], Any]:
    """Return inputs of a client and their sum: rows differ by request, and between inputs where their axes have no name."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 5))
    arrays = [rng.integers(-1000, 1000, (rows if dim or rng.random() < 0.7 else 1, 2)).astype(np.float32) for _ in range(count)]
    if rng.random() < 0.1:
        arrays[0][:] = np.nan
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected + array
    return arrays, expected


def make_document(arrays: list[Any]) -> dict[str, Any]:
    return {"inputs": [tensor(f"x{place}", array) for place, array in enumerate(arrays)]}


def is_right(document: Any, expected: Any) -> bool:
    (output,) = document["outputs"]
    found = np.array(output["data"], np.float32).reshape(output["shape"])
    return np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("batch", [8, [2, 4, 8]], ids=["up to 8", "sizes"])
@pytest.mark.parametrize(("count", "dim"), MODELS)
def test_each_client_gets_its_own_rows(count: int, dim: str | None, batch: Any) -> None:
    application = app({"sum": xrt.XRTModule(make_sum(count, dim))}, batch=batch, max_wait=0.001)

    async def client(number: int) -> None:
        for step in range(5):
            arrays, expected = make_request(100 * number + step, count, dim)
            reply: Reply = await infer(application, "sum", make_document(arrays))
            assert is_right(reply.document, expected), (arrays, reply.document)

    async def test() -> None:
        await asyncio.gather(*map(client, range(CLIENTS)))

    run(application, test)


@pytest.mark.slow
def test_ten_thousand_answers_of_a_server_are_right(tmp_path: Path) -> None:
    """32 clients over HTTP, in threads, against ``xrt serve --batch 8``."""
    paths = []
    for count, dim in MODELS:
        paths.append(tmp_path / f"sum{count}{dim or ''}.xrt")
        with xrt.XRTModule(make_sum(count, dim), engine="ort") as module:
            module.save(paths[-1])
    wrong: list[Any] = []
    done: list[int] = []

    def client(address: str, number: int) -> None:
        with closing(http.client.HTTPConnection(address, timeout=HANGS)) as connection:
            for step in range(10_000 // CLIENTS + 1):
                seed = 1000 * number + step
                count, dim = MODELS[seed % len(MODELS)]
                arrays, expected = make_request(seed, count, dim)
                path = f"/v2/models/sum{count}{dim or ''}/infer"
                connection.request("POST", path, json.dumps(make_document(arrays)))
                reply = connection.getresponse()
                document = json.loads(reply.read())
                if reply.status != 200 or not is_right(document, expected):
                    wrong.append((reply.status, arrays, document))
            done.append(step + 1)

    with serve(*paths, "--batch", "8", "--max-wait", "0.002") as server:
        threads = [threading.Thread(target=client, args=(server.http, number)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with closing(http.client.HTTPConnection(server.http, timeout=HANGS)) as connection:
            connection.request("GET", "/metrics")
            metrics = connection.getresponse().read().decode()
    assert sum(done) >= 10_000
    assert wrong == []
    joined = [line for line in metrics.splitlines() if line.startswith("xrt_batch_requests_bucket") and 'le="1.0"' in line]
    calls = [line for line in metrics.splitlines() if line.startswith("xrt_batch_requests_count")]
    assert sum(float(line.split()[-1]) for line in joined) < sum(float(line.split()[-1]) for line in calls)  # some were joined


def scale_by_rows(x: Any) -> tuple[Any, ...]:
    return (x * x.shape[0],)


def spread_nan(x: Any) -> tuple[Any, ...]:
    return (x + (np.nan if np.isnan(x).any() else 0),)


def reverse_rows(x: Any) -> tuple[Any, ...]:
    return (x[::-1],)


@pytest.mark.parametrize("call", [scale_by_rows, spread_nan, reverse_rows])
@pytest.mark.parametrize(("sizes", "rounds_up"), [((8,), False), ((1, 2, 4), True), ((2,), False)])
def test_the_trial_finds_rows_that_depend_on_each_other(
    call: Callable[..., tuple[Any, ...]], sizes: tuple[int, ...], rounds_up: bool
) -> None:
    inputs = [Value("x", TensorType(DType.FLOAT32, (None, 3)))]
    reason = explain_mixed_rows(call, inputs, sizes, rounds_up=rounds_up)
    assert reason.startswith("the rows of a batch change each other: alone and together, ")
    assert explain_mixed_rows(lambda x: (x + 1,), inputs, sizes, rounds_up=rounds_up) == ""


def reshape_and_transpose(x: Any) -> tuple[Any, ...]:
    return (x.reshape(x.shape[::-1]).T,)


def reverse_rows_unless_eight_wide(x: Any) -> tuple[Any, ...]:
    return (x if x.shape[1] == 8 else x[::-1],)


@pytest.mark.parametrize("call", [reshape_and_transpose, reverse_rows_unless_eight_wide])
def test_the_trial_uses_two_extents_of_an_open_axis(call: Callable[..., tuple[Any, ...]]) -> None:
    inputs = [Value("x", TensorType(DType.FLOAT32, ("n", "length")))]
    reason = explain_mixed_rows(call, inputs, (8,), rounds_up=False)
    assert reason.startswith("the rows of a batch change each other: alone and together, ")


@pytest.mark.parametrize("width", [1, 3, 8, 64, 224])
def test_the_trial_needs_one_extent_that_the_model_supports(width: int) -> None:
    def increment(x: Any) -> tuple[Any, ...]:
        if x.shape[1] != width:
            raise ValueError(f"the width is {width}")
        return (x + 1,)

    inputs = [Value("x", TensorType(DType.FLOAT32, ("n", "length")))]
    assert explain_mixed_rows(increment, inputs, (8,), rounds_up=False) == ""
