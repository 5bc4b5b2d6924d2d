"""Engines in worker processes: where native code ends one, the case or the graph is named, and the rest goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.commands import Command
from xrt.testing import conform
from xrt.testing.fault_injection import FaultyEngine
from xrt.testing.fuzz import Fuzzer

pytestmark = pytest.mark.sample(3)

KILLED = FaultyEngine(takes="Abs", how="kill")
ENDED = "its process was ended by SIGKILL: a crash, or the system had no memory left"


@pytest.mark.slow
def test_conform_names_the_case_that_crashed_and_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.cli.workshop.split_specs", lambda text: [KILLED, "toy"])
    code, out, _ = command("conformance", "faulty,toy", "--cases", "test_relu,test_abs,test_neg", "--json")
    assert code == 1
    outcomes = {document["case"]: document for document in json.loads(out)["outcomes"]}
    words = {name: document["word"] for name, document in outcomes.items()}
    assert words == {"test_abs": "failed", "test_neg": "passed", "test_relu": "passed"}
    assert ENDED in outcomes["test_abs"]["reason"]


@pytest.mark.full
def test_fuzz_names_the_seed_that_crashed_and_goes_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which graphs have an Abs is seen by the engine that raises where the other one is killed."""
    raises = Fuzzer([FaultyEngine(takes="Abs", how="raise")], bisects=False)
    raises.run(range(12))
    seeds = {item.seed for item in raises.findings}
    assert 0 < len(seeds) < 12
    monkeypatch.setattr("xrt.cli.workshop.split_specs", lambda text: [KILLED])
    code, out, err = command("fuzz", "--engines", "faulty", "--count", "12")
    output = " ".join(err.split())
    assert code == 1
    assert [seed for seed in range(12) if f"seed {seed}, " in output] == sorted(seeds), output
    assert output.count(ENDED) == len(seeds)
    assert f"12 graphs from seed 0: {len(seeds)} disagreement" in " ".join(out.split())


def list_outcomes(report: Any) -> list[tuple[Any, ...]]:
    return [(o.case, o.word, o.reason, o.operators, o.group, o.placed) for o in report.outcomes]


@pytest.mark.parametrize(
    "options",
    [
        {"engines": "ort", "pattern": "test_relu,test_abs,test_celu*"},
        {"engines": ["ort", "toy"], "pattern": "*relu*", "groups": ["simple"], "alternate": True},
        {"engines": FaultyEngine(takes="Abs", how="value"), "pattern": "test_abs,test_neg"},
    ],
    ids=["alone", "alternating", "wrong"],
)
def test_cases_come_out_as_they_do_here(options: dict[str, Any]) -> None:
    progress: list[tuple[int, int]] = []
    there = conform(**options, isolate=True, progress=lambda done, count, outcome: progress.append((done, count)))
    assert list_outcomes(there) == list_outcomes(conform(**options))
    assert progress == [(n + 1, len(there.outcomes)) for n in range(len(there.outcomes))]
