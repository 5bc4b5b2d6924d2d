"""The queue of a model: batches, instances, backpressure, requests that share a call, cancelled and failed ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.serve.serving import HANGS, Gate, Reply, ask, double, infer, running, tensor
from xrt.errors import OptionError, RunFailed
from xrt.formats import onnx
from xrt.formats.placement_file import ServingConfiguration
from xrt.graph import DType, Function, TensorType
from xrt.module.tuning import store_serving
from xrt.serve import app
from xrt.serve.protocol import RequestRefusal
from xrt.serve.scheduler import Scheduler, explain_mixed_rows, run_batch
from xrt.testing.corpus.entry import graph, node


def twice(x: Any) -> tuple[Any, ...]:
    return (2 * x,)


def rows_of(gate: Gate) -> list[int]:
    return [len(x) for (x,) in gate.calls]


def rows(count: int, width: int = 2) -> tuple[Any, ...]:
    return (np.arange(count * width, dtype=np.float32).reshape(count, width),)


async def test_what_waits_is_joined_up_to_the_size_when_an_instance_is_free() -> None:
    gate, seen = Gate(twice), Mock()
    scheduler = Scheduler(1, 100, seen, sizes=(4,))
    first = scheduler.submit(gate, rows(1), "a")
    await gate.wait_for_entry()
    others = [scheduler.submit(gate, rows(n, w), (w,), n) for n, w in ((1, 2), (2, 2), (1, 3), (3, 2), (1, 2), (9, 2))]
    assert (scheduler.queued, scheduler.running) == (6, 1)
    gate.opened.set()
    for future, values in zip([first, *others], [rows(1), *map(rows, (1, 2)), rows(1, 3), *map(rows, (3, 1, 9))], strict=True):
        assert np.array_equal((await future)[0], 2 * values[0])
    await scheduler.drain()
    assert rows_of(gate) == [1, 4, 1, 3, 9]  # 1 + 2 + 1 of one shape, then what has another shape or is too large
    batches = [call.args[:2] for call in seen.note_batch.call_args_list]
    assert batches == [(1, 1), (3, 4), (1, 1), (1, 3), (1, 9)]
    assert (scheduler.queued, scheduler.running) == (0, 0)
    scheduler.close()


async def test_instances_run_at_once_and_no_more() -> None:
    gate = Gate(twice)
    scheduler = Scheduler(3, 100, Mock())
    futures = [scheduler.submit(gate, rows(1)) for _ in range(5)]
    for _ in range(3):
        await gate.wait_for_entry()
    assert scheduler.queued == 2 and not gate.entered.acquire(blocking=False)
    gate.opened.set()
    await asyncio.gather(*futures)
    scheduler.close()


async def test_a_full_queue_refuses_and_a_cancelled_request_does_not_run() -> None:
    gate = Gate(twice)
    scheduler = Scheduler(1, 2, Mock())
    first = scheduler.submit(gate, rows(1))
    await gate.wait_for_entry()
    second, third = scheduler.submit(gate, rows(2)), scheduler.submit(gate, rows(3))
    with pytest.raises(RequestRefusal, match=r"^2 requests are waiting, and no more are queued; try again$") as refused:
        scheduler.submit(gate, rows(4))
    assert (refused.value.status, refused.value.retry_after, refused.value.code) == (503, 1, "UNAVAILABLE")
    second.cancel()
    gate.opened.set()
    await asyncio.gather(first, third)
    assert rows_of(gate) == [1, 3]
    scheduler.close()


async def test_a_request_waits_for_others_until_its_batch_is_full() -> None:
    gate = Gate(twice)
    gate.opened.set()
    scheduler = Scheduler(1, 100, Mock(), sizes=(3,), max_wait=HANGS)
    futures = [scheduler.submit(gate, rows(1), "a") for _ in range(2)]
    await asyncio.sleep(0)
    assert rows_of(gate) == [] and scheduler.queued == 2
    await asyncio.gather(*futures, scheduler.submit(gate, rows(1), "a"))
    assert rows_of(gate) == [3]
    scheduler.close()
    short = Scheduler(1, 100, Mock(), sizes=(3,), max_wait=0.001)
    await short.submit(gate, rows(1), "a")  # it does not wait for ever
    short.close()


async def test_a_drain_ends_when_the_last_waiting_request_is_cancelled() -> None:
    scheduler = Scheduler(1, 100, Mock(), sizes=(3,), max_wait=0.01)
    request = scheduler.submit(twice, rows(1), "a")
    draining = asyncio.ensure_future(scheduler.drain())
    await asyncio.sleep(0)
    request.cancel()
    await draining
    assert (scheduler.queued, scheduler.running) == (0, 0)
    scheduler.close()


async def test_of_a_list_of_sizes_the_largest_is_run_that_the_requests_make() -> None:
    gate = Gate(twice)
    scheduler = Scheduler(1, 100, Mock(), sizes=(1, 2, 4, 8), rounds_up=True)
    first = scheduler.submit(gate, rows(1))
    await gate.wait_for_entry()
    others = [scheduler.submit(gate, rows(n), "a", n) for n in (1, 1, 1, 1, 1, 1, 1, 5)]
    gate.opened.set()
    await asyncio.gather(first, *others)
    assert rows_of(gate) == [1, 4, 8]  # four of seven, then three and the five
    scheduler.close()


@pytest.mark.slow
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sets(st.integers(1, 40), max_size=4))
def test_a_batch_gives_each_request_what_it_gets_alone(counts: list[int], sizes: set[int]) -> None:
    seen: list[int] = []

    def call(x: Any, y: Any) -> tuple[Any, ...]:
        seen.append(len(x))
        return x + 1, y[:, None]

    requests = [(rows(n)[0] + place, np.arange(n) + place) for place, n in enumerate(counts)]
    results: Any = run_batch(call, requests, counts, sorted(sizes))
    for values, result in zip(requests, results, strict=True):
        assert np.array_equal(result[0], values[0] + 1) and np.array_equal(result[1], values[1][:, None])
    total = sum(counts)
    assert seen == [min((size for size in sizes if size >= total), default=total)]


def test_one_request_cannot_fail_another() -> None:
    def call(x: Any) -> tuple[Any, ...]:
        if (x < 0).any():
            raise RunFailed("an index is negative")
        return (x,)

    good, bad = rows(1), (-1 - rows(1)[0],)
    results = run_batch(call, [good, bad, good], [1, 1, 1])
    assert np.array_equal(results[0][0], good[0]) and np.array_equal(results[2][0], good[0])  # type: ignore[index]
    assert str(results[1]) == "an index is negative"


class Mixing(xrt.Graph):
    """Rows that depend on each other."""

    def build(self, x: Any) -> Any:
        return xrt.ops.CumSum(x, np.array(0))


async def test_a_batch_whose_rows_change_each_other_is_not_served() -> None:
    function = Mixing().trace(TensorType(DType.FLOAT32, ("n", 2)))
    async with running(app({"mixing": xrt.XRTModule(function, engine="toy")}, batch=4), ready=False) as application:
        await application.start()
        reason = application.explain_not_ready()
        assert reason.startswith("model 'mixing': the rows of a batch change each other: alone and together, ")
        assert reason.endswith("; leave batch out")


async def test_a_model_that_was_tuned_for_batches_and_mixes_rows_is_served_without_them(tmp_path: Path) -> None:
    module = xrt.XRTModule(Mixing().trace(TensorType(DType.FLOAT32, ("n", 2))), cache=tmp_path)
    store_serving(module, TUNED)
    application = app({"mixing": module})
    (model,) = application.models
    async with running(application):
        requests = [infer(application, "mixing", {"inputs": [tensor("x", [[n, n], [1, 1]])]}) for n in range(8)]
        for n, reply in enumerate(await asyncio.gather(*requests)):
            assert reply.document["outputs"][0]["data"] == [n, n, n + 1, n + 1]
        assert model.options.sizes == ()


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((4, 3), "the first axis of 'x' (float32[4,3]) is not dynamic"), ((), "the first axis of 'x' (float32[]) is not dynamic")],
)
def test_a_batch_that_the_shapes_do_not_admit(shape: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(OptionError) as error:
        app({"double": xrt.XRTModule(double(shape), engine="toy")}, batch=4)
    assert str(error.value) == f"model 'double' cannot join requests to a batch: {reason}; leave batch out"


X = np.array([[1, 2, 3]], np.float32)
TUNED = ServingConfiguration(batch=4, instances=2, threads=1, concurrency=8, rate=9.0, p50=0.1, p99=0.2, dim="n", sizes=(1, 2, 4))
"""What a module that was tuned for throughput has."""


@pytest.mark.parametrize(("function", "sizes"), [(double(), (1, 2, 4)), (double((2, 2)), ())])
def test_the_configuration_of_a_tuned_module_is_the_default(function: Function, sizes: tuple[int, ...], tmp_path: Path) -> None:
    module = xrt.XRTModule(function, engine="toy", cache=tmp_path)
    store_serving(module, TUNED)
    for options, expected in (({}, (sizes, 2)), ({"instances": 1}, (sizes, 1))):
        result = next(iter(app({"double": module}, **options).models)).options
        assert (result.sizes, result.instances) == expected
    assert next(iter(app({"double": module}, batch=1).models)).options.sizes == ()


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("threads", "count"), [(1, 1), (2, 3)])
async def test_instances_of_several_threads_have_modules_of_their_own(threads: int, count: int, tmp_path: Path) -> None:
    path = tmp_path / "double.onnx"
    onnx.save(double(), path)
    async with running(app({"double": path}, engine="ort", threads=threads, instances=3)) as application:
        replies = await asyncio.gather(*(infer(application, "double", {"inputs": [tensor("x", X)]}) for _ in range(9)))
        assert all(reply.document["outputs"][0]["data"] == [2, 4, 6] for reply in replies)


def make_sum(count: int, dim: str | None) -> Function:
    """Return the sum of inputs of shape [dim, 2], whose unnamed rows NumPy would broadcast."""
    type_ = f"float32[{dim or '?'},2]"
    names = ["x0", *(f"s{place}" for place in range(1, count)), "y"]
    nodes = [node("Add", f"{names[place - 1]} x{place}", names[place], name=f"n{place}") for place in range(1, count)]
    inputs = {f"x{place}": type_ for place in range(count)}
    return graph(inputs, {"y": type_}, *nodes, node("Identity", names[count - 1], "y", name="last"))


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


@pytest.mark.parametrize("batch", [8, [2, 4, 8]], ids=["up to 8", "sizes"])
@pytest.mark.parametrize("dim", ["n", None])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_each_client_gets_its_own_rows(count: int, dim: str | None, batch: Any) -> None:
    application = app({"sum": xrt.XRTModule(make_sum(count, dim))}, batch=batch, max_wait=0.001)

    async def client(number: int) -> None:
        for step in range(5):
            arrays, expected = make_request(100 * number + step, count, dim)
            document = {"inputs": [tensor(f"x{place}", array) for place, array in enumerate(arrays)]}
            reply: Reply = await infer(application, "sum", document)
            (output,) = reply.document["outputs"]
            array = np.array(output["data"], np.float32).reshape(output["shape"])
            assert np.array_equal(array, expected, equal_nan=True), (arrays, array)

    async with running(application):
        await asyncio.gather(*map(client, range(32)))
        metrics = (await ask(application, "GET", "/metrics")).body.decode()
    names = r'bucket\{.*le="1\.0".*\}', r"count\{.*\}"
    (alone,), (calls,) = (re.findall(rf"^xrt_batch_requests_{name} (\S+)$", metrics, re.MULTILINE) for name in names)
    assert float(alone) < float(calls), "some were joined"


async def test_inputs_of_different_numbers_of_rows_are_the_clients_mistake() -> None:
    application = app({"sum": xrt.XRTModule(make_sum(2, None))}, batch=8)
    async with running(application):
        document = {"inputs": [tensor(f"x{place}", np.ones((2 + place, 2), np.float32)) for place in range(2)]}
        reply = await infer(application, "sum", document)
    message = "the inputs of model 'sum' have different numbers of rows: 'x0' has 2 rows, 'x1' has 3 rows"
    assert (reply.status, reply.error) == (400, message)


MIXING: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "scaled by their number": (3, lambda x: x * x.shape[0]),
    "one NaN for all": (3, lambda x: x + (np.nan if np.isnan(x).any() else 0)),
    "in reverse": (3, lambda x: x[::-1]),
    "transposed": ("length", lambda x: x.reshape(x.shape[::-1]).T),
    "in reverse unless eight wide": ("length", lambda x: x if x.shape[1] == 8 else x[::-1]),
}


@pytest.mark.parametrize("case", MIXING)
@pytest.mark.parametrize(("sizes", "rounds_up"), [((8,), False), ((1, 2, 4), True), ((2,), False)])
def test_the_trial_finds_rows_that_depend_on_each_other(case: str, sizes: tuple[int, ...], rounds_up: bool) -> None:
    width, compute = MIXING[case]
    function = graph({"x": f"float32[?,{width}]"}, {})
    reason = explain_mixed_rows(lambda x: (compute(x),), function, sizes, rounds_up=rounds_up)
    assert reason.startswith("the rows of a batch change each other: alone and together, ")
    assert explain_mixed_rows(lambda x: (x + 1,), function, sizes, rounds_up=rounds_up) == ""


async def test_the_trial_of_a_batch_uses_texts_that_the_model_has_categories_for() -> None:
    encoder = node("OneHotEncoder", "x", "y", domain="ai.onnx.ml", cats_strings=["blue", "red"], zeros=0)
    function = graph({"x": "string[n,1]"}, {"y": "float32[n,1,2]"}, encoder, ml=3)
    async with running(app({"colors": xrt.XRTModule(function, engine="toy")}, batch=4)) as application:
        assert application.explain_not_ready() == ""


@pytest.mark.parametrize("width", [1, 3, 8, 64, 224])
def test_the_trial_needs_one_extent_that_the_model_supports(width: int) -> None:
    def increment(x: Any) -> tuple[Any, ...]:
        if x.shape[1] != width:
            raise ValueError(f"the width is {width}")
        return (x + 1,)

    function = graph({"x": "float32[n,length]"}, {})
    assert explain_mixed_rows(increment, function, (8,), rounds_up=False) == ""
