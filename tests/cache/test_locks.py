"""Locks of files: threads and processes exclude each other, with those of `filelock` too."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from xrt.cache.disk import store
from xrt.cache.disk.store import acquire_lock

HOLDER = """
import sys
from pathlib import Path
from xrt.cache.disk.store import acquire_lock
release = acquire_lock(Path(sys.argv[1]), 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["system", "library"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a lock may be, of the system or, as on Windows, of the library."""
    if request.param == "library":
        monkeypatch.setattr(store, "fcntl", None)
    return tmp_path / "lock"


def test_a_lock_excludes_other_holders_until_it_is_released(path: Path) -> None:
    release = acquire_lock(path, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match=r"lock"):
        acquire_lock(path, 0)
    with pytest.raises(Timeout):
        FileLock(path).acquire(timeout=0)
    release()
    with FileLock(path), pytest.raises(OSError, match=r"lock"):
        acquire_lock(path, 0.03)
    acquire_lock(path, 0)()


@pytest.mark.slow
def test_who_waits_gets_the_lock_when_it_is_released(path: Path) -> None:
    release, got = acquire_lock(path, 0), threading.Event()

    def wait() -> None:
        acquire_lock(path, 60)()
        got.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not got.wait(0.05)
    release()
    assert got.wait(60)
    waiting.join()


def test_a_process_that_ends_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match=r"another process has held '.*lock' for 0 seconds"):
            acquire_lock(path, 0)
        holder.kill()
        holder.wait()
    acquire_lock(path, 0)()


def test_what_is_no_file_to_lock_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing"):
        acquire_lock(tmp_path / "missing" / "lock", 0)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"link"):
        acquire_lock(tmp_path / "link", 0)
