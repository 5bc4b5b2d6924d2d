"""Stored plans whose files change, or are damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.module.test_stored_plans import ENGINES, files, free_batch, inputs, module, network, scaled, uses_plan
from xrt import XRTModule
from xrt.cache import CompileCache, open_disk_tier
from xrt.errors import BundleError, CacheWarning, ModelError
from xrt.formats.container import Container
from xrt.formats.onnx import save
from xrt.formats.program_record import (
    KIND,
    parse,
)
from xrt.graph import Constant, Function
from xrt.graph.deferred_function import DeferredFunction
from xrt.module import stored_plans


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as settled that were written just now."""
    monkeypatch.setattr("xrt.formats.output.SETTLED", -(10**12))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(network(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


# ---------------------------------------------------------------------- files that change later


def replace_file(path: Path) -> None:
    save(scaled(2.0), path)


def rewrite_file(path: Path) -> None:
    """Write other weights into the same file, and give it its former time."""
    status, copy = path.stat(), path.with_name("copy.onnx")
    save(scaled(2.0), copy)
    with path.open("r+b") as file:
        file.write(copy.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.parametrize("change", [replace_file, rewrite_file, Path.unlink])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_changes_before_the_first_call_gives_no_wrong_numbers(
    path: Path, engine: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    untouched = tmp_path / "untouched.onnx"
    shutil.copy(path, untouched)
    expected = module(path, engine)(*inputs())
    cache = CompileCache(disk=open_disk_tier(directory=tmp_path / "cache"))
    m = XRTModule(path, engine=engine, cache=cache)
    change(path)
    if engine == "ort":  # which reads weights from the model's file
        with pytest.raises(ModelError, match="has changed since the module was made; make a new XRTModule"):
            m(*inputs())
    else:
        np.testing.assert_array_equal(m(*inputs()), expected)
    np.testing.assert_array_equal(XRTModule(untouched, engine=engine, cache=cache)(*inputs()), expected)


@pytest.mark.slow
def test_a_new_signature_after_a_change_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    free_batch(path)
    module(path, "openvino", shapes="each")(np.ones((1, 600), np.float32))
    m = module(path, "openvino", shapes="each")
    m(np.ones((1, 600), np.float32))
    save(scaled(2.0), path)
    with pytest.raises(ModelError, match="has changed since the module was made; make a new XRTModule"):
        m(np.ones((2, 600), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_of_another_fingerprint_is_made_again(path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants may fold to other bits, on another processor say."""
    expected = module(path, engine)(*inputs())
    shutil.rmtree(tmp_entries(path))
    m = module(path, engine)
    real = stored_plans.optimize

    def fold(function: Function, **terms: Any) -> Function:
        found = real(function, **terms)
        return found.replace(constants={name: Constant(one.array * np.float32(1.5)) for name, one in found.constants.items()})

    monkeypatch.setattr(stored_plans, "optimize", fold)
    found = m(*inputs())
    assert not np.array_equal(found, expected)
    assert not any(isinstance(launch.function, DeferredFunction) for launch in m.plan.launches)
    assert m.memory().regions
    np.testing.assert_array_equal(m(*inputs()), found)


def tmp_entries(path: Path) -> Path:
    return path.parent / "cache" / "xrt-cache" / "entries"


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_damaged_plan_counts_as_none_and_is_reported_once(path: Path, at: int) -> None:
    expected = module(path)(*inputs())
    (file,) = files(path)
    data = bytearray(file.read_bytes())
    data[at] ^= 255
    file.write_bytes(data)
    with pytest.warns(CacheWarning, match="could not serve") as caught:
        np.testing.assert_array_equal(module(path)(*inputs()), expected)
    assert len(caught) == 1
    assert uses_plan(module(path))  # it has been written again


def test_a_plan_without_its_executable_is_compiled_again(path: Path) -> None:
    expected = module(path)(*inputs())
    shutil.rmtree(path.parent / "cache" / "xrt-cache" / "entries")
    np.testing.assert_array_equal(module(path)(*inputs()), expected)
    assert uses_plan(module(path))


def test_a_text_that_holds_no_plans_is_refused(path: Path) -> None:
    module(path)(*inputs())
    text = bytes(Container.open(files(path)[0], KIND).section("record"))
    assert parse(text) is not None
    facts = json.loads(text)
    facts["programs"][0]["launches"][0][6] = [["nowhere", "float32", [2]]]
    with pytest.raises(BundleError, match="it holds no programs: ValueError: launch 'xrt_ort_0' does not fit the others"):
        parse(json.dumps(facts).encode())
    for damaged in (b"", b"[]", b"{}", text[:-1], text.replace(b'"files":', b'"places":')):
        with pytest.raises(BundleError, match=r"^it holds no programs"):
            parse(damaged)


MISFITS: dict[str, Callable[[Any], Any]] = {
    "waits for nobody": lambda facts: facts["programs"][0]["launches"][0].__setitem__(3, ["nobody"]),
    "no nodes": lambda facts: facts["programs"][0]["launches"][0].__setitem__(2, []),
    "computes another": lambda facts: facts["programs"][0]["launches"][0].__setitem__(8, ["nowhere"]),
    "other inputs": lambda facts: facts["inputs"][0].__setitem__(0, "other"),
    "no outputs": lambda facts: facts["outputs"].clear(),
    "other shape": lambda facts: facts["programs"][0]["inputs"][0].__setitem__(2, []),
    "other extent": lambda facts: facts["inputs"][0][2].__setitem__(0, 0),
    "other type": lambda facts: facts["inputs"][0].__setitem__(1, "int32"),
    "no shape": lambda facts: facts["programs"][0]["outputs"][0].__setitem__(2, None),
    "key": lambda facts: facts["programs"][0].__setitem__("key", []),
    "no text": lambda facts: facts["programs"][0]["launches"][0].__setitem__(4, "\ud800"),
    "no name": lambda facts: facts["programs"][0]["launches"][0].__setitem__(0, ""),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_text_whose_parts_do_not_fit_is_refused(path: Path, what: str) -> None:
    m = module(path)
    m(*inputs())
    text = bytes(Container.open(files(path)[0], KIND).section("record"))
    facts = json.loads(text)
    MISFITS[what](facts)
    with pytest.raises(BundleError, match="it holds no programs"):
        parse(json.dumps(facts).encode())


def test_a_plan_that_cannot_be_built_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module(path)(*inputs())
    monkeypatch.setattr(stored_plans, "launch_node", lambda *_, **__: [].pop())
    with pytest.warns(CacheWarning, match="does not fit: IndexError"):
        np.testing.assert_array_equal(module(path)(*inputs()), expected)


@pytest.mark.slow
def test_what_cannot_be_kept_is_not(path: Path) -> None:
    module(path, ["ort", "toy"], pins=["Relu=toy"])(*inputs())
    module(path, check="first")(*inputs())
    XRTModule(path.read_bytes(), engine="ort", cache=path.parent / "cache")(*inputs())
    assert files(path) == []
    assert stored_plans.find_stored_plans(path, CompileCache(), None, None) is None  # type: ignore[arg-type]  # no disk, no question
