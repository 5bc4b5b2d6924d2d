"""Several processes on one cache: one compile per signature, and nothing broken by whoever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cache.saving import Saving
from xrt.cache import Store

ROOT = Path(__file__).parents[2]
REGIONS = 6


def start(cache: Path, journal: Path, how: str = "once") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cache.saving", str(cache), str(journal), how]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finish(child: subprocess.Popen[str]) -> None:
    _, errors = child.communicate(timeout=1800)
    assert child.returncode == 0, errors


@pytest.mark.slow
def test_eight_processes_compile_each_signature_once(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    children = [start(tmp_path / "cache", journal) for _ in range(8)]
    for child in children:
        finish(child)
    engine = Saving(journal=str(journal))
    assert engine.count("compile") == REGIONS
    assert engine.count("load") == 7 * REGIONS
    assert Store(tmp_path / "cache").find_damaged() == {}


@pytest.mark.full
@pytest.mark.slow
def test_processes_killed_at_random_moments_break_nothing(tmp_path: Path) -> None:
    cache, journal, rng = tmp_path / "cache", tmp_path / "journal", random.Random(5)
    engine = Saving(journal=str(journal))
    for _ in range(5):
        children = [start(cache, journal, "forever") for _ in range(2)]
        while not journal.exists():
            time.sleep(0.02)  # until one is at work
        time.sleep(rng.uniform(0.0, 0.5))
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        journal.unlink()
        assert Store(cache).find_damaged() == {}
        finish(start(cache, journal))
        assert engine.count("compile") + engine.count("load") == REGIONS
        journal.unlink()
    store = Store(cache)
    store.sweep()
    assert list((store.root / "work").iterdir()) == []
    finish(start(cache, journal))
    assert engine.count("load") == REGIONS
