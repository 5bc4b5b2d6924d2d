"""A full disk costs a compile and a warning, never the run: on each engine that saves, with a disk that is truly full."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cache.full import run_on_full_disk
from tests.cache.saving import chain
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.errors import CompileRefused

ENGINES = ["tvm", "ort", "openvino", "xla", "iree"]
EXPECTED = (np.arange(4) + 15.0).tolist()


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("limit", [False, True], ids=["a disk without room", "files that may not grow"])
@pytest.mark.parametrize("spec", ENGINES)
def test_a_disk_without_room_ends_no_run(spec: str, limit: bool, tmp_path: Path) -> None:
    completed = run_on_full_disk(tmp_path / "full", spec, limit=limit)
    assert completed["results"] == EXPECTED
    assert completed["left"] == []
    assert "Traceback" not in completed["stderr"]
    if not completed["mounted"]:  # files could not grow, or nobody may mount here
        return
    assert completed["writes"] == 0
    of_cache = [warning for warning in completed["warnings"] if warning.startswith("the compile cache in ")]
    assert len(set(of_cache)) == 1  # one from each cache that uses the folder
    assert "could not be used: [Errno 28] No space left on device. XRT compiles what is missing" in of_cache[0]
    assert completed["folder"] == ["CACHEDIR.TAG", "xrt-cache"]


@pytest.mark.slow
def test_an_object_goes_through_memory_and_what_does_not_fit_is_an_error(tmp_path: Path) -> None:
    engine = registry.create("tvm")
    executable = engine.compile(chain(1), CompileContext())
    assert len(engine.save(executable, CompileContext(workdir=tmp_path))) > 10_000
    with pytest.raises(OSError, match="No such file or directory"):
        engine.save(executable, CompileContext(workdir=tmp_path / "gone"))


def test_a_program_is_not_saved_where_its_object_might_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from xrt.engines.tvm import serialization

    engine = registry.create("tvm")
    executable = engine.compile(chain(1), CompileContext())
    monkeypatch.setattr(serialization.resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    with pytest.raises(CompileRefused) as caught:
        engine.save(executable, CompileContext(workdir=tmp_path))
    assert str(caught.value) == (
        "LLVM ends the process if it cannot write a file, and this one may not write files over 1048576 bytes (ulimit -f)"
    )
