"""The comparison on a tiny model: what the report holds, and that a candidate that fails is a row and no more."""

from __future__ import annotations

import html
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xrt.bench import BenchCandidate, BenchOptions, BenchReport, BenchTarget, comparison
from xrt.bench.comparison import BenchWorker
from xrt.bench.job_server import Job, StartupReport

TINY = "mlp{layers=2, features=3, hidden=4, classes=2}"
QUICK = BenchOptions(rounds=4, turn_seconds=0.001, warm_seconds=0.2, limit_seconds=600)

pytestmark = [pytest.mark.full]


def compared(*candidates: str, subject: str = TINY, settings: BenchOptions = QUICK) -> BenchReport:
    parsed = [BenchCandidate.parse(text) for text in candidates]
    return comparison.compare_engines([BenchTarget.parse(subject)], parsed, [1], settings)


def test_two_engines_a_mixture_and_what_fails() -> None:
    report = compared("toy", "ort", "ort,toy with Relu=toy", "nobody", "ort{bogus=1}")
    (group,) = report.groups
    rows = {str(row.candidate): row for row in group.rows}
    results = [rows["toy"], rows["ort"], rows["ort,toy with Relu=toy"]]
    assert report.agrees and group.rows[0].verdict == "fastest"
    assert [row.verdict for row in group.rows].count("fastest") == 1
    for row in results:
        assert row.start is not None and row.agreement is not None and row.ratio is not None
        assert row.agreement.message == "" and row.agreement.absolute is not None
        assert len(row.rounds) == QUICK.rounds
        assert row.ratio.low <= row.ratio.median <= row.ratio.high
        assert 0 < row.start.loaded_bytes <= row.start.peak_bytes
        assert row.interval is not None and row.interval.low <= (row.median_seconds or 0) <= row.interval.high
        assert row.timeline is not None and row.timeline.calls > 0
        assert len(row.timeline.regions) == len(row.start.plan) == len(row.start.regions)
        assert sum(row.timeline.regions) <= row.timeline.seconds
        assert min(row.start.compile_seconds, row.start.first_seconds, row.start.alone_seconds) > 0
    mixture = rows["ort,toy with Relu=toy"].start
    assert mixture is not None and mixture.regions == ("ort", "toy", "ort")
    assert [row.verdict for row in group.rows[-2:]] == ["failed"] * 2
    assert rows["nobody"].reason.startswith("no engine is named 'nobody'")
    assert "'bogus'" in rows["ort{bogus=1}"].reason


def test_auto_is_a_candidate_and_says_how_it_chose() -> None:
    report = compared("ort", "ort,toy,auto", settings=replace(QUICK, budget_seconds=30.0))
    row = next(row for row in report.groups[0].rows if str(row.candidate) == "ort,toy,auto")
    assert row.start is not None and row.start.plan and set(row.start.regions) <= {"ort", "toy"}
    assert row.start.engines == ("ort", "toy") and len(row.start.versions) == 2
    assert row.start.placement[0].startswith("placed by measurement: ")
    assert set(report.versions) == {"ort", "toy"}


def test_a_subject_that_cannot_be_loaded_fails_everywhere_and_ends_nothing() -> None:
    (group,) = compared("toy", "ort", subject="missing.onnx").groups
    assert [row.verdict for row in group.rows] == ["failed"] * 2
    assert {row.reason for row in group.rows} == {
        "cannot load 'missing.onnx': there is no such file; without a suffix it may name a shipped model"
    }


def test_results_that_differ_are_wrong_and_never_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = comparison.read_values

    def alter(memory: memoryview, output: Any) -> list[Any]:
        seen.append(output)
        return [y + (len(seen) == 3) for y in honest(memory, output)]

    seen: list[Any] = []  # of the reference, of toy, of ort
    monkeypatch.setattr(comparison, "read_values", alter)
    report = compared("toy", "ort")
    wrong = report.groups[0].rows[-1]
    assert not report.agrees
    assert (str(wrong.candidate), wrong.verdict, wrong.ratio) == ("ort", "wrong", None)
    assert "differs in 2 of 2 elements" in wrong.reason


def test_a_candidate_that_takes_too_long_is_ended() -> None:
    (group,) = compared("toy", settings=BenchOptions(rounds=2, limit_seconds=0.01)).groups
    assert group.rows[0].reason == "no answer within 0.01 s; allow more time with --time-limit"


JOB = Job(BenchTarget.parse(TINY), BenchCandidate(("toy",)), 1, QUICK)


def test_memory_is_the_workers_own() -> None:
    ballast = bytearray(600_000_000)
    ballast[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(ballast[:: os.sysconf("SC_PAGE_SIZE")])
    with BenchWorker(JOB) as worker:
        start = worker.start(60)
    assert isinstance(start, StartupReport) and start.peak_bytes < len(ballast)


FIELDS: dict[str, set[str]] = {
    "report": {"schema", "versions", "agrees", "machine", "settings", "groups", "date", "command"},
    "group": {"model", "batch", "threads", "rows"},
    "row": {
        *("candidate", "verdict", "reason", "start", "agreement", "rounds", "median_seconds", "interval", "ratio", "timeline"),
    },
    "candidate": {"name", "engines", "pins"},
    "agreement": {"message", "absolute", "relative"},
    "interval": {"low", "high"},
    "ratio": {"median", "low", "high"},
    "timeline": {"calls", "seconds", "regions"},
}


def test_json_has_its_fields(command: Callable[..., Any]) -> None:
    code, out, err = command("bench", TINY, "-e", "ort", "-e", "ort with Relu!=ort", "--batch", "1,2", "--rounds", "2", "--json")
    assert (code, err) == (0, "")
    data: dict[str, Any] = json.loads(out)
    assert (set(data), data["schema"]) == (FIELDS["report"], 2)
    assert [(set(group), group["batch"]) for group in data["groups"]] == [(FIELDS["group"], 1), (FIELDS["group"], 2)]
    count, failed = data["groups"][0]["rows"]
    assert set(count) == set(failed) == FIELDS["row"]
    assert all(set(count[part]) == FIELDS[part] for part in ("candidate", "agreement", "interval", "ratio", "timeline"))
    assert failed["start"] is failed["ratio"] is failed["median_seconds"] is None
    assert {"processor", "cores", "python", "numpy"} <= set(data["machine"])
    assert "onnxruntime" in data["versions"]["ort"]


def test_the_page_is_of_the_run_and_says_what_made_it(command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "report & more.html"
    arguments = ["bench", TINY, "-e", "ort", "-e", "ort with Relu!=ort", "--rounds", "2", "--html", str(path)]
    code, out, err = command(*arguments)
    text = path.read_text(encoding="utf-8")
    assert (code, err) == (0, "") and out.startswith(f"{TINY}, ")
    assert shlex.join(["xrt", *arguments]) in html.unescape(text)
    assert text.startswith("<!DOCTYPE html>") and "What went wrong" in text
