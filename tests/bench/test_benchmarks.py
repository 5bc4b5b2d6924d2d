"""The benchmarks run, and answer what they ask. No time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def figures(script: str, *arguments: str) -> Any:
    command = [sys.executable, str(FOLDER / script), *arguments, "--rounds", "2", "--threads", "1"]
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=1800, check=True)
    return json.loads(printed.stdout)


@pytest.mark.full
@pytest.mark.slow
def test_each_way_to_call_is_set_against_the_engines_own() -> None:
    result = figures("dispatch.py", "--engines", "ort,toy", "--floats", "1000")
    assert [row["engine"] for row in result["tiny"]] == ["ort", "toy"]
    assert set(result["tiny"][0]) == {"engine", "module", "named", "out", "bound", "own"}
    assert set(result["large"][0]) == {"engine", "module", "out", "bound", "own", "own and copy"}
    assert set(result["threaded"][0]) == {"engine", "6 floats", "1000 floats"}
    assert all(row["own"]["ratio"]["median"] == 1 for row in (*result["tiny"], *result["large"]))


@pytest.mark.full
@pytest.mark.slow
def test_regions_are_set_against_themselves_alone() -> None:
    small = ("--channels", "2", "--size", "4", "--engines", "ort,toy", "--side", "16", "--pair-rounds", "2")
    result = figures("regions.py", "--counts", "2,16", "--others", "toy", *small)
    assert [row["regions"] for row in result["cuts"]] == [2, 16]
    assert [(row["what"], row["regions"]) for row in result["alternations"]] == [("ort, toy", 32)]
    for row in (*result["cuts"], *result["alternations"]):
        assert {"to_regions_alone", "to_one_region", "lost_fusion_ms", "idle_cpu"} < set(row)
    kinds = ["chain", "softmax", "layernorm", "matmul", "conv"]
    assert [(row["engines"], row["kind"]) for row in result["pairs"]] == [(["ort", "toy"], kind) for kind in kinds]
    assert all("to_parts" in row for row in result["pairs"])
    assert [(row["engine"], row["kind"]) for row in result["memory"]] == [(e, kind) for e in ("ort", "toy") for kind in kinds]


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"


@pytest.fixture(scope="module")
def memory_figures() -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--megabytes", "60", "--large", "0", "--engines", "ort", "--regions", "8", "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("form", ["external", "inline"])
def test_the_peak_stays_within_the_target(memory_figures: dict[str, Any], form: str) -> None:
    (row,) = memory_figures["forms"][form]
    for cut in (row["xrt"]["8"], row["xrt"]["8"]["again"]):
        assert "failed" not in cut, cut
        assert cut["launches"] == 8
        assert 40e6 < cut["packed"] < 80e6  # all but the embedding
        assert cut["within"], cut
        assert cut["memory"].startswith("weights ")
        assert cut["peak"] >= cut["now"]


ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.slow
def test_a_short_soak_finds_nothing() -> None:
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), "--processes", "3", "--rounds", "1", "--minutes", "0.1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "3 processes at once: 6 compiles for 6 signatures, results right, cache clean" in completed.stdout
    assert "no handle or thread left over" in completed.stdout
