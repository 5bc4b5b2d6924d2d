"""A process that is killed in the middle of a step goes on from its last checkpoint with the numbers of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.killed import STEPS, make_module, run

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("run_of_engine", [9, 14, 25])
def test_a_restored_run_gives_the_same_numbers(run_of_engine: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.training.killed", str(tmp_path), str(run_of_engine)]
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with make_module() as whole, make_module() as resumed:
        wanted = run(whole, STEPS)
        resumed.restore(tmp_path / "checkpoint")
        completed = resumed.steps
        assert 0 < completed < STEPS and completed % 2 == 0
        result = run(resumed, STEPS)
        assert result == wanted[completed:]
        for name, value in whole.state_dict().items():
            np.testing.assert_array_equal(resumed.state_dict()[name], value)
