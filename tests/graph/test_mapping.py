"""Constants in mapped files: recognised wherever they have got to, hashed once per file, and their pages let go."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xrt.formats import output
from xrt.formats.onnx import load, save
from xrt.formats.output import MIN_STAMP_AGE_NS
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.graph.constants import find_file_offset, is_mapped, release_pages

pytestmark = pytest.mark.slow

SIZE = (1 << 20) + 64


def saved(path: Path) -> Function:
    """Save a model of two constants and load it."""
    rng = np.random.default_rng(0)
    weights = {name: Constant(rng.standard_normal(SIZE).astype(np.float32)) for name in ("a", "b")}
    type_ = TensorType(DType.FLOAT32, (SIZE,))
    nodes = Node("Add", ("x", "a"), ("s",)), Node("Add", ("s", "b"), ("y",))
    save(Function((Value("x", type_),), (Value("y", type_),), nodes, weights, {"": 21}), path, external_data=True)
    return load(path)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is written in the test have been written a while ago."""
    now = output.time.time_ns
    monkeypatch.setattr(output.time, "time_ns", lambda: now() + 2 * MIN_STAMP_AGE_NS)


def test_a_place_survives_views_and_copies_have_none(tmp_path: Path) -> None:
    function = saved(tmp_path / "m.onnx")
    a, b = (function.constants[name].array for name in "ab")
    (first, start), (second, later_) = find_file_offset(a) or (None, 0), find_file_offset(b) or (None, 0)
    assert first is second is not None
    assert later_ > start
    np.testing.assert_array_equal(np.frombuffer(first, np.float32, SIZE, start), a)
    assert find_file_offset(a[16:].reshape(-1, 4).view(np.uint32)) == (first, start + 64)
    assert find_file_offset(a[::2]) is None
    assert find_file_offset(a.copy()) is None
    assert [is_mapped(x) for x in (a, a[::2], a.copy())] == [True, True, False]


def test_an_array_mapped_by_the_caller_is_mapped_but_not_ours(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(SIZE, dtype=np.float32))
    array = np.load(tmp_path / "w.npy", mmap_mode="c")
    array[0] = 5
    release_pages(array)
    assert is_mapped(array)
    assert find_file_offset(array) is None
    assert array[0] == 5  # dropping its pages would have lost what the caller wrote


def resident(array: np.ndarray[Any, Any]) -> int:
    """Return how many kilobytes of the mapping that the array lies in are in memory."""
    address = array.ctypes.data
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if "-" in words[0] and ":" not in words[0]:
            start, end = (int(x, 16) for x in words[0].split("-"))
            inside = start <= address < end
        elif inside and words[0] == "Rss:":
            return int(words[1])
    raise AssertionError("the array lies in no mapping")


def test_released_pages_are_let_go_and_come_back(tmp_path: Path) -> None:
    a = saved(tmp_path / "m.onnx").constants["a"].array
    total = a.sum()
    before = resident(a)
    release_pages(a)
    assert before >= a.nbytes // 1024
    assert resident(a) <= before - a.nbytes // 1024 + 2 * mmap.PAGESIZE // 1024
    assert a.sum() == total


def test_hashing_leaves_no_pages_behind(tmp_path: Path) -> None:
    function = saved(tmp_path / "m.onnx")
    assert function.fingerprint
    assert resident(function.constants["a"].array) < 100


def test_a_file_with_other_content_is_another(tmp_path: Path, later: None) -> None:
    function = saved(tmp_path / "m.onnx")
    before = function.fingerprint
    (data,) = tmp_path.glob("*.data")
    with data.open("r+b") as file:
        file.write(b"\1\2\3\4")
    os.utime(data, ns=(0, 0))  # as a copy that keeps times would
    assert load(tmp_path / "m.onnx").fingerprint != before


def test_no_large_array_is_copied_by_a_constant() -> None:
    for dtype in (np.float32, np.int8, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4):
        array = np.ones(100, np.int8).astype(dtype)
        assert np.shares_memory(Constant(array).array, array)
    assert Constant(np.array([0xF1, 0x02], np.uint8).view(ml_dtypes.uint4)).array.view(np.uint8).tolist() == [1, 2]
