"""Engines in worker processes: where native code ends one, the case or the graph is named, and the rest goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xrt.testing import conform
from xrt.testing.fault_injection import FaultyEngine
from xrt.testing.fuzz import Fuzzer

pytestmark = pytest.mark.sample(3)

ABORTING = """
import os
from dataclasses import dataclass
from typing import ClassVar

from xrt.engines.toy import Toy


@dataclass(frozen=True)
class Aborting(Toy):
    name: ClassVar[str] = "aborting"

    def compile(self, function, context):
        executable = super().compile(function, context)
        if any(node.op == "Abs" for node in function.nodes):
            executable.run = lambda *given: os.abort()
        return executable
"""
ENDED = "its process was ended by SIGABRT: a crash, or the system had no memory left"


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Install an engine that aborts when it runs Abs; return the environment that has it."""
    info = tmp_path / "aborting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aborting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xrt.engines]\naborting = aborting:Aborting\n")
    (tmp_path / "aborting.py").write_text(ABORTING)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-P", "-m", "xrt.cli", *arguments]
    return subprocess.run(start, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_conform_names_the_case_that_crashed_and_goes_on(plugged: dict[str, str]) -> None:
    completed = command(plugged, "conformance", "aborting", "--cases", "test_relu,test_abs,test_neg,test_sign", "--json")
    outcomes = {document["case"]: (document["word"], document["reason"]) for document in json.loads(completed.stdout)["outcomes"]}
    passed = dict.fromkeys(("test_neg", "test_relu", "test_sign"), ("passed", ""))
    assert (completed.returncode, outcomes) == (1, {**passed, "test_abs": ("failed", f"at run: RunFailed: {ENDED}")}), (
        completed.stderr
    )


@pytest.mark.full
def test_fuzz_names_the_seed_that_crashed_and_goes_on(plugged: dict[str, str]) -> None:
    """Which graphs have an Abs is seen by the engine that raises where the other one aborts."""
    raises = Fuzzer([FaultyEngine(takes="Abs", how="raise")], bisects=False)
    raises.run(range(12))
    seeds = {item.seed for item in raises.findings}
    assert 0 < len(seeds) < 12
    completed = command(plugged, "fuzz", "--engines", "aborting", "--count", "12")
    assert completed.returncode == 1
    output = " ".join(completed.stderr.split())
    assert [seed for seed in range(12) if f"seed {seed}, " in output] == sorted(seeds), output
    assert output.count(ENDED) == len(seeds)
    assert f"12 graphs from seed 0: {len(seeds)} disagreement" in " ".join(completed.stdout.split())


# ---------------------------------------------------------------------- the same as without


def told(report: Any) -> list[tuple[Any, ...]]:
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
    heard: list[tuple[int, int]] = []
    there = conform(**options, isolate=True, progress=lambda done, count, outcome: heard.append((done, count)))
    assert told(there) == told(conform(**options))
    assert heard == [(n + 1, len(there.outcomes)) for n in range(len(there.outcomes))]
