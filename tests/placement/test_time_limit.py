"""Abandoned work does not keep a process alive, and does not spoil its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, sys
from xrt.processes.background import OutOfTime, within

def work():
    {work}

try:
    within(0.5, work)
except OutOfTime:
    print("abandoned")
sys.exit(3)
"""
PACKAGE = """
import time, weakref

class Kept: ...

kept = Kept()
weakref.finalize(kept, lambda: print("a finalizer of a package that is half there"))
time.sleep(3600)
"""


@pytest.mark.parametrize("work", ["ctypes.CDLL(None).sleep(3600)", "import time; time.sleep(3600)", "import half_there"])
def test_a_process_ends_with_its_status_while_work_goes_on(work: str, tmp_path: Path) -> None:
    (tmp_path / "half_there.py").write_text(PACKAGE, encoding="utf-8")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT.format(work=work)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "abandoned\n", "")


def test_work_that_comes_back_at_the_end_ends_no_process() -> None:
    script = SCRIPT.format(work="ctypes.CDLL(None).usleep(1_500_000); print('back')")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert done.stderr == ""
