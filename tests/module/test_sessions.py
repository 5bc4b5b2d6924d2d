"""Sessions: state of their own over one module's weights and executables, also of models of other tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from tests.module.small_models import recurrent, token_sums
from xrt import ops
from xrt.cache import CompileCache
from xrt.engines import RunOptions
from xrt.errors import DeviceError, InputError, ModelError, RunFailed
from xrt.formats import onnx
from xrt.graph import DType, Function, State, TensorType, list_states
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine

X = np.array([[1, 2, 3]], "float32")
F32 = DType.FLOAT32
ROW = "float32[1,3]"


class Sums(xrt.Graph):
    """A running sum, and all that was given so far; the sum comes out too."""

    def build(self, x: Any) -> Any:
        total = self.state("total", TensorType(F32, (1, 3)))
        seen = self.state("seen", TensorType(F32, ("rows", 3)))
        new = total + x
        self.update(total, new)
        self.update(seen, ops.Concat(seen, x, axis=0))
        return new


def sums() -> Function:
    return Sums().trace(TensorType(F32, (1, 3)))


@pytest.mark.parametrize("engine", ["toy", "ort", ["ort", "toy"]], ids=str)
@pytest.mark.parametrize("model", [Sums(), sums()], ids=["graph", "function"])
def test_a_session_keeps_its_state(engine: Any, model: Any) -> None:
    m = xrt.XRTModule(model, engine=engine)
    first, two = m.new_session(), m.new_session()
    for step in range(1, 4):
        np.testing.assert_array_equal(first(X), step * X)
    np.testing.assert_array_equal(two(x=X), X)
    assert {name: value.tolist() for name, value in first.state.items()} == {"total": (3 * X).tolist(), "seen": 3 * X.tolist()}
    first.reset()
    np.testing.assert_array_equal(first(X), X)
    assert first.state["seen"].shape == (1, 3)


def test_state_is_read_and_set_by_name() -> None:
    session = begin(sums())
    np.testing.assert_array_equal(session.state["total"], np.zeros((1, 3)))
    assert session.state["seen"].shape == (0, 3) and len(session.state) == 2 and list(session.state) == ["total", "seen"]
    data = 10 * X
    session.state["total"] = data
    session.state["total"][...] = 5
    data[...] = 7
    np.testing.assert_array_equal(session(X), 11 * X)
    session.state.update({"total": X, "seen": np.ones((2, 3), "float32")})
    session(X)
    assert session.state["seen"].shape == (3, 3)
    assert "seen" in session.state and "x" not in session.state and session.state.get("x") is None


def test_a_new_state_is_filled_with_its_number() -> None:
    class Least(xrt.Graph):
        def build(self, x: Any) -> Any:
            least = self.state("least", TensorType(F32, (1, 3)), fill=2.5)
            self.update(least, ops.Min(least, x))
            return ()

    session = begin(Least())
    assert session(X) is None
    np.testing.assert_array_equal(session.state["least"], [[1, 2, 2.5]])


def test_sizes_come_from_the_inputs_of_the_first_call() -> None:
    session = begin(recurrent())
    with raises_exactly(
        InputError,
        "state 'h' is float32[batch,3], whose dim 'batch' is known only in a call; call m.new_session(sizes={'batch': ...})",
    ):
        session.state["h"]
    session(np.ones((4, 3), "float32"))
    assert session.state["h"].shape == (4, 3)
    assert begin(recurrent(), {"batch": 2}).state["h"].shape == (2, 3)
    with pytest.raises(InputError, match=r"^dimension 'batch' is 5 in input 'x' and 4 in input 'h'"):
        session(np.ones((5, 3), "float32"))
    np.testing.assert_array_equal(session.state["h"], np.tanh(np.ones((4, 3), "float32")))


def test_a_fork_goes_on_alone_and_copies_what_is_written() -> None:
    first = begin(recurrent(1))
    first(X)
    other = first.fork()
    a, b = first.state["h"], other.state["h"]
    first(X)
    np.testing.assert_array_equal(other.state["h"], b)
    other(2 * X)
    np.testing.assert_allclose(first.state["h"], np.tanh(X + a), rtol=1e-6)
    np.testing.assert_allclose(other.state["h"], np.tanh(2 * X + b), rtol=1e-6)


def test_state_is_saved_and_restored(tmp_path: Path) -> None:
    path = tmp_path / "talk.state"
    session = begin(sums())
    session(X)
    session.save(path)
    for other in (session, xrt.XRTModule(sums(), engine="ort").new_session()):
        other.restore(path)
        np.testing.assert_array_equal(other(X), 2 * X)
        assert other.state["seen"].shape == (2, 3)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.INT4, DType.BOOL, DType.FLOAT16, DType.UINT64])
def test_every_element_type_is_saved(dtype: DType, tmp_path: Path) -> None:
    type_ = TensorType(dtype, (2, 3))
    function = graph({"h": type_}, {"y": type_}, node("Identity", "h", "y"), opset=21, aliases=(("h", "y"),))
    session = xrt.XRTModule(function, engine="toy").new_session()
    session.state["h"] = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    session.save(tmp_path / "s")
    expected = session.state["h"]
    session.reset()
    session.restore(tmp_path / "s")
    assert session.state["h"].dtype == expected.dtype and session.state["h"].tolist() == expected.tolist()


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    begin(sums()).save(path)
    session = begin(recurrent(1))
    with raises_exactly(InputError, f"{str(path)!r} has the state of another model; restore it in a session of that model"):
        session.restore(path)


@pytest.mark.parametrize("damage", [b"", b"nothing", 20, 130, -3])
def test_a_damaged_file_is_refused(damage: Any, tmp_path: Path) -> None:
    path, session = tmp_path / "s", begin(sums())
    session.save(path)
    data = bytearray(path.read_bytes())
    if isinstance(damage, int):
        data[damage] ^= 255
    path.write_bytes(data if isinstance(damage, int) else damage)
    with pytest.raises(InputError, match=r"^cannot read the state of a session from '.*': "):
        session.restore(path)


def begin(model: Any, sizes: Any = None) -> xrt.Session:
    return xrt.XRTModule(model, engine="toy").new_session(sizes)


REFUSED: dict[str, tuple[Callable[[xrt.Session], object], str]] = {
    "an unknown state": (
        lambda s: s.state["totals"],
        "the model has no state 'totals'. Did you mean 'total'? It has: total, seen",
    ),
    "an array of another type": (
        lambda s: s.state.update(total=np.ones((1, 3))),
        "input 'total' must be float32; got float64; convert it with .astype('float32')",
    ),
    "a state removed": (lambda s: s.state.pop("total"), "state 'total' cannot be removed; session.reset() discards all state"),
    "a state as an input": (lambda s: s(X, total=X), "the model has no input 'total'. The model takes 1 input (x)"),
    "no input": (lambda s: s(), "no value for input 'x'; the model takes 1 input (x)"),
    "a file that is missing": (
        lambda s: s.restore("/nowhere/s"),
        "cannot read the state of a session from '/nowhere/s': No such file or directory",
    ),
    "a file that cannot be": (lambda s: s.save("/nowhere/s"), "cannot write '/nowhere/s': No such file or directory"),
    "buffers": (
        lambda s: s(X, options=RunOptions(out=(None,))),
        "options.out must be None in a session, since some outputs are its state; copy the results",
    ),
    "a call of a graph with state": (
        lambda _: xrt.XRTModule(Sums(), engine="toy")(X),
        "the graph 'Sums' keeps state ('total', 'seen'); call a session: s = m.new_session(), then s(...)",
    ),
    "the state of a graph before a call": (
        lambda _: dict(begin(Sums()).state),
        "the graph is traced by the first call, and there was none yet; call the session first",
    ),
    "a model without state": (
        lambda _: begin(recurrent().replace(aliases=())),
        (
            "the model 'recurrent' has no state; declare it by self.state(...) in an xrt.Graph, by xrt.stateful(model), or by "
            "the metadata 'xrt.state'"
        ),
    ),
    "another dim": (
        lambda _: begin(recurrent(), {"bath": 3}),
        "no input of the model has a symbolic dim 'bath'. Did you mean 'batch'?",
    ),
    "a negative size": (
        lambda _: begin(recurrent(), {"batch": -1}),
        "sizes has -1 for 'batch'; a size is an integer of at least 0",
    ),
}


@pytest.mark.parametrize(("use", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_use_is_one_clear_error(use: Any, message: str) -> None:
    session = begin(sums())
    with raises_exactly(InputError, message):
        use(session)
    np.testing.assert_array_equal(session(X), X)


BUSY = (
    "the session is {} while a call of it is running; a session runs one call at a time: create a session for each thread, by "
    "m.new_session() or session.fork()"
)


def test_a_session_in_use_refuses_other_uses() -> None:
    session = begin(sums())
    session(X)
    uses = {
        "called": lambda: session(X),
        "read": lambda: session.state["total"],
        "reset": session.reset,
        "forked": session.fork,
        "saved": lambda: session.save("s"),
        "restored": lambda: session.restore("s"),
        "written to": lambda: session.state.update(total=X),
    }
    with session.borrow() as state:
        for what, use in uses.items():
            with raises_exactly(InputError, BUSY.format(what)):
                use()
        np.testing.assert_array_equal(state["total"], X)
    np.testing.assert_array_equal(session(X), 2 * X)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", ["ort", "toy"]], ids=str)
def test_sessions_of_one_module_run_in_many_threads(engine: Any) -> None:
    m = xrt.XRTModule(recurrent(1), engine=engine, pins=["Tanh=toy"])

    def steps(seed: int) -> list[Any]:
        rng, session = np.random.default_rng(seed), m.new_session()
        return [session(rng.standard_normal((1, 3)).astype("float32")) for _ in range(32)]

    alone = [steps(seed) for seed in range(32)]
    with ThreadPoolExecutor(8) as pool:
        np.testing.assert_array_equal(list(pool.map(steps, range(32))), alone)


def test_a_failure_after_a_write_in_place_loses_that_state_and_says_so() -> None:
    """The first region writes the state in place, then the second one fails."""
    nodes = node("Add", "h x", "h_next"), node("Exp", "h_next", "y")
    function = graph({"x": ROW, "h": ROW}, {"y": ROW, "h_next": ROW}, *nodes, aliases=(("h", "h_next"),))
    m = xrt.XRTModule(function, engine=[FaultyEngine(takes="Exp", nth=2), "toy"], strict=True)
    session, other = m.new_session(), m.new_session()
    other(X)
    with pytest.raises(RunFailed) as failed:
        session(X)
    assert (failed.value.updated, session.lost) == (("h",), {"h"})
    session.state["h"] = 3 * X
    np.testing.assert_allclose(session(X), np.exp(4 * X), rtol=1e-6)
    np.testing.assert_allclose(other(X), np.exp(2 * X), rtol=1e-6)


@pytest.mark.parametrize("first", ["ort", "torch"])
def test_a_bad_index_loses_its_state_and_leaves_the_plan_to_others(first: str) -> None:
    module = xrt.XRTModule(token_sums(), engine=[first, "toy"])
    session, other = module.new_session(), module.new_session()
    good, bad = np.array([1]), np.array([99])
    other(ids=good, x=X)
    session(ids=good, x=X)
    before = [launch.engine for launch in module.plan.launches]
    for _ in range(2):
        with pytest.raises(RunFailed) as failed:
            session(ids=bad, x=X)
        assert failed.value.has_bad_index
        assert session.lost <= {"h"}
        session.reset()
    assert [launch.engine for launch in module.plan.launches] == before
    np.testing.assert_array_equal(other(ids=good, x=X), [[4]])


@dataclass(frozen=True)
class InterruptedEngine(RecordingEngine):
    """Runs Exp after it has done what the test puts into `before_run`."""

    name: ClassVar[str] = "interrupted"
    takes: str = "Exp"
    before_run: list[Callable[[], object]] = field(default_factory=list, compare=False, repr=False)

    def compile(self, function: Function, context: Any) -> Any:
        executable = super().compile(function, context)
        run = executable.run

        def run_after(inputs: Any, options: Any = RunOptions()) -> Any:
            while self.before_run:
                self.before_run.pop()()
            return run(inputs, options)

        executable.run = run_after  # type: ignore[method-assign]
        return executable


def interruptible() -> tuple[InterruptedEngine, xrt.Session]:
    """A session with two states. The engine runs between the updates in place of the two."""
    engine = InterruptedEngine()
    nodes = node("Add", "a x", "a_next"), node("Exp", "a_next", "e"), node("Add", "b e", "b_next")
    ends = dict.fromkeys(("x", "a", "b"), ROW), dict.fromkeys(("e", "a_next", "b_next"), ROW)
    function = graph(*ends, *nodes, aliases=(("a", "a_next"), ("b", "b_next")))
    return engine, xrt.XRTModule(function, engine=[engine, "toy"], strict=True, cache=CompileCache()).new_session()


def press(times: int = 1) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("without_finalizers")
def test_ctrl_c_lets_a_step_end() -> None:
    engine, session = interruptible()
    session(X)
    engine.before_run.append(press)
    with pytest.raises(KeyboardInterrupt):
        session(X)
    np.testing.assert_array_equal(session.state["a"], 2 * X)
    np.testing.assert_allclose(session.state["b"], np.exp(X) + np.exp(2 * X), rtol=1e-6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("without_finalizers")
def test_a_second_ctrl_c_loses_the_state_and_the_next_use_says_so(tmp_path: Path) -> None:
    engine, session = interruptible()
    session(X)
    session.save(tmp_path / "s")
    engine.before_run.append(partial(press, 2))
    with pytest.raises(KeyboardInterrupt):
        session(X)
    lost = "the state 'a', 'b' may have been partially updated by a call that failed or was interrupted"
    uses: dict[str, Callable[[], object]] = {
        "call session.reset(), session.restore(path), or set the state": lambda: session(X),
        "there is nothing to read": lambda: dict(session.state),
        "there is nothing to save": lambda: session.save(tmp_path / "other"),
    }
    for advice, use in uses.items():
        with raises_exactly(InputError, f"{lost}; {advice}"):
            use()
    session.state["a"] = X
    with pytest.raises(InputError, match=r"^the state 'b' may have been partially updated"):
        session(X)
    session.restore(tmp_path / "s")
    session(X)
    np.testing.assert_array_equal(session.state["a"], 2 * X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_session_in_a_call_during_a_fork_is_lost_in_the_child() -> None:
    """In a process of its own: pytest's threads would not survive the fork."""
    script = """
import os, threading
from tests.module.test_sessions import X, interruptible
from xrt.errors import InputError

engine, session = interruptible()
session(X)
running, released = threading.Event(), threading.Event()
engine.before_run.append(lambda: running.set() or released.wait(300))
thread = threading.Thread(target=session, args=(X,))
thread.start()
assert running.wait(300)
if os.fork() == 0:
    try:
        session(X)
    except InputError as error:
        print(error, flush=True)
    session.reset()
    session(X)
    os._exit(0)
os.wait()
released.set()
thread.join()
print(session(X) is not None, sorted(session.lost))
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    message, *rest = completed.stdout.splitlines()
    assert message == (
        "the state 'a', 'b' may have been partially updated by a call that failed, was interrupted, or ran in another thread "
        "when the process was forked; call session.reset(), session.restore(path), or set the state"
    )
    assert rest == ["True []"]


@pytest.mark.parametrize("error", [InputError, DeviceError])
def test_an_error_of_any_kind_between_two_writes_loses_the_first_state_alone(error: type[Exception]) -> None:
    engine, session = interruptible()
    session(X)

    def fail() -> None:
        raise error("in the middle of a step")

    engine.before_run.append(fail)
    with pytest.raises(error, match=r"^in the middle of a step$"):
        session(X)
    with pytest.raises(InputError, match=r"^the state 'a' may have been partially updated"):
        session(X)
    np.testing.assert_allclose(session.state["b"], np.exp(X), rtol=1e-6)


@pytest.mark.usefixtures("without_finalizers")
def test_a_compile_that_is_interrupted_loses_nothing() -> None:
    class Interrupted(InterruptedEngine):
        def compile(self, function: Function, context: Any) -> Any:
            if not self.journal.count("compile"):
                self.journal.note("compile")
                press()
            return super().compile(function, context)

    nodes = node("Add", "h x", "sum"), node("Exp", "sum", "h_next")
    function = graph({"x": ROW, "h": ROW}, {"h_next": ROW}, *nodes, aliases=(("h", "h_next"),))
    session = xrt.XRTModule(function, engine=[Interrupted(), "toy"], strict=True, cache=CompileCache()).new_session()
    session.state["h"] = X
    with pytest.raises(KeyboardInterrupt):
        session(X)
    np.testing.assert_array_equal(session.state["h"], X)
    session(X)
    np.testing.assert_allclose(session.state["h"], np.exp(2 * X), rtol=1e-6)


@pytest.mark.slow
def test_a_worker_that_dies_loses_the_step_and_not_the_state() -> None:
    faulty = FaultyEngine(how="kill", nth=3)
    m = xrt.XRTModule(recurrent(1), engine=faulty, strict=True, isolate=xrt.Isolation(run=True))
    session = m.new_session()
    session(X)
    before = session.state["h"]
    session(X)
    np.testing.assert_array_equal(session.state["h"], np.tanh(X + before))
    before = session.state["h"]
    with pytest.raises(RunFailed):
        session(X)
    np.testing.assert_array_equal(session.state["h"], before)
    session(X)
    np.testing.assert_array_equal(session.state["h"], np.tanh(X + before))


def cache(past: str, present: str) -> Function:
    nodes = node("Concat", f"{past} x", present, axis=0), node("ReduceSum", present, "y")
    ends = {"x": "float32[1,3]", past: "float32[n,3]"}, {"y": "float32[1,1]", present: "float32[m,3]"}
    return graph(*ends, *nodes).replace(name="decoder")


NAMES = [
    ("past_key_values.0.key", "present.0.key"),
    ("past_key_values.11.decoder.value", "present.11.decoder.value"),
    ("past_key_values.0.key", "present_key_values.0.key"),
    ("past_0", "present_0"),
    ("past.3.key", "present.3.key"),
    ("past_conv.0", "present_conv.0"),
    ("past_key_self_2", "present_key_self_2"),
]


@pytest.mark.parametrize(("past", "present"), NAMES)
def test_names_of_exporters_are_paired(past: str, present: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "xrt"):
        declared = xrt.stateful(onnx.to_model(cache(past, present)))
    assert list_states(declared) == (State(past, present),)
    assert caplog.messages[-1] == f"state of decoder: {past} <- {present}"
    session = xrt.XRTModule(declared, engine="ort").new_session()
    assert [float(session(X).ravel()[0]) for _ in range(3)] == [6, 12, 18]


def test_pairs_are_given_where_names_tell_nothing() -> None:
    assert list_states(xrt.stateful(cache("a", "b"), {"a": "b"})) == (State("a", "b"),)
    with raises_exactly(ModelError, "no input of 'decoder' is named past* (x, a); pass the pairs: xrt.stateful(model, {...})"):
        xrt.stateful(cache("a", "b"))
    with raises_exactly(
        ModelError, "input 'past_0' has no matching output named present*_0 (there are: present_1); pass the pairs"
    ):
        xrt.stateful(cache("past_0", "present_1"))


def test_metadata_declares_the_state_of_an_onnx_model() -> None:
    model = onnx.to_model(recurrent(1).replace(aliases=()))
    model.metadata_props.add(key="xrt.state", value='[["h", "h_next"]]')
    m = xrt.XRTModule(model, engine="toy")
    session = m.new_session()
    session(X)
    np.testing.assert_array_equal(session.state["h"], np.tanh(X))
    assert [update.partition(":")[0] for update in m.explain().updates] == ["h <- h_next"]


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_an_lstm_a_gru_and_a_scan_are_sessions(engine: str) -> None:
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 16, n)).astype("float32") for n in (3, 4))

    class Cell(xrt.Graph):
        def build(self, x: Any) -> Any:
            state = TensorType(F32, (1, 1, 4))
            h, c, g = (self.state(name, state) for name in "hcg")
            y, h_next, c_next = ops.LSTM(x, w, r, None, None, h, c, hidden_size=4)
            z, g_next = ops.GRU(x, w[:, :12], r[:, :12], None, None, g, hidden_size=4)
            s = self.state("s", TensorType(F32, (3,)), fill=1)
            s_next, sums = ops.Scan(s, ops.Squeeze(x, np.array([1])), body=lambda a, b: (a + b, a * b), num_scan_inputs=1)
            for item, new in ((h, h_next), (c, c_next), (g, g_next), (s, s_next)):
                self.update(item, new)
            return y, z, sums

    x = rng.standard_normal((6, 1, 3)).astype("float32")
    graph, m = Cell(), xrt.XRTModule(Cell(), engine=engine)
    whole, session = m.new_session()(x), m.new_session()
    parts = [session(x[i : i + 2]) for i in (0, 2, 4)]
    for at, wanted in enumerate(whole):
        np.testing.assert_allclose(np.concatenate([part[at] for part in parts]), wanted, rtol=1e-5, atol=1e-6)
    assert [state.input for state in list_states(graph.trace(x))] == ["h", "c", "g", "s"]
