"""Locks of records: threads and processes exclude each other."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from xrt.cache import Store

HOLDER = """
import sys
from pathlib import Path
from xrt.cache import Store
with Store(Path(sys.argv[1])).lock("abcd") as locked:
    print(locked, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.cache.records.PATIENCE", 0.0)


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


@pytest.mark.slow
def test_who_waits_gets_the_lock_when_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.cache.records.PATIENCE", 60.0)
    results: list[bool] = []

    def wait() -> None:
        with Store(tmp_path).lock("abcd") as locked:
            results.append(locked)

    waiting = threading.Thread(target=wait)
    with Store(tmp_path).lock("abcd"):
        waiting.start()
        waiting.join(0.05)
        assert not results
    waiting.join(60)
    assert results == [True]


def test_a_process_that_ends_releases_its_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with Store(tmp_path).lock("abcd") as locked:
            assert not locked
        holder.kill()
        holder.wait()
    with Store(tmp_path).lock("abcd") as locked:
        assert locked


def test_what_cannot_be_locked_is_used_without(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (store.root / "locks").mkdir(parents=True)
    (store.root / "locks" / "abc").symlink_to(tmp_path / "other")
    with store.lock("abcd") as locked:
        assert not locked
    assert not (tmp_path / "other").exists()
