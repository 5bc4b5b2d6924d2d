"""A compile whose worker was killed from outside is repeated by the next module: the engine did not fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.cache.saving import Saving
from tests.hanging import PATIENCE, wait_until
from tests.module.test_faults import X, chain
from xrt.engines import CompileContext, Executable
from xrt.errors import CompileFailed
from xrt.graph import Function

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
