"""The index of a bundle: a load reads no node and imports no ONNX; what the index lacks comes from the manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.test_bundle import X, perceptron, saved
from xrt.cache import CompileCache
from xrt.formats.bundle import BundleFile
from xrt.formats.container import Container, ContainerWriter
from xrt.module.bundle_index import SECTION, read_index

TOP = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def write_index(path: Path, index: bytes | None) -> None:
    """Replace the index of a bundle; None removes it."""
    container = Container.open(path, "bundle")
    sections = {name: bytes(container.section(name)) for name in container.sections if name != SECTION}
    with path.with_suffix(".new").open("wb") as file:
        writer = ContainerWriter(file, "bundle")
        for name, data in ({} if index is None else {SECTION: index}).items() | sections.items():
            writer.add(name, data)
        writer.finish()
    path.with_suffix(".new").replace(path)


@pytest.mark.slow
def test_a_load_in_a_new_process_imports_no_onnx(path: Path) -> None:
    expected = saved(path)
    np.save(path.parent / "x.npy", X)
    code = (
        "import sys, json, numpy as np, xrt\n"
        "y = xrt.load(sys.argv[1])(np.load(sys.argv[2])); np.save(sys.argv[3], y)\n"
        "roots = ('xrt', 'onnx', 'google', 'msgspec')\n"
        "print(json.dumps([name for name in sys.modules if name.partition('.')[0] in roots]))"
    )
    files = [str(path), str(path.parent / "x.npy"), str(path.parent / "y.npy")]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    done = subprocess.run([sys.executable, "-c", code, *files], env=environment, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert not {"onnx", "google", "msgspec", "xrt.formats.protobuf", "xrt.worker"} & {*loaded}
    assert np.array_equal(np.load(files[2]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "toy", ["tvm", "ort"]])
def test_what_the_index_lacks_comes_from_the_manifest(path: Path, engine: Any) -> None:
    pins = ["Softmax=ort"] if isinstance(engine, list) else []
    with xrt.XRTModule(perceptron(), engine=engine, cache=CompileCache(), pins=pins) as module:
        expected = module(X)
        module.save(path)
        with xrt.load(path, cache=CompileCache()) as loaded:
            assert np.array_equal(loaded(X), expected)
            assert loaded.plan == module.plan
            assert str(loaded.plan) == str(module.plan)
            assert len(loaded.plan.launches[0].function.nodes) > 0
            assert loaded.verify(X)


@pytest.mark.parametrize("fault", ["none", "no JSON", "a list", "format", "types", "launches"])
def test_an_index_that_is_not_understood_is_not_used(path: Path, fault: str) -> None:
    expected = saved(path)
    index = json.loads(bytes(BundleFile(path).find_section(SECTION) or b""))
    index |= {"format": {"format": 99}, "types": {"strict": 1}, "launches": {"programs": [{}]}}.get(fault, {})
    texts = {"none": None, "no JSON": b"{", "a list": b"[]"}
    write_index(path, texts.get(fault, json.dumps(index).encode()))
    assert read_index(BundleFile(path)) is None
    with xrt.load(path, cache=CompileCache()) as loaded:
        assert np.array_equal(loaded(X), expected)


def test_an_index_of_another_region_is_noticed_when_its_nodes_are_read(path: Path) -> None:
    expected = saved(path)
    index = json.loads(bytes(BundleFile(path).find_section(SECTION) or b""))
    index["programs"][0]["plan"]["launches"][0][5] = "0" * 64
    index["programs"][0]["regions"][0][0] = ""  # no compiled form: it is compiled from the nodes
    write_index(path, json.dumps(index).encode())
    with xrt.load(path, cache=CompileCache()) as loaded:
        assert np.array_equal(loaded(X), expected)
