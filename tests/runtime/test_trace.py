"""A profile as a timeline: the events of calls, in the Trace Event Format."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.runtime.test_program import MIXED, X, made
from tests.runtime.trace_format import check_nesting, read_trace
from xrt.engines import RunOptions
from xrt.errors import InputError
from xrt.runtime.profile import HOST, Moment, Profile, Recorder, make_trace

PROFILED = RunOptions(profile=True)
MAIN, OTHER = (1, "MainThread"), (2, "other")


def test_a_call_holds_its_regions_and_each_has_its_engine(tmp_path: Path) -> None:
    mixed = made(MIXED)
    mixed.run([X])
    for _ in range(2):
        mixed.run([X], PROFILED)
    mixed.profile().to_trace(tmp_path / "t.json")
    events = read_trace(tmp_path / "t.json")
    regions = [("xrt_first_0", "first"), ("xrt_second_1", "second"), ("xrt_first_2", "first")]
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


def test_a_copy_is_an_event_of_its_device() -> None:
    moments = [
        Moment("r", "toy", "cuda:0", MAIN, 2.0, 2.5),
        Moment("copy x to cuda:0", "copy", "cuda:0", MAIN, 1.5, 1.75, (("from", HOST), ("to", "cuda:0"), ("bytes", 12))),
        Moment("call", "call", HOST, MAIN, 1.0, 3.0),
        Moment("call", "call", HOST, OTHER, 1.25, 1.5),
    ]
    trace = make_trace(moments, {"tool": "xrt"})
    assert trace["otherData"] == {"tool": "xrt"}
    assert [e["args"] for e in trace["traceEvents"] if e["name"] == "process_name"] == [{"name": HOST}, {"name": "cuda:0"}]
    complete = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["pid"], e["tid"]) for e in complete] == [
        ("call", 0.0, 2e6, 1, 1),
        ("call", 250000.0, 250000.0, 1, 2),
        ("copy x to cuda:0", 500000.0, 250000.0, 2, 3),
        ("r", 1e6, 5e5, 2, 3),
    ]
    assert complete[2]["args"] == {"from": HOST, "to": "cuda:0", "bytes": 12}


def test_rounding_keeps_events_within_each_other(tmp_path: Path) -> None:
    third = 1 / 3
    moments = tuple(Moment(f"{n}", "toy", HOST, MAIN, 7.0 + third * 1e-8 * n, 7.0 + third * 1e-8 * (n + 1)) for n in range(500))
    Profile((), moments=(*moments, Moment("call", "call", HOST, MAIN, moments[0].began, moments[-1].ended))).to_trace(
        tmp_path / "t.json"
    )
    assert len(read_trace(tmp_path / "t.json")) == 501


def test_what_overlaps_on_a_track_is_found() -> None:
    with pytest.raises(AssertionError, match="b ends outside of what holds it"):
        check_nesting([{"name": "a", "ts": 0, "dur": 2}, {"name": "b", "ts": 1, "dur": 2}])


def test_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.runtime.profile.MOST_MOMENTS", 4)
    recorder = Recorder((("r", "toy", HOST),))
    for n in range(10):
        recorder.add(0, float(n), n + 0.5)
    result = recorder.read()
    assert [moment.began for moment in result.moments] == [6.0, 7.0, 8.0, 9.0]
    assert result.launches[0].calls == 10 and result.seconds == 5.0


def test_a_module_says_how_many_threads_the_times_are_of(tmp_path: Path) -> None:
    class Net(xrt.Graph):
        def build(self, x: Any) -> Any:
            return xrt.ops.Relu(x)

    m = xrt.XRTModule(Net(), engine="toy", threads=1)
    m(np.ones((2, 3), "float32"), options=PROFILED)
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
