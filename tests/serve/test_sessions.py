"""Sessions over the protocol: made on first use, ended, bounded, lost with a word, one call at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.module.small_models import token_sums
from tests.serve.serving import Gate, Reply, infer, running, tensor, total
from xrt.errors import RunFailed
from xrt.serve import app
from xrt.serve.protocol import InferRequest, RequestRefusal
from xrt.serve.served_model import SessionRequest, SessionTable, read_session


def step(application: Any, value: float, header: str = "", **parameters: Any) -> Any:
    document = {"inputs": [tensor("x", [value, -value])], "parameters": parameters}
    return infer(application, "total", document, **({"xrt-session": header} if header else {}))


def first(reply: Reply) -> float:
    assert reply.status == 200, reply.document
    return float(reply.document["outputs"][0]["data"][0])


async def test_a_session_keeps_its_state_until_it_ends() -> None:
    async with running(app({"total": xrt.XRTModule(total(), engine="toy")})) as application:
        for name in ("a", 7):
            assert [first(await step(application, n, session_id=name)) for n in (1, 2, 3)] == [1, 3, 6]
        reply = await step(application, 4, header="a")
        assert (first(reply), reply.document["parameters"]) == (10, {"session_id": "a"})
        assert first(await step(application, 1, session_id="a", session_start=True)) == 1
        assert first(await step(application, 5, session_id="a", session_end=True)) == 6
        assert first(await step(application, 1, session_id="a")) == 1
        assert [first(await step(application, 3)) for _ in range(2)] == [3, 3]  # no session: each begins with a new state
        gone = await step(application, 1, session_id="b", session_start=False)
        assert (gone.status, gone.error) == (404, "there is no session 'b'; begin it with session_start")


def test_the_model_describes_inputs_and_outputs_without_the_state() -> None:
    model = next(iter(app({"total": xrt.XRTModule(total(), engine="toy")}).models))
    described = model.describe(("1",))
    assert [value["name"] for value in described["inputs"]] == ["x"]
    assert len(described["outputs"]) == 1


async def test_the_number_of_sessions_is_bounded() -> None:
    async with running(app({"total": xrt.XRTModule(total(), engine="toy")}, max_sessions=2)) as application:
        for name in ("a", "b"):
            await step(application, 1, session_id=name)
        full = await step(application, 1, session_id="c")
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert full.error == "2 sessions are in use, which is the limit; end one, or try again"
        await step(application, 1, session_id="a", session_end=True)
        assert first(await step(application, 1, session_id="c")) == 1


async def test_explicit_sessions_begin_with_their_start_alone() -> None:
    async with running(app({"total": xrt.XRTModule(total(), engine="toy")}, explicit_sessions=True)) as application:
        early = await step(application, 1, session_id="a")
        assert (early.status, early.error) == (404, "there is no session 'a'; begin it with session_start")
        assert first(await step(application, 1, session_id="a", session_start=True)) == 1
        assert first(await step(application, 1, session_id="a")) == 2
        alone = await step(application, 1, session_start=True)
        message = "parameter 'session_start' is about a session, and the request names none; give 'session_id'"
        assert (alone.status, alone.error) == (400, message)


async def test_a_session_makes_one_call_at_a_time_and_a_failed_one_is_gone() -> None:
    gate = Gate(Mock(side_effect=RunFailed("the engine is gone")))
    async with running(app({"total": xrt.XRTModule(total(), engine="toy")})) as application:
        next(iter(application.models)).sessions.make = lambda: gate
        values = asyncio.ensure_future(step(application, 1, session_id="a"))
        await gate.wait_for_entry()
        busy = await step(application, 1, session_id="a")
        assert (busy.status, busy.error) == (409, "a call of session 'a' is under way; a session makes one call at a time")
        gate.opened.set()
        failed = await values
        assert (failed.status, failed.error) == (500, "model 'total' failed: the engine is gone")
        gone = await step(application, 1, session_id="a")
        reason = "a call of it failed: model 'total' failed: the engine is gone"
        assert (gone.status, gone.error) == (410, f"session 'a' is gone: {reason}; begin again with session_start")


def request(session: str = "a", **parameters: Any) -> InferRequest:
    return InferRequest({"x": np.ones(2, np.float32)}, parameters={"session_id": session, **parameters})


def first_of(response: Any) -> float:
    (array,) = response.outputs.values()
    return float(array[0])


async def test_a_request_that_is_refused_or_cancelled_in_the_queue_leaves_its_session_as_it_was() -> None:
    """Over gRPC, and by each way to the model: the call has not been run, and may be tried again."""
    gate, ways = Gate(lambda x: (np.zeros(2, np.float32),)), ({}, {"session_start": True}, {"session_end": True})
    async with running(app({"total": xrt.XRTModule(total())}, max_queue=4)) as application:  # three that are cancelled, and "c"
        (model,) = application.models
        assert first_of(await model.infer(request())) == 1
        model.sessions.make = lambda: gate
        blocking = [asyncio.create_task(model.infer(request("b")))]
        await gate.wait_for_entry()
        for parameters in ways:
            waiting = asyncio.create_task(model.infer(request(**parameters)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        blocking.append(asyncio.create_task(model.infer(request("c"))))
        await asyncio.sleep(0)
        for parameters in ways:
            with pytest.raises(RequestRefusal) as error:
                await model.infer(request(**parameters))
            assert (error.value.status, error.value.retry_after) == (503, 1)
        gate.opened.set()
        await asyncio.gather(*blocking)
        assert first_of(await model.infer(request())) == 2


async def test_a_call_that_is_cancelled_while_it_runs_ends_its_session() -> None:
    gate = Gate(lambda x: x)
    async with running(app({"total": xrt.XRTModule(total(), engine="toy")})) as application:
        (model,) = application.models
        model.sessions.make = lambda: gate
        call = asyncio.ensure_future(model.infer(request()))
        await gate.wait_for_entry()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.opened.set()
        message = "session 'a' is gone: a call of it was cancelled while it ran; begin again with session_start"
        with pytest.raises(RequestRefusal) as gone:
            await model.infer(request())
        assert (gone.value.status, str(gone.value)) == (410, message)


async def test_an_expired_session_is_gone_after_thousands_of_others() -> None:
    now = [0.0]
    table = SessionTable(lambda: [0], max_sessions=10, idle_seconds=1.0, clock=lambda: now[0])
    for number in range(5000):
        with table.enter(SessionRequest(f"s{number}")):
            now[0] += 0.5
    for name in ("s0", "s2500", "s4900"):
        with pytest.raises(RequestRefusal) as gone, table.enter(SessionRequest(name)):
            pass
        assert gone.value.status == 410
        assert str(gone.value) == f"session '{name}' is gone: it was not used for 1 s; begin again with session_start"
    table.close()


async def test_a_session_whose_first_call_runs_during_a_reload_is_gone_afterwards() -> None:
    old, new = (SessionTable(lambda: [0], max_sessions=10, idle_seconds=1.0) for _ in range(2))
    with old.enter(SessionRequest("a")) as entry:
        entry.note_start()
        new.forget_sessions_of(old, "the model was loaded again")
    with pytest.raises(RequestRefusal) as gone, new.enter(SessionRequest("a")):
        pass
    assert str(gone.value) == "session 'a' is gone: the model was loaded again; begin again with session_start"
    old.close()


@pytest.mark.parametrize(
    ("parameters", "header", "message"),
    [
        ({"session_id": None}, "", "parameter 'session_id' is null; give a string of at most 256 characters, or leave it out"),
        ({"session_id": ""}, "", "parameter 'session_id' must be a string of at most 256 characters, or a number"),
        ({"session_id": "a" * 257}, "", "parameter 'session_id' must be a string of at most 256 characters, or a number"),
        ({"sequence_id": 1.5}, "", "parameter 'sequence_id' must be a string of at most 256 characters, or a number"),
        ({"session_id": True}, "", "parameter 'session_id' must be a string of at most 256 characters, or a number"),
        ({"session_id": "a"}, "b", "parameter 'session_id' and the header name two sessions; a request belongs to one"),
        ({"session_id": "a", "session_end": 1}, "", "parameter 'session_end' must be true or false"),
    ],
)
def test_parameters_that_name_no_session(parameters: dict[str, Any], header: str, message: str) -> None:
    with pytest.raises(RequestRefusal) as refused:
        read_session(parameters, header)
    assert str(refused.value) == message
    assert read_session({"sequence_id": 0}) is None


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([None, True, False]), st.booleans(), st.integers(0, 3))))
def test_a_table_never_has_more_sessions_and_never_another_state(calls: list[tuple[str, bool | None, bool, int]]) -> None:
    """A call goes on with its own session's state, begins a new one where it may, or is refused."""

    async def test() -> None:
        now = [0.0]
        table = SessionTable(lambda: [0], max_sessions=2, idle_seconds=2.5, clock=lambda: now[0])
        steps: dict[str, int] = {}
        used: dict[str, float] = {}
        for name, start, end, passed in calls:
            now[0] += passed
            steps = {other: count for other, count in steps.items() if used[other] > now[0] - 2.5}
            is_open = name in steps
            try:
                with table.enter(SessionRequest(name, start, end)) as entry:
                    state = entry.session
                    assert state[0] == (steps[name] if is_open and not start else 0)
                    state[0] += 1
                    steps[name], used[name] = state[0], now[0]
                if end:
                    del steps[name]
            except RequestRefusal as refusal:
                refused = refusal.status
                expected = {404: start is False, 410: start is not True, 503: len(steps) == 2}
                assert (not is_open, expected[refused]) == (True, True)
            assert len(table) == len(steps) <= 2
        table.close()

    asyncio.run(test())


@pytest.mark.slow
async def test_weights_are_shared_and_state_is_not() -> None:
    module = xrt.XRTModule(total(), engine="toy")
    async with running(app({"total": module}, instances=4)) as application:

        async def count(name: str) -> list[float]:
            return [first(await step(application, n, session_id=name)) for n in range(20)]

        result = await asyncio.gather(*(count(f"s{place}") for place in range(8)))
        assert result == [np.cumsum(np.arange(20)).tolist()] * 8


async def test_a_bad_index_ends_its_session_and_leaves_the_model_as_it_was() -> None:
    """The state was written in part before the index was read: it is lost, and the request is at fault."""
    module = xrt.XRTModule(token_sums(), engine=["torch", "toy"])
    async with running(app({"sums": module})) as application:

        async def ask(index: int, **parameters: Any) -> Reply:
            x = tensor("x", [[1, 2, 3]])
            ids = {"name": "ids", "datatype": "INT64", "shape": [1], "data": [index]}
            return await infer(application, "sums", {"inputs": [ids, x], "parameters": parameters})

        assert first(await ask(1, session_id="a")) == 2
        before = [launch.engine for launch in module.plan.launches]
        assert (await ask(99, session_id="a")).status == 400
        assert [launch.engine for launch in module.plan.launches] == before
        gone = await ask(1, session_id="a")
        assert gone.status == 410
        assert gone.error.startswith("session 'a' is gone: a call of it failed: ")
        assert first(await ask(1, session_id="a", session_start=True)) == 2
