"""The record of a bundle: a load reads no node and imports no ONNX; what the record lacks comes from the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.test_bundle import X, perceptron, saved
from xrt.cache import CompileCache
from xrt.errors import BundleError
from xrt.formats.container import Container, ContainerWriter

TOP = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.xrt"


def write_record(path: Path, text: bytes) -> None:
    """Replace the record of a bundle."""
    container = Container.open(path, "bundle")
    sections = {name: bytes(container.section(name)) for name in container.sections}
    with path.with_suffix(".new").open("wb") as file:
        writer = ContainerWriter(file, "bundle")
        for name, data in (sections | {"manifest": text}).items():
            writer.add(name, data)
        writer.finish()
    path.with_suffix(".new").replace(path)


def read_record(path: Path) -> Any:
    return json.loads(bytes(Container.open(path, "bundle").section("manifest")))


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
def test_what_the_record_lacks_comes_from_the_plan(path: Path, engine: Any) -> None:
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


FAULTS: dict[str, Callable[[Any], object]] = {
    "no facts": lambda record: record.update(facts={}),
    "types": lambda record: record["facts"].update(strict=1),
    "engines": lambda record: record["facts"].update(engines=[3]),
    "clustering": lambda record: record["facts"].update(clustering={"pins": [1]}),
    "an option that is none": lambda record: record["facts"].update(execution={"dump_subgraph_dir": "here"}),
    "launches": lambda record: record.update(programs=[{}]),
    "a model that is not there": lambda record: record["programs"][0].update(launches=[], plan="nowhere"),
}


@pytest.mark.parametrize("fault", [*FAULTS, b"", b"{", b"[]", b"3", b"[" * 100_000])
def test_a_record_that_is_not_understood_is_an_error(path: Path, fault: str | bytes) -> None:
    saved(path)
    record = read_record(path)
    if isinstance(fault, str):
        FAULTS[fault](record)
    write_record(path, json.dumps(record).encode() if isinstance(fault, str) else fault)
    with pytest.raises(BundleError, match=r"^cannot load '.*model\.xrt': "):
        xrt.load(path, cache=CompileCache())


def test_a_record_of_another_region_is_noticed_when_its_nodes_are_read(path: Path) -> None:
    expected = saved(path)
    record = read_record(path)
    record["programs"][0]["launches"][0][5] = "0" * 64
    record["programs"][0]["compiled"][0][0] = ""  # no compiled form: it is compiled from the nodes
    write_record(path, json.dumps(record).encode())
    with xrt.load(path, cache=CompileCache()) as loaded:
        assert np.array_equal(loaded(X), expected)
