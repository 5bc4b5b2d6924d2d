"""``xrt check`` on the inputs that a lock was measured on, from files or drawn by a seed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.locks import BUDGET, NEVER, altered
from tests.cli.test_cache_and_bundles import call
from xrt.cli import tune
from xrt.formats import onnx
from xrt.formats.placement_file import PlacementFile, read_placement
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.models import sample_inputs
from xrt.passes import specialize

pytestmark = [pytest.mark.usefixtures("cache_of_place"), pytest.mark.sample(3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a model, with one for its lock."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "locks").mkdir()
    return folder


@pytest.fixture(scope="module")
def of_four(place: Path) -> Path:
    """A model of any batch, and its lock for inputs of which one is from a file, and says that it is of four."""
    rows = TensorType(DType.FLOAT32, ("batch", 3))
    nodes = (Node("Add", ("x", "z"), ("s",), name="add"), Node("Exp", ("s",), ("e",), name="exp"), Node("Cos", ("e",), ("y",)))
    inputs = (Value("x", rows), Value("z", rows))
    onnx.save(Function(inputs, (Value("y", rows),), nodes, opsets={"": 20}, name="rows"), place / "rows.onnx")
    np.save(place / "x.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    return place / "rows.onnx"


@pytest.fixture
def rows(of_four: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    target = place / "locks" / "rows.lock"
    if not target.exists():
        data = ("--input", f"x={place / 'x.npy'}", "--seed", "7")
        code, _, err = call(capsys, "lock", str(of_four), "-e", "ort,toy", "-o", str(target), *data, *BUDGET)
        assert code == 0, err
    (tmp_path / "locks").mkdir()
    for file in (of_four, place / "x.npy"):
        shutil.copy(file, tmp_path)
    return Path(shutil.copy(target, tmp_path / "locks"))


@pytest.mark.slow
def test_a_bundle_has_the_sizes_and_the_plan_of_a_lock(
    of_four: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.xrt"
    data = ("compile", str(of_four), "-e", "ort,toy,auto", "--lock", str(rows), "-o", str(target))
    code, out, err = call(capsys, *data)
    assert (code, err) == (0, "") and "placed by a lock: " in out, err
    code, out, err = call(capsys, *data, "--dim", "batch=2")
    assert code == 2 and "is for --dim batch=4, and --dim batch=2 was given" in err
    code, out, err = call(capsys, *data, "--dim", "batch=4", "--dim", "batch=8")
    assert code == 2 and "a lock is for one size of each dim" in err


def test_a_lock_that_does_not_hold_makes_no_bundle(
    of_four: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.xrt"
    other = altered(rows, lambda facts: facts["model"].update(fingerprint="0" * 64))
    code, _, err = call(capsys, "compile", str(of_four), "-e", "ort,toy,auto", "--lock", other, "-o", str(target))
    assert code == 2 and "does not hold: the model 'rows' had fingerprint 000000000000" in err and not target.exists()


@pytest.mark.full
def test_a_lock_tells_what_it_was_measured_on(rows: Path) -> None:
    result = read_placement(rows)
    assert result.inputs == {"x": "float32[4,3]", "z": "float32[4,3]"}, "the other one is as large"
    assert result.values == {"x": "../x.npy"} and result.model["seed"] == "7"


@pytest.mark.slow
def test_a_check_is_made_on_what_the_lock_was_measured_on(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    checked = tune.check_module

    def noted(module: Any, lock: PlacementFile, values: Any, *more: Any) -> Any:
        seen.extend(values)
        return checked(module, lock, values, *more)

    monkeypatch.setattr(tune, "check_module", noted)
    code, out, _ = call(capsys, "check", str(rows), "--budget", "1s", "--max-regress", NEVER)
    assert (code, "not where it was locked" in out) == (0, False)
    np.testing.assert_array_equal(seen[0], np.load(rows.parent.parent / "x.npy"))
    array = sample_inputs(specialize(onnx.load(rows.parent.parent / "rows.onnx"), {"x": (4, 3)}), 7)
    np.testing.assert_array_equal(seen[1], array["z"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "the values of input 'x', in ../x.npy, are not to be had: there is no input file "),
        (lambda path: path.write_bytes(b"torn"), "the values of input 'x', in ../x.npy, are not to be had: "),
        (
            lambda path: np.save(path, np.zeros((2, 3))),
            "the values of input 'x', in ../x.npy, were float32[4,3] and are float64[2,3]",
        ),
    ],
)
def test_values_that_are_not_to_be_had_are_reported_and_drawn(
    change: Any, message: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(rows.parent.parent / "x.npy")
    code, out, _ = call(capsys, "check", str(rows), "--budget", "1s", "--max-regress", NEVER)
    assert code == 0
    assert out.startswith(f"not where it was locked: {message}")


@pytest.mark.full
def test_arrays_of_an_archive_are_found_again(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(rows.parent.parent / "all.npz", x=np.ones((4, 3), np.float32), other=np.ones(2))
    path = altered(rows, lambda facts: facts.update(values={"x": "../all.npz", "z": "../all.npz"}))
    code, out, _ = call(capsys, "check", path, "--budget", "1s", "--max-regress", NEVER)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("not where it was locked: ")]
    assert line == "not where it was locked: the values of input 'z', in ../all.npz, are not to be had: it has no array 'z'"
