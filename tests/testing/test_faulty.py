"""Engines that misbehave do so where and how they are told, and the recording one counts right."""

from __future__ import annotations

import pytest

from xrt.engines.contract import registry
from xrt.engines.contract.spec import build, parse_spec
from xrt.errors import CompileRefused, OptionError
from xrt.passes import infer_shapes
from xrt.testing.corpus import find_entry
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine, SlowEngine
from xrt.verify.execution import compile_alone, run_alone

ONE = find_entry("two_branches_and_a_join")


def test_its_version_may_raise():
    with pytest.raises(RuntimeError, match="in version"):
        FaultyEngine(where="version").version()
    assert FaultyEngine().version().startswith("faulty of ")


def test_it_misbehaves_at_the_nth_call_alone():
    executable = compile_alone(FaultyEngine(how="value", nth=2), ONE.function, ONE.inputs)
    judged = [bool(ONE.judge(executable.run(ONE.make_inputs()))) for _ in range(3)]
    assert judged == [True, False, True]


def test_what_cannot_misbehave_so_is_refused():
    with pytest.raises(OptionError, match=r"^'close' cannot misbehave by 'nan', only 'run' can$"):
        FaultyEngine(where="close", how="nan")


def test_the_recording_engine_counts():
    engine = RecordingEngine()
    executable = compile_alone(engine, ONE.function, ONE.inputs)
    for _ in range(3):
        assert ONE.judge(executable.run(ONE.make_inputs()))
    executable.close()
    counted = [engine.journal.count(word) for word in ("why_not", "compile", "prepare", "run", "close")]
    assert counted == [len(ONE.function.nodes), 1, 1, 3, 1]
    assert [f.fingerprint for f in engine.journal.compiled] == [infer_shapes(ONE.function).fingerprint]
    engine.journal.clear()
    assert engine.journal.count("run") == 0


def test_it_takes_what_it_is_set_to_take():
    with pytest.raises(CompileRefused, match=r"^Neg: it is set to take Relu\|T\*, and Neg is none of these$"):
        run_alone(RecordingEngine(takes="Relu|T*"), ONE.function, ONE.make_inputs())


def test_their_options_make_their_spec():
    engine = FaultyEngine(inner="ort", where="compile", how="refuse", nth=3)
    assert engine.spec == "faulty{how=refuse, inner=ort, nth=3, where=compile}"
    assert build(FaultyEngine, parse_spec(engine.spec)[1]) == engine
    assert RecordingEngine(mark="a") != RecordingEngine(mark="b")
    assert registry.create(engine) is engine


def test_the_slow_engine_takes_its_time_and_is_right(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    engine = SlowEngine(run_seconds=0.5, node_seconds=0.25, compile_seconds=3.0)
    executable = compile_alone(engine, ONE.function, ONE.make_inputs())
    for _ in range(2):
        assert ONE.judge(list(executable.run(ONE.make_inputs())))
    each = 0.5 + 0.25 * len(ONE.function.nodes)
    assert slept == [3.0, each, each]
    assert engine.journal.count("run") == 2


def test_no_time_is_below_zero():
    with pytest.raises(OptionError, match=r"^node_seconds is a time of 0 or more seconds; got -1\.0$"):
        SlowEngine(node_seconds=-1.0)
