"""Placement files: what is written is read back, a diff shows one fact, and what is none is refused in clear words."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from xrt.errors import ModelError, PlacementFileError
from xrt.formats import onnx
from xrt.formats.placement_file import (
    Baseline,
    CandidateRecord,
    DeclinedNodes,
    NodeRange,
    PlacementFile,
    RegionRecord,
    SearchRecord,
    dumps,
    loads,
    read_placement,
    write_placement,
)
from xrt.measure.timing import MeasuredCost

RUNS = (NodeRange(0, "ort", 0, 3, "conv 1", "relu"), NodeRange(1, "xla{a=1}", 3, 1, "exp"), NodeRange(0, "ort", 4, 2, "a", "b"))
LOCK = PlacementFile(
    writer="0.1.0",
    date="2026-11-21",
    model={"name": "net", "fingerprint": "ab" * 32, "nodes": "6"},
    inputs={"x": "float32[1,3]"},
    engines={"ort": "onnxruntime 1.31.1", "xla{a=1}": "jax 0.10.2"},
    machine={"processor": "an EPYC", "system": "Linux x86_64"},
    options={"threads": "2", "device": "cpu"},
    plan=RUNS,
    search=SearchRecord(
        candidates=(
            CandidateRecord("ort + xla", "won", 0.00552, 0.0055, 0.0056, 0.72, 0.71, 0.735),
            CandidateRecord("ort", "lost", 0.00781234567, 0.0077, 0.0079, 1.0, 1.0, 1.0, is_baseline=True),
            CandidateRecord("tvm", "failed", note="it hung"),
        )
    ),
    baseline=Baseline("ort", 0.72, 0.71, 0.735, 24, (NodeRange(0, "ort", 0, 6, "conv 1", "b"),)),
)
KEY = "0123456789abcdef" * 4
RACED = CandidateRecord("ort", "won", 1e-3, regions=(1e-3,), is_baseline=True, plan=RUNS)
SEARCH = SearchRecord(candidates=(RACED,), rounds=12, budget=20.0, spent=3.0, notes=("a note",), unmeasured={"tvm": "it hung"})
DECISION = PlacementFile(engines={"ort": "1.31"}, search=SEARCH, declined=(DeclinedNodes("ort", "too new", (3, 4)),))
COSTS = PlacementFile(costs=(RegionRecord(KEY, "ort", MeasuredCost(0.0125, 0.012, 0.0131)), RegionRecord(KEY, "a", "b")))


@pytest.mark.parametrize("document", [LOCK, LOCK.replace(values={"x": "../x.npy"}), DECISION, COSTS, PlacementFile()])
def test_what_is_written_is_read_back(document: PlacementFile) -> None:
    text = dumps(document)
    assert loads(text) == document == loads(text.encode())
    assert dumps(loads(text)) == text
    assert text.isascii() and text.endswith("}\n")


def test_it_says_one_fact_on_a_line_in_a_fixed_order() -> None:
    text = dumps(LOCK)
    tops = [line for line in text.splitlines() if line.startswith('  "')]
    assert tops == sorted(tops)
    engines = {**LOCK.engines, "ort": "onnxruntime 1.32.0"}
    other = LOCK.replace(engines=engines, plan=(RUNS[0], RUNS[1].replace(engine="ort"), RUNS[2]))
    changed = [line for line in difflib.ndiff(text.splitlines(), dumps(other).splitlines()) if line[0] in "+-"]
    assert [line[0] for line in changed].count("-") == 2
    assert changed[:2] == ['-     "ort": "onnxruntime 1.31.1",', '+     "ort": "onnxruntime 1.32.0",']


@pytest.mark.slow
@given(st.text(max_size=30), st.text(st.characters(categories=["Cs", "Cc", "Zl", "Lu"]), max_size=9))
def test_odd_names_come_back(name: str, odd: str) -> None:
    assume(json.loads(json.dumps(odd)) == odd)  # two halves of a character side by side are one in JSON
    lock = LOCK.replace(plan=(NodeRange(0, odd, 0, 1, name, odd),), inputs={odd: name}, model={name: odd})
    assert loads(dumps(lock)) == lock


def alter(document: PlacementFile, change: Callable[[dict[str, Any]], object]) -> str:
    facts = json.loads(dumps(document))
    change(facts)
    return json.dumps(facts)


WRONG_LOCKS = [
    (lambda f: f.update(kind="plan"), "", "it is not a placement file: its kind is 'plan', not 'xrt placement'"),
    (lambda f: f.pop("kind"), "", "it is not a placement file: its kind is None, not 'xrt placement'"),
    (lambda f: f.update(plan=3), "plan", "expected `array`, got `int`"),
    (lambda f: f["plan"][1].pop("at"), "plan[1]", "object missing required field `at`"),
    (lambda f: f["plan"][1].update(at=-1), "plan[1].at", "expected `int` >= 0"),
    (lambda f: f["plan"][1].update(at=10**8), "plan[1].at", "expected `int` <= 10000000"),
    (lambda f: f["plan"][1].update(at=True), "plan[1].at", "expected `int`, got `bool`"),
    (lambda f: f["plan"][0].update(colour="red"), "plan[0]", "object contains unknown field `colour`"),
    (lambda f: f["search"]["candidates"][0].update(seconds=10**400), "search.candidates[0].seconds", "number out of range"),
    (lambda f: f["search"]["candidates"][1].update(verdict="a\nb"), "search.candidates[1].verdict", r"invalid enum value 'a\nb'"),
    (lambda f: f["baseline"].update(low=0), "baseline", "needs 0 < low <= ratio <= high; it has 0, 0.72 and 0.735"),
    (lambda f: f["baseline"].pop("plan"), "baseline", "object missing required field `plan`"),
    (lambda f: f["engines"].update(ort=["a"]), "engines[...]", "expected `str`, got `array`"),
    (lambda f: f.update(writer="x" * 5000), "writer", "expected `str` of length <= 4000"),
    (lambda f: f["plan"][0].update({" - at `$": 0}), "plan[0]", "object contains unknown field ` - at `$`"),
    (lambda f: f.update(signed="me"), "", "object contains unknown field `signed`"),
    (lambda f: f.update({"a\ud800": 0}), "", "it cannot be read: 'utf-8' codec can't encode"),
]
WRONG_COSTS = [
    (lambda f: f["costs"][0].update(region="abc"), "costs[0].region", "expected `str` matching regex"),
    (lambda f: f["costs"][0].update(region=KEY + "\n"), "costs[0].region", "expected `str` matching regex"),
    (lambda f: f["costs"][0]["cost"].update(high=0.0), "costs[0].cost", "a measured cost needs 0 <= low <= seconds"),
    (lambda f: f["costs"][0]["cost"].pop("low"), "costs[0].cost", "object missing required field `low`"),
    (lambda f: f["costs"][0].update(is_wrong=True), "costs[0]", "needs a reason if it is wrong"),
]


@pytest.mark.parametrize(
    ("document", "change", "position", "shown"),
    [*((LOCK, *row) for row in WRONG_LOCKS), *((COSTS, *row) for row in WRONG_COSTS)],
    ids=[shown for _, _, shown in (*WRONG_LOCKS, *WRONG_COSTS)],
)
def test_a_defect_is_named(document: PlacementFile, change: Any, position: str, shown: str) -> None:
    with pytest.raises(PlacementFileError) as caught:
        loads(alter(document, change))
    assert caught.value.position == position
    assert str(caught.value).removeprefix(f"{position}: ").startswith(shown)


TORN = [
    ("", "line 1 is not JSON: Expecting value"),
    (dumps(LOCK)[:300], "is not JSON"),
    (
        dumps(LOCK).replace('  "date"', '<<<<<<< mine\n  "date"'),
        "is not JSON: Expecting property name enclosed in double quotes; was it merged by hand?",
    ),
    (dumps(LOCK).replace('"date"', '"writer"'), "it has 'writer' twice; was it merged by hand?"),
    (dumps(LOCK).replace("0.72", "NaN"), "it holds NaN, which JSON does not allow"),
    (dumps(LOCK).replace("0.72", "1e999"), "expected `float` <= 1000000000.0"),
    (dumps(LOCK).replace("24", "9" * 5000), "it cannot be read: Exceeds the limit"),
    ('{"kind": ' + "[" * 100_000, "it is nested too deeply"),
    (b"\xff\xff", "it cannot be read: 'utf-8' codec can't decode"),
    (dumps(LOCK).encode("utf-8-sig"), "line 1 is not JSON: Unexpected UTF-8 BOM"),
    (" " * (17 << 20), "it has more than 16 MB, the limit of a placement file"),
]


@pytest.mark.parametrize(("text", "shown"), TORN, ids=[shown[:30] for _, shown in TORN])
def test_what_is_torn_is_refused(text: str | bytes, shown: str) -> None:
    with pytest.raises(PlacementFileError, match=re.escape(shown)):
        loads(text)


UNREADABLE = [
    (LOCK.replace(engines={"ort": "v" * 5000}), "engines[...]: expected `str` of length <= 4000"),
    (DECISION.replace(search=SEARCH.replace(spent=math.inf)), "it holds Infinity, which JSON does not allow"),
    (DECISION.replace(search=SEARCH.replace(spent=math.nan)), "it holds NaN, which JSON does not allow"),
]


@pytest.mark.parametrize(("document", "shown"), UNREADABLE, ids=[shown for _, shown in UNREADABLE])
def test_what_could_not_be_read_again_is_not_written(document: PlacementFile, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "net.lock"
    with pytest.raises(PlacementFileError) as caught:
        write_placement(document, path)
    assert caught.value.file == str(path)
    assert str(caught.value).startswith(f"cannot write '{path}': {shown}")
    assert not path.exists()


def test_a_file_is_written_whole_and_named_where_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "net.lock"
    with pytest.raises(PlacementFileError, match=r"^there is no file '.*net.lock'; `xrt lock MODEL -o .*net.lock` writes one$"):
        read_placement(path)
    write_placement(LOCK, path)
    assert read_placement(path) == LOCK
    assert [one.name for one in tmp_path.iterdir()] == ["net.lock"]
    path.write_text(alter(LOCK, lambda facts: facts.update(plan=3)))
    with pytest.raises(PlacementFileError) as caught:
        read_placement(path)
    assert (caught.value.file, caught.value.position) == (str(path), "plan")
    remedy = f"repair it, or write it again with `xrt lock MODEL -o {path}`"
    assert str(caught.value) == f"cannot read '{path}': plan: expected `array`, got `int`; {remedy}"
    model = path.rename(tmp_path / "net.onnx")
    with pytest.raises(PlacementFileError, match=r"it is a model, and a lockfile is expected; `xrt lock .*net.onnx` writes one$"):
        read_placement(model)
    with pytest.raises(ModelError, match=r"it is a lockfile or other JSON, not an ONNX model$"):
        onnx.load(model)
    model.unlink()
    with pytest.raises(PlacementFileError, match=r"^cannot write '.*none/net.lock': No such file or directory$"):
        write_placement(LOCK, tmp_path / "none" / "net.lock")
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path):
        with pytest.raises(
            PlacementFileError, match=r"^cannot read '.*': it is not a regular file; repair it, or write it again"
        ):
            read_placement(odd)
    with pytest.raises(PlacementFileError, match="cannot read"):
        read_placement("a\0b")
