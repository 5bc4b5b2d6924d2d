"""What lies in the current directory is data: no command, and no process that a command starts, imports from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.module.test_faults import X, chain
from xrt.formats import onnx
from xrt.processes import end, start_python

PLANTED = """
import _io
_io.open(__file__ + ".ran", "w").close()
raise ImportError("this file lies in the current directory and must not run")
"""
NAMES = ("onnxruntime", "tvm", "openvino", "json", "numpy", "socket", "statistics", "xrt", "sitecustomize")
LIMIT = 600
"""Seconds after which a command counts as hung."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, its input, and modules by the names of libraries."""
    place = tmp_path / "downloaded"
    place.mkdir()
    onnx.save(chain("Abs", "Neg", "Exp"), place / "m.onnx")
    np.save(place / "x.npy", X)
    for name in NAMES:
        (place / f"{name}.py").write_text(PLANTED, encoding="utf-8")
    return place


def command(folder: Path, *arguments: str, more: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder as its script does, which has no current directory in its search path either."""
    start = [sys.executable, "-P", "-m", "xrt.cli", *arguments]
    environment = {**os.environ, "XRT_CACHE_DIR": str(folder.parent / "cache"), **more}
    return subprocess.run(start, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ran"))


COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "m.onnx", "--engine", "ort", "-i", "x.npy"),
    "run --isolate": ("run", "m.onnx", "--engine", "ort", "-i", "x.npy", "--isolate", "ort"),
    "run --isolate-run": ("run", "m.onnx", "--engine", "ort", "-i", "x.npy", "--isolate", "ort", "--isolate-run"),
    "run iree": ("run", "m.onnx", "--engine", "iree", "-i", "x.npy"),
    "tune": ("tune", "m.onnx", "--engines", "ort,toy", "--budget", "60s"),
    "lock": ("lock", "m.onnx", "--engines", "ort,toy", "--budget", "60s", "--gate", "1s", "-o", "m.lock"),
    "engines": ("engines",),
    "doctor": ("doctor",),
    "bench": ("bench", "m.onnx", "--engine", "ort", "--rounds", "2"),
    "conformance": ("conformance", "ort", "--cases", "test_abs*"),
    "fuzz": ("fuzz", "--engines", "ort", "--count", "2"),
    "verify": ("verify", "m.onnx", "--engine", "ort"),
}


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_no_code_of_the_current_directory(name: str, folder: Path) -> None:
    done = command(folder, *COMMANDS[name])
    assert (done.returncode, ran(folder)) == (0, []), done.stderr


@pytest.mark.full
def test_the_process_that_confirms_a_regression_runs_no_code_of_the_current_directory(folder: Path) -> None:
    """The lock says that the plan was a million times as quick, so that a second process is asked, which says the same."""
    locked = command(folder, "lock", "m.onnx", "--engines", "ort,toy", "--budget", "40s", "--gate", "1s", "-o", "m.lock")
    assert locked.returncode == 0, locked.stderr
    facts = json.loads((folder / "m.lock").read_text())
    facts["baseline"].update(ratio=1e-6, low=9e-7, high=2e-6)
    (folder / "m.lock").write_text(json.dumps(facts))
    done = command(folder, "check", "m.lock", "--budget", "2s", "--json")
    assert (done.returncode, json.loads(done.stdout)["state"], ran(folder)) == (1, "regressed", []), done.stderr


# ---------------------------------------------------------------------- the environment of a Python child


def child(entry: str, *arguments: str, **more: str) -> str:
    pipe = subprocess.PIPE
    process = start_python(entry, *arguments, environment=more, stdout=pipe, stderr=pipe, text=True)
    try:
        written, said = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    assert process.returncode == 0, said
    return str(written)


@pytest.mark.slow
def test_a_child_imports_from_where_its_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_there.py").write_text("import sys\ndef main(*given):\n    print(*given, sys.flags.safe_path)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert child("only_there:main", "a", "b c") == "a b c True\n"


def test_a_child_is_not_asked_to_turn_to_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    startup = tmp_path / "startup.py"
    startup.write_text("print('started up')")
    monkeypatch.setenv("PYTHONSTARTUP", str(startup))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    (tmp_path / "shown.py").write_text(
        "from os import environ\ndef main():\n    print(*map(environ.get, ['PYTHONINSPECT', 'PYTHONSTARTUP', 'KEPT']))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert child("shown:main", KEPT="x") == "None None x\n"


def test_the_users_own_search_path_holds_in_a_child(folder: Path) -> None:
    """Who names a folder in PYTHONPATH means it, the current one too."""
    (folder / "sitecustomize.py").unlink()
    done = command(folder, *COMMANDS["run --isolate"], more={"PYTHONPATH": str(folder)})
    assert done.returncode != 0
    assert ran(folder) != []


def test_a_folder_that_cannot_be_named_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its halves would be other folders, one of them in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "one:two"))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "json.py").write_text(PLANTED)
    assert child("json:loads", "null") == ""
    assert ran(tmp_path / "two") == []
