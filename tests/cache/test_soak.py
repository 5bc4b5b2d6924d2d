"""The soak, for a moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.slow
def test_a_short_soak_finds_nothing() -> None:
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), "--processes", "3", "--rounds", "1", "--minutes", "0.1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 processes at once: 6 compiles for 6 signatures, results right, cache clean" in done.stdout
    assert "no handle or thread left over" in done.stdout
