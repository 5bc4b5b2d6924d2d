"""A Program: inputs that fit, order, slots, memory that is shared with nobody, and errors that name the region."""

from __future__ import annotations

import json
import threading
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, RunOptions
from xrt.errors import InputError
from xrt.graph import DType, Function, OptionalType, SequenceType, TensorType, Value
from xrt.partition import partition
from xrt.runtime import Program, compile_plan, inputs
from xrt.runtime.profile import HOST, Moment, Profile, Recorder
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import ObservedExecutable, RecordingEngine

FIRST, SECOND = RecordingEngine(takes="Relu|Add|Identity"), RecordingEngine(mark="second")


def made(function: Function, cache: CompileCache | None = None) -> Program:
    engines = (FIRST, SECOND)
    program = compile_plan(partition(function, engines), {e.spec: e for e in engines}, CompileContext(), cache or CompileCache())
    assert isinstance(program, Program)
    return program


X = np.array([-1, 0, 2], "float32")
MIXED = graph(
    {"x": "float32[3]"},
    {"y": "float32[3]"},
    *(node("Relu", "x", "a"), node("Neg", "a", "b"), node("Add", "b w", "c"), node("Identity", "c", "y")),
    constants={"w": np.ones(3, "float32")},
)


@pytest.mark.slow
def test_launches_run_in_order_across_engines() -> None:
    mixed = made(MIXED)
    assert [launch.engine for launch in mixed.plan.launches] == [FIRST.spec, SECOND.spec, FIRST.spec]
    assert mixed.fast_call is None
    assert mixed.run([X])[0].tolist() == [1, 1, -1]


def test_closing_closes_every_executable_and_raises_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CompileCache()
    mixed, closed = made(MIXED, cache), list[int]()

    def close(self: Executable) -> None:
        closed.append(mixed.executables.index(self))
        if closed[-1] != 0:
            raise RuntimeError(f"close {closed[-1]}")

    monkeypatch.setattr(ObservedExecutable, "close", close)
    cache.clear()  # the program alone has leases
    with pytest.raises(RuntimeError, match=r"^close 1$"):
        mixed.close()
    assert sorted(closed) == [0, 1, 2]


def test_one_region_is_called_directly_whatever_the_order_of_its_inputs_and_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObservedExecutable, "outputs_are_fresh", True)
    nodes = node("Relu", "x", "a"), node("Add", "a w", "b"), node("Add", "b b", "c")
    ready = made(graph(dict.fromkeys(["idle", "w", "x"], "float32[3]"), dict.fromkeys("cba", "float32[3]"), *nodes))
    data = [X - 5, X + 1, X]
    assert ready.fast_call is not None
    for results in (ready.fast_call(*data), ready.run(data)):
        assert [result.tolist() for result in results] == [[0, 2, 10], [0, 1, 5], [0, 0, 2]]


@pytest.mark.parametrize(("outputs", "count"), [("y", 1), ("x y", 2), ("y z", 2), ("y z w", 3), ("x", 1), ("w", 1)])
def test_an_output_shares_memory_with_nothing(outputs: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may return its inputs, and the same array twice."""
    computed = len({*outputs.split()} & {"y", "z"})
    monkeypatch.setattr(ObservedExecutable, "run", lambda executable, inputs, options=None: [inputs[0]] * computed)
    nodes = [node("Identity", "x", name) for name in outputs.split() if name in "yz"]
    ends = {"x": "float32[3]"}, dict.fromkeys(outputs.split(), "float32[3]")
    function, x = graph(*ends, *nodes, constants={"w": X.copy()}), X.copy()
    ready = made(function)
    results = [*ready.run([x]), *ready.run([x])]
    assert [result.tolist() for result in results] == [X.tolist()] * 2 * count
    others = [x, function.constants["w"].array]
    for result in results:
        assert result.flags.writeable
        assert not any(np.shares_memory(result, other) for other in others)
        others.append(result)


def test_a_buffer_of_the_caller_is_filled_and_returned() -> None:
    buffer = np.empty(3, "float32")
    (y,) = made(MIXED).run([X], RunOptions(out=[buffer]))
    assert y is buffer
    assert buffer.tolist() == [1, 1, -1]
    with pytest.raises(InputError, match=r"^out\[0\] is float32\[4\], but the output is float32\[3\]$"):
        made(MIXED).run([X], RunOptions(out=[np.empty(4, "float32")]))


def test_a_profile_counts_only_the_calls_that_ask() -> None:
    ready = made(MIXED)
    assert str(ready.profile()) == "nothing profiled yet; call the module with options=RunOptions(profile=True)"
    ready.run([X])
    ready.run([X], RunOptions(profile=True))
    profile = ready.profile()
    assert [(t.launch, t.calls) for t in profile.launches] == [(launch.name, 1) for launch in ready.plan.launches]
    assert profile.seconds > 0


ROWS = Value("x", TensorType(DType.FLOAT32, ("N", 3)))
Y = Value("y", TensorType(DType.FLOAT32, ("N",)))
SCALAR = Value("s", TensorType(DType.FLOAT32, ()))


def accepted(values: tuple[Value, ...], *args: Any, **named: Any) -> list[Any]:
    out = [inputs.normalize(v, value) for v, value in zip(values, inputs.bind(values, args, named), strict=True)]
    inputs.check(values, out)
    return out


def refused(values: tuple[Value, ...], *args: Any, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        accepted(values, *args, **named)
    return str(caught.value)


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


WIDE = zeros(2, 3, dtype="float64")
NO_TYPE = "input 'x' must be float32[N,3]; arrays of NumPy type datetime64[s] have no ONNX element type; convert the array first"


@pytest.mark.parametrize(
    ("args", "named", "text"),
    [
        ((zeros(2, 3), zeros(2), zeros(2)), {}, "the model takes 2 inputs (x, y); got 3 positional values"),
        ((zeros(2, 3),), {}, "no value for input 'y'; the model takes 2 inputs (x, y)"),
        ((), {}, "no value for inputs 'x', 'y'; the model takes 2 inputs (x, y)"),
        ((zeros(2, 3),), {"x": zeros(2, 3)}, "input 'x' is passed twice, by position and by name"),
        ((zeros(2, 3),), {"yy": zeros(2)}, "the model has no input 'yy'. Did you mean 'y'? The model takes 2 inputs (x, y)"),
        ((zeros(2, 4), zeros(2)), {}, "input 'x' must be float32[N,3]; got shape [2, 4]: axis 1 is 4, not 3"),
        ((zeros(2), zeros(2)), {}, "input 'x' must have rank 2 (float32[N,3]); got rank 1, shape [2]"),
        ((zeros(2, 3), zeros(4)), {}, "dimension 'N' is 2 in input 'x' and 4 in input 'y'; pass equal sizes"),
        ((WIDE, zeros(2)), {}, "input 'x' must be float32; got float64; convert it with .astype('float32')"),
        (([[1.0]], zeros(1)), {}, "input 'x' must be a NumPy array; got a list; convert it with np.asarray(..., dtype=...)"),
        ((1.0, zeros(1)), {}, "input 'x' (float32[N,3]) must be a NumPy array; only a 0-d input accepts a Python float"),
        ((zeros(1, 3, dtype="datetime64[s]"), zeros(1)), {}, NO_TYPE),
    ],
)
def test_what_does_not_fit_is_named(args: Any, named: Any, text: str) -> None:
    assert refused((ROWS, Y), *args, **named) == text


def test_a_foreign_byte_order_is_brought_home() -> None:
    (array, _) = accepted((ROWS, Y), np.arange(6, dtype=">f4").reshape(2, 3), zeros(2))
    assert array.dtype == np.dtype("float32") and array.dtype.isnative
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_strided_array_is_taken_as_it_is() -> None:
    array = np.arange(12, dtype="float32").reshape(3, 4).T[:2]
    assert accepted((ROWS, Y), array, zeros(2))[0] is array


@pytest.mark.parametrize("given", [2, 2.0, np.float32(2), np.array(2, "float32")])
def test_a_scalar_is_taken_for_a_0d_input(given: Any) -> None:
    (array,) = accepted((SCALAR,), given)
    assert type(array) is np.ndarray and array.dtype == np.float32 and array.shape == () and array == 2


def test_a_scalar_that_would_lose_its_value_is_refused() -> None:
    whole = Value("k", TensorType(DType.INT8, ()))
    assert refused((whole,), 1.5) == "input 'k' must be int8; got float64; convert it with .astype('int8')"
    assert refused((whole,), 300) == "input 'k' is int8[], which cannot hold 300"


TEXTS = Value("t", TensorType(DType.STRING, (2,)))


def test_a_tensor_of_strings_holds_nothing_else() -> None:
    """Engines spelt out whatever else they were given, such as ``b'a'`` and ``None``."""
    (data,) = accepted((TEXTS,), np.array(["a", "b"]))
    assert data.dtype == object and data.tolist() == ["a", "b"]
    end = ": make each element a str"
    assert refused((TEXTS,), np.array(["a", None], object)) == f"input 't' must hold text; element 1 is NoneType None{end}"
    assert refused((TEXTS,), np.array([b"a", b"b"])) == f"input 't' must hold text; element 0 is bytes b'a'{end}"


def test_sequences_and_optionals() -> None:
    sequence = Value("q", SequenceType(TensorType(DType.INT64, None)))
    optional = Value("o", OptionalType(TensorType(DType.INT64, (1,))))
    assert accepted((optional,)) == [None]
    assert [a.shape for a in accepted((sequence,), [np.zeros(2, "int64"), np.zeros((), "int64")])[0]] == [(2,), ()]
    assert (
        refused((sequence,), zeros(2)) == "input 'q' is a sequence (seq(int64[...])); pass a list of arrays, not a numpy.ndarray"
    )
    assert refused((sequence,), [zeros(2)]) == "input 'q[0]' must be int64; got float32; convert it with .astype('int64')"


@pytest.mark.slow
def test_arrays_of_other_libraries_come_through_dlpack() -> None:
    """JAX's arrays, of types that NumPy has no word for too: where they lie, read-only, and holding their owner's memory."""
    import jax

    for name, dtype in (("float32", DType.FLOAT32), ("bfloat16", DType.BFLOAT16), ("float8_e4m3fn", DType.FLOAT8E4M3FN)):
        data = jax.numpy.arange(6).astype(name).reshape(2, 3)
        value = Value("x", TensorType(dtype, (2, 3)))
        (array,) = accepted((value,), data)
        assert array.dtype == dtype.numpy and array.astype("float32").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert array.ctypes.data == data.unsafe_buffer_pointer() and not array.flags.writeable
        del data
        assert array.astype("float32").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.slow
def test_small_floats_of_pytorch_share_their_memory() -> None:
    import torch

    for kind, dtype in ((torch.bfloat16, DType.BFLOAT16), (torch.float8_e4m3fn, DType.FLOAT8E4M3FN)):
        tensor = torch.arange(6.0).to(kind).reshape(2, 3).T
        (array,) = accepted((Value("x", TensorType(dtype, (3, 2))),), tensor)
        assert array.dtype == dtype.numpy and array.astype("float32").tolist() == [[0, 3], [1, 4], [2, 5]]
        assert array.ctypes.data == tensor.data_ptr()


PROFILED = RunOptions(profile=True)
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
"""Metadata events of the format, and the argument that each must have."""


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a file in the Trace Event Format, and check that a viewer can place each.

    Of its form are checked keys and types, order, nesting on each track, and names.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    events = data["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str) and event["ph"] in ("X", "M")
        assert type(event["pid"]) is int and type(event["tid"]) is int and isinstance(event["args"], dict)
    metadata = [event for event in events if event["ph"] == "M"]
    complete = [event for event in events if event["ph"] == "X"]
    assert events == [*metadata, *complete], "names come first, so that tracks have them from the beginning"
    for event in metadata:
        assert METADATA[event["name"]] in event["args"]
    for event in complete:
        assert isinstance(event["cat"], str)
        assert all(isinstance(event[key], Real) and not isinstance(event[key], bool) and event[key] >= 0 for key in ("ts", "dur"))
    assert [event["ts"] for event in complete] == sorted(event["ts"] for event in complete)
    named = {(event["pid"], event["tid"]) for event in metadata if event["name"] == "thread_name"}
    processes = {event["pid"] for event in metadata if event["name"] == "process_name"}
    assert {(event["pid"], event["tid"]) for event in complete} == named
    assert {pid for pid, _ in named} == processes
    assert len({tid for _, tid in named}) == len(named), "a thread belongs to one process"
    for track in named:
        check_nesting([event for event in complete if (event["pid"], event["tid"]) == track])
    return complete


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Assert that of two events of a track one holds the other, or ends before it begins."""
    around: list[float] = []
    for event in events:
        end = round(event["ts"] + event["dur"], 3)
        while around and around[-1] <= event["ts"]:
            around.pop()
        assert not around or end <= around[-1], f"{event['name']} ends outside of what holds it"
        around.append(end)


def test_a_call_holds_its_regions_and_each_has_its_engine(tmp_path: Path) -> None:
    mixed = made(MIXED)
    mixed.run([X])
    for _ in range(2):
        mixed.run([X], PROFILED)
    mixed.profile().to_trace(tmp_path / "t.json")
    events = read_trace(tmp_path / "t.json")
    regions = [(launch.name, launch.engine) for launch in mixed.plan.launches]
    assert [(event["name"], event["cat"]) for event in events] == 2 * [("call", "call"), *regions]
    assert events[0]["ts"] == 0 and len({(event["pid"], event["tid"]) for event in events}) == 1
    call, *inside = events[:4]
    assert all(call["ts"] <= event["ts"] and event["ts"] + event["dur"] <= call["ts"] + call["dur"] + 0.001 for event in inside)


def test_each_thread_has_a_track(tmp_path: Path) -> None:
    mixed = made(MIXED)
    meet = threading.Barrier(3)  # both live at once, so that no identifier is used twice
    callers = [threading.Thread(target=lambda: (mixed.run([X], PROFILED), meet.wait()), name=f"caller {n}") for n in range(2)]
    for thread in callers:
        thread.start()
    meet.wait()
    for thread in callers:
        thread.join()
    mixed.profile().to_trace(tmp_path / "t.json")
    events = read_trace(tmp_path / "t.json")
    assert len(events) == 8 and len({event["tid"] for event in events}) == 2
    data = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sorted(e["args"]["name"] for e in data if e["name"] == "thread_name") == ["caller 0", "caller 1"]
    assert [e["args"]["name"] for e in data if e["name"] == "process_name"] == [HOST]


def test_rounding_keeps_events_within_each_other(tmp_path: Path) -> None:
    ends = [7.0 + 1e-8 / 3 * n for n in range(501)]
    moments = [Moment(f"{n}", "toy", HOST, (1, "MainThread"), ends[n], ends[n + 1]) for n in range(500)]
    moments.append(Moment("call", "call", HOST, (1, "MainThread"), ends[0], ends[-1]))
    Profile((), moments=tuple(moments)).to_trace(tmp_path / "t.json")
    assert len(read_trace(tmp_path / "t.json")) == 501


def test_what_overlaps_on_a_track_is_found() -> None:
    with pytest.raises(AssertionError, match="b ends outside of what holds it"):
        check_nesting([{"name": "a", "ts": 0, "dur": 2}, {"name": "b", "ts": 1, "dur": 2}])


def test_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.runtime.profile.MAX_MOMENTS", 4)
    recorder = Recorder((("r", "toy", HOST),))
    for n in range(10):
        recorder.add(0, float(n), n + 0.5)
    result = recorder.read()
    assert [moment.began for moment in result.moments] == [6.0, 7.0, 8.0, 9.0]
    assert result.launches[0].calls == 10 and result.seconds == 5.0


def test_a_module_says_how_many_threads_the_times_are_of(tmp_path: Path) -> None:
    m = xrt.XRTModule(MIXED, engine="toy", threads=1)
    m(X, options=PROFILED)
    assert str(m.profile()).splitlines()[-1] == "on 1 thread"
    m.profile().to_trace(str(tmp_path / "t.json"))
    assert len(read_trace(tmp_path / "t.json")) == 2
    assert json.loads((tmp_path / "t.json").read_text())["otherData"] == {"tool": "xrt", "threads": 1}


def test_a_timeline_without_calls_is_an_empty_one(tmp_path: Path) -> None:
    made(MIXED).profile().to_trace(tmp_path / "t.json")
    assert read_trace(tmp_path / "t.json") == []


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = str(tmp_path / "file" / "t.json")
    with pytest.raises(InputError) as caught:
        made(MIXED).profile().to_trace(bad)
    assert str(caught.value) == f"cannot write {bad!r}: Not a directory"
