"""Locks of records, and several processes on one cache: one compile per signature, and nothing broken by who is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import xrt
from tests.cache.saving import Saving
from tests.hanging import PATIENCE, wait_until
from tests.module.test_faults import X, chain
from xrt.cache import Store
from xrt.engines import CompileContext, Executable
from xrt.errors import CompileFailed
from xrt.graph import Function


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.cache.records.LOCK_TIMEOUT_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_lock_excludes_other_holders_until_it_is_released(tmp_path: Path) -> None:
    with Store(tmp_path).lock("abcd") as first:
        (path,) = (tmp_path / "xrt-cache" / "locks").iterdir()
        assert first and path.stat().st_mode & 0o777 == 0o600
        with Store(tmp_path).lock("abce") as second, Store(tmp_path).lock("bcde") as other:
            assert not second and other, "keys with the same beginning share a lock"
    with FileLock(path), Store(tmp_path).lock("abcd") as again:
        assert not again
    with Store(tmp_path).lock("abcd") as again:
        assert again


@pytest.mark.usefixtures("impatient")
def test_what_cannot_be_locked_is_used_without(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (store.root / "locks").mkdir(parents=True)
    (store.root / "locks" / "abc").symlink_to(tmp_path / "other")
    with store.lock("abcd") as locked:
        assert not locked
    assert not (tmp_path / "other").exists()


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


BLOCKED = "XRT_TEST_BLOCKED"  # the path of a file: compiles wait while it exists


@dataclass(frozen=True)
class Waiting(Saving):
    def compile(self, function: Function, context: CompileContext) -> Executable:
        self.note("compile")
        while Path(os.environ[BLOCKED]).exists():
            time.sleep(0.02)
        return super().compile(function, context)


def kill_worker(module: xrt.XRTModule, engine: Waiting) -> None:
    pid = int(Path(engine.journal).read_text().split()[-1])
    assert pid != os.getpid()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (kill_worker, "its process was ended by SIGKILL: a crash, or the system had no memory left"),
        (lambda module, engine: module.close(), "its process ended when the module was closed"),
    ],
    ids=["killed by the system", "closed by the user"],
)
def test_a_compile_that_was_ended_from_outside_is_repeated(
    end: Callable[[xrt.XRTModule, Waiting], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.touch()
    monkeypatch.setenv(BLOCKED, str(blocked))
    engine = Waiting(journal=str(tmp_path / "journal"))
    options = {"engine": engine, "isolate": "saving", "strict": True, "cache": tmp_path / "cache"}
    with xrt.XRTModule(chain("Abs", "Exp"), **options) as module, ThreadPoolExecutor(1) as pool:
        call = pool.submit(module, X)
        wait_until(lambda: engine.count("compile") > 0)
        end(module, engine)
        with pytest.raises(CompileFailed, match=reason):
            call.result(PATIENCE)
    blocked.unlink()
    with xrt.XRTModule(chain("Abs", "Exp"), **options) as module:
        np.testing.assert_allclose(module(X), np.exp(np.abs(X)), rtol=1e-5)
