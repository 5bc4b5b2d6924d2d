"""Tuning of TVM's loops: what is kept of it, what becomes of a search that crashes, and that numbers stay right."""

from __future__ import annotations

import json
import math
import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import te
from tvm.ir import IRModule

from tests.damaging import mutants
from xrt.engines import CompileContext
from xrt.engines.tvm import Tvm, tuner, tuning, tuning_records
from xrt.engines.tvm.target import make_target
from xrt.engines.tvm.tuning_records import TuningRecord
from xrt.errors import CacheWarning, CompileRefused, OptionError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.measure.interleave import rotate
from xrt.processes.client import WorkerProcess

PIN = "apache-tvm-ffi=="


def product(size: int = 64) -> Function:
    """Return a product with weights, and a Relu."""
    kind = TensorType(DType.FLOAT32, (size, size))
    weights = np.random.default_rng(3).standard_normal((size, size)).astype("float32")
    nodes = (Node("MatMul", ("x", "w"), ("a",), name="product"), Node("Relu", ("a",), ("y",), name="relu"))
    return Function((Value("x", kind),), (Value("y", kind),), nodes, {"w": Constant(weights)}, opsets={"": 17})


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Iterator[Any]:
        raise AssertionError("a process was started")

    monkeypatch.setattr(tuning, "_ask_tuner", refuse)


# ---------------------------------------------------------------------- the whole


@pytest.mark.full
@pytest.mark.slow
def test_a_tuned_region_is_right_and_what_was_found_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    function, x = product(), np.random.default_rng(4).standard_normal((64, 64)).astype("float32")
    context = CompileContext(threads=1, keep=tmp_path / "kept", report=told.append)
    engine = Tvm(tune=2)
    (y,) = engine.compile(function, context).run([x])
    assert np.allclose(y, np.maximum(x @ function.constants["w"].array, 0), atol=1e-4)
    assert told[0] == "tvm tunes: 2 trials of 1 loop nest"
    assert any("trial 2 of 2" in text for text in told)
    (file,) = (tmp_path / "kept").iterdir()
    record = TuningRecord.parse(file.read_text())
    assert record.trials == 2
    assert record.trace is None or math.isfinite(record.seconds)
    assert 0 < record.default_seconds < math.inf

    monkeypatch.setattr(tuning, "_ask_tuner", None)  # who starts it now fails
    (again,) = engine.compile(function, context).run([x])
    assert np.allclose(again, y, atol=1e-5)


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize("value", [-1, 1.5, "64", True])
def test_a_number_of_trials_is_a_number(value: Any) -> None:
    with pytest.raises(OptionError, match="tune must be a number of trials, 0 for none"):
        Tvm(tune=value)


def test_the_release_with_which_tuning_crashes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_ffi, "__version__", "0.1.15.post2")
    assert Tvm().spec == "tvm"  # which needs no tuning
    with pytest.raises(OptionError, match=r"tune works with apache-tvm-ffi 0\.1\.14\.post0, and 0\.1\.15\.post2 is installed"):
        Tvm(tune=1)


def test_the_dependency_excludes_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (pinned,) = [one for one in project["optional-dependencies"]["tvm"] if one.startswith(PIN)]
    assert pinned == PIN + tuning.SOUND_FFI == PIN + tvm_ffi.__version__


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "find_spec", lambda name: None if name == "psutil" else object())
    with pytest.raises(OptionError, match=r"tune needs psutil; pip install 'xrt\[tvm-tune\]'"):
        Tvm(tune=1)


def test_a_report_says_whether_it_is_tuned() -> None:
    assert "untuned" in Tvm().remarks(product())[0]
    assert "up to 3 trials" in Tvm(tune=3).remarks(product())[0]


# ---------------------------------------------------------------------- a search that fails


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os.kill(os.getpid(), 11)", "its process was ended by SIGSEGV"),
        ("sys.exit('out of disk')", "its process ended by itself, with status 1; it last wrote: out of disk"),
        ("raise ValueError('no such target')", "ValueError: no such target"),
    ],
)
def test_a_search_that_fails_is_a_refusal(code: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = f"import os, sys\nfrom xrt.processes.server import serve\ndef answer(request): {code}\n"
    (tmp_path / "planted_tuner.py").write_text(f"{server}def main(handle): serve(handle, answer)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tuning, "WorkerProcess", lambda entry, **more: WorkerProcess("planted_tuner:main", **more))
    with pytest.raises(CompileRefused, match=f"failed: {how}.*leave out tune= to compile untuned"):
        Tvm(tune=4).compile(product(), CompileContext(threads=1))


# ---------------------------------------------------------------------- judging


def loops() -> Any:
    x = te.placeholder((32, 32), "float32", "x")
    y = te.compute((32, 32), lambda i, j: x[i, j] * 2.0, "y")
    return te.create_prim_func([x, y])


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")


@pytest.mark.slow
def test_a_schedule_must_be_quicker_than_the_default(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    times = (second for turn in range(tuner.ROUNDS) for second in rotate([0.99, 1.0], turn))
    monkeypatch.setattr(tuner, "_seconds", lambda *_: next(times))
    assert tuner.select_schedule(loops(), "[[], []]", make_target(None, 3), 8) == TuningRecord(8, 0.99, 1.0, None)
    times = (second for turn in range(tuner.ROUNDS) for second in rotate([0.5, 1.0], turn))
    assert tuner.select_schedule(loops(), "[[], []]", make_target(None, 3), 8) == TuningRecord(8, 0.5, 1.0, "[[], []]")


@pytest.mark.slow
def test_a_schedule_that_computes_something_else_is_not_taken(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = te.placeholder((32, 32), "float32", "x")
    wrong = te.create_prim_func([x, te.compute((32, 32), lambda i, j: x[i, j] * 3.0, "y")])
    monkeypatch.setattr(tuner, "apply_record", lambda *_: wrong)
    record = tuner.select_schedule(loops(), "[[], []]", make_target(None, 3), 8)
    assert record.trace is None
    assert record.seconds == math.inf


# ---------------------------------------------------------------------- records


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    for record in (TuningRecord(64, 0.5, 1.0, "[[], []]"), TuningRecord(1, math.inf, 1.0, None)):
        tuning_records.store_record(tmp_path / "a" / "b", "key", record)
        assert tuning_records.load_records(tmp_path / "a" / "b", "key") == record


FIELDS = '{"format": 1, "trials": %s, "seconds": %s, "default_seconds": 1.0, "trace": %s}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 9}',
        FIELDS % ('"x"', "1.0", "null"),
        FIELDS % ("true", "1.0", "null"),
        FIELDS % ("-1", "1.0", "null"),
        FIELDS % ("1", "NaN", "null"),
        FIELDS % ("1", "-1.0", "null"),
        FIELDS % ("1", "1.0", '"no JSON"'),
        FIELDS % ("1", "1.0", "[]"),
        FIELDS % ("1", "1.0", '"[[[\\"RunThis\\", [], [], []]], []]"'),
    ],
)
def test_a_damaged_record_is_none_with_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(text)
    with pytest.warns(CacheWarning, match=r"^the record of tuning .*key\.json cannot be used: .*\. The loops are tuned again"):
        assert tuning_records.load_records(tmp_path, "key") is None
    tuning_records.store_record(tmp_path, "key", TuningRecord(1, 1.0, 1.0, None))
    assert tuning_records.load_records(tmp_path, "key") == TuningRecord(1, 1.0, 1.0, None)


TRACE = '[[["GetSBlock", [], ["y", "main"], ["b0"]], ["Annotate", ["b0", 1], ["meta_schedule.parallel"], []]], []]'


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_has_become_of_a_record_it_is_one_or_none(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_bytes(data.draw(mutants(str(TuningRecord(4, 0.5, 1.0, TRACE)).encode())))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = tuning_records.load_records(tmp_path, "key")
    if found is None:
        (warning,) = caught
        assert warning.category is CacheWarning and "\n" not in str(warning.message)
    else:
        assert not caught and found.trials >= 0 and found.seconds >= 0 and found.default_seconds >= 0
        assert found.trace is None or tuning_records.is_plain(json.loads(found.trace))


@pytest.mark.parametrize("obstacle", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_record(obstacle: Any, tmp_path: Path) -> None:
    obstacle(tmp_path / "key.json")
    with pytest.warns(CacheWarning, match="it is no record, which is a regular file of at most 4 MB"):
        assert tuning_records.load_records(tmp_path, "key") is None


@pytest.mark.parametrize(
    "step",
    [
        ["Annotate", ["l1", "define i32 @evil()"], ["pragma_import_llvm"], []],
        ["Annotate", ["l1", "evil.c"], [["pragma_import_c"]], []],
        ["UnsafeHideBufferAccess", ["b0"], ["read", [0]], []],
        ["Annotate", ["l1", 1], "pragma_unroll_explicit", []],
        ["Parallel", ["l1"], []],
        [["Parallel"], ["l1"], [], []],
        "Parallel",
    ],
)
def test_a_trace_that_does_more_than_arrange_loops_is_not_taken(step: Any, tmp_path: Path) -> None:
    trace = json.dumps([[step], []])
    assert not tuning_records.is_plain(json.loads(trace))
    tuning_records.store_record(tmp_path, "key", TuningRecord(1, 0.5, 1.0, trace))
    with pytest.warns(CacheWarning, match="the trace of the record does more than arrange loops"):
        assert tuning_records.load_records(tmp_path, "key") is None


@pytest.mark.full
def test_what_the_search_writes_is_taken() -> None:
    """Each way of arranging that the search has for these loops."""
    context = tuner._task("loops", loops(), make_target(None, 3), 2, 7)
    for space in context.generate_design_space():
        with make_target(None, 3):
            assert all(processor.apply(space) for processor in context.space_generator.postprocs or ())
        assert tuning_records.is_plain(tuner._plain(space.trace.as_json()))


def test_where_nothing_can_be_kept_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tuning_records.store_record(tmp_path / "file" / "folder", "key", TuningRecord(1, 1.0, 1.0, None))
    assert tuning_records.load_records(tmp_path / "file" / "folder", "key") is None
    assert tuning_records.load_records(None, "key") is None


def test_a_record_that_cannot_be_put_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    taken = tmp_path / "key.json"
    (taken / "inside").mkdir(parents=True)  # a file does not replace a folder
    tuning_records.store_record(tmp_path, "key", TuningRecord(1, 1.0, 1.0, None))
    assert [*tmp_path.iterdir()] == [taken]


def test_a_trace_of_other_loops_leaves_the_default(no_process: None, tmp_path: Path) -> None:
    module, target = IRModule({"main": loops()}), make_target(None, 3)
    key = tuning_records.make_record_key(module["main"], target, 1)
    tuning_records.store_record(
        tmp_path, key, TuningRecord(4, 0.5, 1.0, '[[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []]')
    )
    applied = tuning.ScheduleTuner(4, 1, tmp_path, None).apply(module, target, frozenset())
    assert tvm_ffi.structural_equal(applied["main"], module["main"])


def test_the_key_tells_loops_processors_and_threads_apart() -> None:
    target, main = make_target(None, 3), loops()
    keys = [
        tuning_records.make_record_key(main, target, 1),
        tuning_records.make_record_key(main, target, 2),
        tuning_records.make_record_key(main, make_target(None, 2), 1),
    ]
    assert len({*keys}) == 3
    assert tuning_records.make_record_key(loops().with_attr("global_symbol", "another"), target, 1) == keys[0]
