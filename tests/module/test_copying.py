"""Modules are pickled and copied by what they were made of; other kinds of model are told the next step."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.cache.saving import chain
from tests.exact_errors import raises_exactly
from xrt.cache import CompileCache
from xrt.engines.contract import registry
from xrt.errors import BundleError, ModelError
from xrt.formats import onnx

X = np.arange(4, dtype=np.float32)
EXPORTING = "torch.onnx.export(module, (example,), 'model.onnx', dynamo=True) writes a file that XRT takes"


class Net(xrt.Graph):
    def build(self, x: Any) -> Any:
        return xrt.ops.Relu(x)


def as_path(folder: Path) -> Any:
    onnx.save(chain(3), folder / "m.onnx")
    return folder / "m.onnx"


def as_bytes(folder: Path) -> Any:
    return as_path(folder).read_bytes()


MODELS: list[Callable[[Path], Any]] = [as_path, as_bytes, lambda _: chain(3), lambda _: Net()]
OPTIONS: dict[str, Any] = {"pins": ["name:v2=toy"], "threads": 1, "check": "first", "devices": {"ort": "cpu"}}


@pytest.mark.parametrize(
    "again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, copy.copy], ids=["pickle", "deep", "copy"]
)
@pytest.mark.parametrize("model", MODELS, ids=["path", "bytes", "function", "graph"])
def test_a_module_is_made_again(model: Callable[[Path], Any], again: Callable[[Any], Any], tmp_path: Path) -> None:
    engines: list[Any] = ["ort", registry.create("toy{native=off}")]
    options = {**OPTIONS, "pins": []} if model(tmp_path).__class__ is Net else OPTIONS
    with xrt.XRTModule(model(tmp_path), engines, cache=tmp_path / "cache", **options) as module:
        expected = module(X)
        result = again(module)
    assert result is not module and type(result) is xrt.XRTModule
    np.testing.assert_array_equal(result(X), expected)  # though the first is closed
    assert result.engines == module.engines
    assert result.plan
    assert result.threads == module.threads
    result.close()


@pytest.mark.slow
def test_another_process_runs_it(tmp_path: Path) -> None:
    module = xrt.XRTModule(as_path(tmp_path), "toy", cache=tmp_path / "cache")
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(module))
    program = "import pickle, sys, numpy; print(pickle.load(open(sys.argv[1], 'rb'))(numpy.arange(4, dtype='f4')).tolist())"
    completed = subprocess.run([sys.executable, "-c", program, tmp_path / "m.pickle"], capture_output=True, text=True, cwd="/")
    assert completed.stdout == "[3.0, 4.0, 5.0, 6.0]\n", completed.stderr
    assert len((tmp_path / "m.pickle").read_bytes()) < 2000, "a path, and not the model"


def test_what_cannot_be_pickled_says_what_to_do(tmp_path: Path) -> None:
    advice = "Save a bundle with m.save(path), and xrt.load it where it is needed"

    class Local(Net):
        pass

    with pytest.raises(TypeError) as caught:
        pickle.dumps(xrt.XRTModule(Local(), "toy"))
    local = f"{__name__}.test_what_cannot_be_pickled_says_what_to_do.<locals>.Local"
    assert str(caught.value) == (
        f"this module cannot be pickled, since its model cannot: {local} is not found by that name. {advice}"
    )
    locked = Net()
    locked.lock = threading.Lock()  # type: ignore[attr-defined]  # whatever a user keeps in a graph
    with pytest.raises(TypeError, match=r"since its model cannot: cannot pickle '_thread\.lock' object\. Save a bundle"):
        pickle.dumps(xrt.XRTModule(locked, "toy"))
    with pytest.raises(TypeError, match="this module cannot be pickled, since its options cannot: "):
        pickle.dumps(xrt.XRTModule(chain(), "toy", progress=lambda done, count: None))
    with raises_exactly(
        TypeError, f"a module with a CompileCache of its own cannot be pickled; give cache= a directory. {advice}"
    ):
        pickle.dumps(xrt.XRTModule(chain(), "toy", cache=CompileCache()))
    copy.deepcopy(xrt.XRTModule(chain(), "toy", cache=CompileCache()))
    xrt.XRTModule(chain(), "toy").save(tmp_path / "m.xrt")
    for again in (pickle.dumps, copy.deepcopy):
        with raises_exactly(
            TypeError, "a module from a bundle cannot be pickled or copied; xrt.load the bundle again where it is needed"
        ):
            again(xrt.load(tmp_path / "m.xrt"))


def test_files_of_another_kind_get_the_next_step(tmp_path: Path) -> None:
    bundle = tmp_path / "m.xrt"
    xrt.XRTModule(chain(), "toy").save(bundle)
    with raises_exactly(ModelError, f"'{bundle}' is a bundle, which already has engines and plans: call xrt.load('{bundle}')"):
        xrt.XRTModule(str(bundle), engine="toy")
    model = as_path(tmp_path)
    with raises_exactly(
        BundleError,
        f"'{model}' is not a bundle; its suffix is that of an ONNX model: xrt.XRTModule('{model}', engine=...) runs a model, "
        f"and its save() writes a bundle",
    ):
        xrt.load(model)
    for suffix in (".pt", ".pth"):
        path = tmp_path / f"m{suffix}"
        path.write_bytes(b"PK\3\4")
        with raises_exactly(ModelError, f"'{path}' has the suffix of a PyTorch file; export it to ONNX: {EXPORTING}"):
            xrt.XRTModule(path, engine="toy")
        with pytest.raises(BundleError, match="has the suffix of a PyTorch file"):
            xrt.load(path)


def test_a_module_of_torch_gets_the_next_step() -> None:
    """By the name of a class's module, so that PyTorch is neither needed nor imported."""
    base = type("Module", (), {"__module__": "torch.nn.modules.module", "graph": None})
    net = types.new_class("Net", (base,))
    was_there = "torch" in sys.modules
    with raises_exactly(ModelError, f"a PyTorch model must be exported first: {EXPORTING}"):
        xrt.XRTModule(net(), engine="toy")
    assert ("torch" in sys.modules) == was_there
