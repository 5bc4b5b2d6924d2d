"""What engines import beside their libraries, and how a module is hidden from one."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xrt.engines.toolkit.libraries import hide_module

ENGINES = ("toy", "ort", "tvm", "openvino", "xla", "iree")
RUNNING = """
import sys
import numpy as np, xrt
from xrt.graph import DType, Function, Node, TensorType, Value

type_ = TensorType(DType.FLOAT32, (3,))
function = Function((Value("x", type_),), (Value("y", type_),), (Node("Neg", ("x",), ("y",)),), opsets={"": 20})
module = xrt.XRTModule(function, engine=sys.argv[1], strict=True)
assert module(np.ones(3, "float32")).tolist() == [-1, -1, -1]
assert "torch" not in sys.modules, "it was imported"
import torch
assert torch.NAME == "a stand-in"
assert module(np.zeros(3, "float32")).tolist() == [0, 0, 0]
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder with a package that is called torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('NAME = "a stand-in"\n', encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_imports_torch(engine: str, stand_in: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(stand_in)!r})\n{RUNNING}", engine]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_a_hidden_module_is_there_for_other_threads_and_afterwards(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stand_in / "torch").rename(stand_in / "hidden_here")
    monkeypatch.syspath_prepend(str(stand_in))
    found: list[str] = []

    def load() -> None:
        found.append(importlib.import_module("hidden_here").NAME)
        del sys.modules["hidden_here"]

    with hide_module("hidden_here"):
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hidden_here'$"):
            load()
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    load()
    assert found == ["a stand-in", "a stand-in"]


def test_a_module_that_was_imported_before_stays(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(stand_in))
    (stand_in / "torch").rename(stand_in / "known_before")
    known = importlib.import_module("known_before")
    monkeypatch.setitem(sys.modules, "known_before", known)
    with hide_module("known_before"):
        assert importlib.import_module("known_before") is known


def test_what_is_hidden_is_found_again_after_an_error() -> None:
    before = list(sys.meta_path)
    with pytest.raises(ValueError, match=r"^broken$"), hide_module("anything"):
        raise ValueError("broken")
    assert sys.meta_path == before
