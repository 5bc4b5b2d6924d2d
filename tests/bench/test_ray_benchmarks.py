"""The benchmarks on Ray run, and answer what they ask. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parents[2]


def figures(name: str) -> Any:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True, cwd=TOP)
    return json.loads(printed.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.slow
def test_a_batch_job_is_set_against_one_process_and_loses_no_row() -> None:
    found = figures("ray_batch")
    for what in ("images", "texts"):
        assert set(found[what]["ratios"]) == {"cluster/process", "data/tuned", "data/default"}
        assert all(rate > 0 for rate in found[what]["rows_per_second"].values())
    assert found["kills"]["right"] == found["kills"]["kills"] == 1
