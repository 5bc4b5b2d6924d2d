"""Lock files: what is written is read back, a diff shows one fact, and what is no lock is refused in clear words."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xrt.errors import LockError
from xrt.formats.placement_file import Baseline, CandidateRecord, Lock, NodeRange, dumps, loads, read_lock, write_lock

RUNS = (NodeRange(0, "ort", 0, 3, "conv 1", "relu"), NodeRange(1, "xla{a=1}", 3, 1, "exp"), NodeRange(0, "ort", 4, 2, "a", "b"))
LOCK = Lock(
    "0.1.0",
    "2026-11-21",
    {"name": "net", "fingerprint": "ab" * 32, "nodes": "6"},
    {"x": "float32[1,3]"},
    {"ort": "onnxruntime 1.31.1", "xla{a=1}": "jax 0.10.2"},
    {"processor": "an EPYC", "system": "Linux x86_64"},
    {"threads": "2", "device": "cpu"},
    RUNS,
    (
        CandidateRecord("ort + xla", "won", False, 0.00552, 0.0055, 0.0056, 0.72, 0.71, 0.735),
        CandidateRecord("ort", "lost", True, 0.00781234567, 0.0077, 0.0079, 1.0, 1.0, 1.0),
        CandidateRecord("tvm", "failed", note="it hung"),
    ),
    Baseline("ort", 0.72, 0.71, 0.735, 24, (NodeRange(0, "ort", 0, 6, "conv 1", "b"),)),
)


def test_what_is_written_is_read_back() -> None:
    text = dumps(LOCK)
    read = loads(text)
    assert read.plan == LOCK.plan and read.gate == LOCK.gate and read.engines == LOCK.engines
    assert read.race[1].seconds == 0.00781235, "six digits are kept"
    assert dumps(read) == text
    assert text.isascii() and text.endswith("}\n")


def test_a_lock_of_an_earlier_version_names_no_files() -> None:
    """They have no place for the files of inputs, and say nothing where there are none."""
    assert '"values"' not in dumps(LOCK)
    with_files = replace(LOCK, values={"x": "../x.npy"})
    assert loads(dumps(with_files)).values == {"x": "../x.npy"}
    assert loads(dumps(LOCK)).values == {}


def test_it_says_one_fact_on_a_line_in_a_fixed_order() -> None:
    text = dumps(LOCK)
    tops = [line for line in text.splitlines() if line.startswith('  "')]
    assert tops == sorted(tops)
    other = replace(
        LOCK, engines={**LOCK.engines, "ort": "onnxruntime 1.32.0"}, plan=(RUNS[0], replace(RUNS[1], engine="ort"), RUNS[2])
    )
    changed = [line for line in difflib.ndiff(text.splitlines(), dumps(other).splitlines()) if line[0] in "+-"]
    assert [line[0] for line in changed].count("-") == 2
    assert changed[:2] == ['-     "ort": "onnxruntime 1.31.1",', '+     "ort": "onnxruntime 1.32.0",']


@given(st.text(max_size=30), st.text(st.characters(categories=["Cs", "Cc", "Zl", "Lu"]), max_size=9))
def test_odd_names_come_back(name: str, odd: str) -> None:
    assume(json.loads(json.dumps(odd)) == odd)  # two halves of a character side by side are one in JSON
    lock = replace(LOCK, plan=(NodeRange(0, odd, 0, 1, name, odd),), inputs={odd: name}, model={name: odd})
    assert loads(dumps(lock)) == loads(dumps(loads(dumps(lock))))
    assert loads(dumps(lock)).plan == lock.plan
    assert loads(dumps(lock)).inputs == {odd: name}


# ---------------------------------------------------------------------- what is refused


def altered(change: Callable[[dict[str, Any]], object]) -> str:
    facts = json.loads(dumps(LOCK))
    change(facts)
    return json.dumps(facts)


WRONG = [
    (lambda f: f.update(kind="plan"), r"^it is no lock of XRT: its kind is 'plan', not 'xrt lock'$"),
    (
        lambda f: f.update(format=7, writer="9.0"),
        r"^it has lock format 7, written by xrt 9.0, and this version of XRT reads 1; the version that wrote it reads it$",
    ),
    (lambda f: f.update(format="1"), r"^format must be a count, at most 10000000; it is '1'$"),
    (lambda f: f.pop("plan"), r"^it lacks 'plan'$"),
    (lambda f: f.update(plan=3), r"^plan must be a list; it is 3$"),
    (lambda f: f["plan"][1].pop("at"), r"^plan\[1\] lacks 'at'$"),
    (lambda f: f["plan"][1].update(at=-1), r"^plan\[1\]\.at must be a count, at most 10000000; it is -1$"),
    (lambda f: f["plan"][1].update(at=True), r"^plan\[1\]\.at must be a count, at most 10000000; it is True$"),
    (lambda f: f["plan"][0].update(colour="red"), r"^plan\[0\] has 'colour', which it may not have$"),
    (lambda f: f["race"][0].update(seconds="fast"), r"^race\[0\]\.seconds must be a number from 0; it is 'fast'$"),
    (lambda f: f["race"][0].update(baseline=1), r"^race\[0\]\.baseline must be true or false; it is 1$"),
    (lambda f: f["gate"].update(low=0), r"^gate needs 0 < low <= ratio <= high; it has 0, 0.72 and 0.735$"),
    (lambda f: f["gate"].pop("runs"), r"^gate lacks 'runs'$"),
    (lambda f: f["engines"].update(ort=["a"]), r"^engines\.ort must be a text; it is \['a'\]$"),
    (lambda f: f.update(values=["x"]), r"^values must be an object; it is \['x'\]$"),
    (lambda f: f.update(engines=[]), r"^engines must be an object; it is \[\]$"),
    (lambda f: f.update(writer="x" * 5000), r"^writer must be a text; it is 'xxx.*\.\.\.$"),
    (lambda f: f.update(signed="me"), r"^it has 'signed', which no lock has$"),
]


@pytest.mark.parametrize(("change", "told"), WRONG, ids=lambda value: value[:40] if isinstance(value, str) else None)
def test_a_defect_is_named(change: Callable[[dict[str, Any]], object], told: str) -> None:
    with pytest.raises(LockError, match=told):
        loads(altered(change))


TORN = [
    ("", "line 1 is no JSON: Expecting value"),
    ("[]", "the whole must be an object; it is []"),
    (dumps(LOCK)[:300], "is no JSON"),
    (
        dumps(LOCK).replace('  "date"', '<<<<<<< mine\n  "date"'),
        "line 2 is no JSON: Expecting property name enclosed in double quotes; was it merged by hand?",
    ),
    (dumps(LOCK).replace('"date"', '"writer"'), "it says 'writer' twice; was it merged by hand?"),
    (dumps(LOCK).replace("0.72", "NaN"), "NaN is no number that a lock holds"),
    (dumps(LOCK).replace("0.72", "1e999"), "must be a number from 0; it is inf"),
    (dumps(LOCK).replace("24", "9" * 5000), "it holds a number that cannot be read"),
    ('{"kind": ' + "[" * 100_000, "it is nested too deeply"),
    (b"\xff\xfe", "byte 0 is no UTF-8"),
    (" " * (17 << 20), "it has more than 16 MB, and no lock has"),
]


@pytest.mark.parametrize(("text", "told"), TORN, ids=[told[:30] for _, told in TORN])
def test_what_is_torn_is_refused(text: str | bytes, told: str) -> None:
    with pytest.raises(LockError) as caught:
        loads(text)
    assert told in str(caught.value)


# ---------------------------------------------------------------------- files


def test_a_file_is_written_whole_and_named_where_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "net.lock"
    with pytest.raises(LockError, match=r"^there is no lock '.*net.lock'; `xrt lock MODEL -o .*net.lock` writes one$"):
        read_lock(path)
    write_lock(LOCK, path)
    assert dumps(read_lock(path)) == dumps(LOCK)
    assert [one.name for one in tmp_path.iterdir()] == ["net.lock"]
    path.write_text("{")
    with pytest.raises(
        LockError,
        match=r"^cannot read the lock '.*net.lock': line 1 is no JSON.*; mend it, or make it anew with `xrt lock ",
    ):
        read_lock(path)
    with pytest.raises(LockError, match=r"^cannot write '.*none/net.lock': No such file or directory$"):
        write_lock(LOCK, tmp_path / "none" / "net.lock")
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path):
        with pytest.raises(
            LockError, match=r"^cannot read the lock '.*': it is no file; mend it, or make it anew with `xrt lock MODEL -o "
        ):
            read_lock(odd)
    with pytest.raises(LockError, match="cannot read the lock"):
        read_lock("a\0b")
