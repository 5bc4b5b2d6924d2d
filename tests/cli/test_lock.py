"""``xrt lock`` and ``xrt check`` as a person, or a CI job, meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import BUDGET, NEVER, Command, alter_lock
from tests.module.test_faults import chain
from xrt.cli import tune
from xrt.formats import onnx
from xrt.formats.placement_file import PlacementFile, read_placement
from xrt.models import sample_inputs
from xrt.passes import specialize
from xrt.testing.corpus.entry import graph, node

pytestmark = [pytest.mark.usefixtures("cache_of_place"), pytest.mark.sample(3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, values of an input of the second one, and a folder for their locks."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "locks").mkdir()
    onnx.save(chain("Abs", "Neg", "Exp", "Cos", "Sqrt"), folder / "model.onnx")
    rows = "float32[batch,3]"
    nodes = node("Add", "x z", "s", name="add"), node("Exp", "s", "e", name="exp"), node("Cos", "e", "y")
    function = graph({"x": rows, "z": rows}, {"y": rows}, *nodes).replace(name="rows")
    onnx.save(function, folder / "rows.onnx")
    np.save(folder / "x.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    return folder


def copy_lock(place: Path, folder: Path, command: Command, name: str, *data: Any) -> Path:
    """Lock a model once for all tests; return a copy of the lock, with the models beside its folder."""
    target = place / "locks" / f"{name}.lock"
    if not target.exists():
        code, out, err = command("lock", place / f"{name}.onnx", "-e", "ort,toy", "-o", target, *data, *BUDGET)
        assert code == 0, err
        assert out.startswith("placed by ")  # another test may have measured
        assert out.splitlines()[-1].startswith(f"{target}: locked at ")
    (folder / "locks").mkdir()
    for file in ("model.onnx", "rows.onnx", "x.npy"):
        shutil.copy(place / file, folder)
    return Path(shutil.copy(target, folder / "locks"))


@pytest.fixture
def lock(place: Path, tmp_path: Path, command: Command) -> Path:
    return copy_lock(place, tmp_path, command, "model")


@pytest.fixture
def rows(place: Path, tmp_path: Path, command: Command) -> Path:
    """A lock of four rows, which one of the inputs has from a file."""
    return copy_lock(place, tmp_path, command, "rows", "--input", f"x={place / 'x.npy'}", "--seed", "7")


@pytest.mark.slow
def test_a_lock_names_its_model_from_where_it_is(lock: Path, command: Command) -> None:
    result: PlacementFile = read_placement(lock)
    assert result.model["source"] == "../model.onnx"
    code, out, err = command("check", lock, "--budget", "2s", "--max-regress", NEVER)
    assert (code, err) == (0, "")
    assert out.startswith("held: ") and f"time divided by that of {result.baseline.plan}: " in out  # type: ignore[union-attr]


@pytest.mark.full
def test_a_regression_is_exit_code_1(lock: Path, command: Command) -> None:
    path = alter_lock(lock, lambda facts: facts["baseline"].update(ratio=1e-6, low=9e-7, high=2e-6))
    code, out, _ = command("check", path, "--budget", "2s")
    assert code == 1
    assert out.startswith("regressed: +") and "; the limit is +5.0%\n" in out
    code, out, _ = command("check", path, "--budget", "2s", "--json")
    document = json.loads(out)
    assert (code, document["state"], document["limit"], document["differs"]) == (1, "regressed", 0.05, [])


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ((), 0, "it passes; --undecided=fail makes it fail. Give it more --budget, or a quieter machine"),
        (("--undecided=fail",), 3, "it fails, as --undecided=fail asks. Give it more --budget, or a quieter machine"),
    ],
)
@pytest.mark.slow
def test_what_the_noise_leaves_open_passes_or_fails_as_asked(
    asked: tuple[str, ...], code: int, says: str, lock: Path, command: Command
) -> None:
    path = alter_lock(lock, lambda facts: facts["baseline"].update(ratio=1.0, low=1e-6, high=1e6))
    result, out, _ = command("check", path, "--budget", "1s", *asked)
    assert (result, out.splitlines()[-1]) == (code, says)
    assert out.startswith("undecided, since the noise is too large: ")
    assert command("check", path, "--budget", "1s", "--json", *asked)[0] == code


@pytest.mark.full
def test_engines_that_may_run_code_are_named_by_who_checks(lock: Path, command: Command) -> None:
    def with_library(facts: Any) -> None:
        for run in facts["plan"]:
            run.update(engine="toy{libraries=(nowhere.so)}", region=0)

    path = alter_lock(lock, with_library)
    code, out, _ = command("check", path, "--json")
    assert code == 1
    assert json.loads(out)["reason"] == (
        "the lock has engine 'toy{libraries=(nowhere.so)}', whose libraries may name files or code, and a lock does not choose "
        "what is run; pass --engines 'toy{libraries=(nowhere.so)}' if that is what you want"
    )
    code, out, _ = command("check", path, "--engines", "toy{libraries=(nowhere.so)}")
    assert code == 1
    assert "nowhere.so" in out and "does not choose" not in out, "it is opened, or would be"


def test_engines_that_the_lock_does_not_have_are_a_mistake(lock: Path, command: Command) -> None:
    code, out, err = command("check", lock, "--engines", "nobody")
    assert (code, out) == (2, "")
    assert err.startswith("error: --engines names 'nobody'; the lock has ")


@pytest.mark.parametrize(
    ("change", "more", "told"),
    [
        (lambda facts: None, ("--model", "softmax_chain"), "the lock is of another model: "),
        (lambda facts: facts["model"].update(source=""), (), "the lock does not say where its model is; pass --model"),
        (lambda facts: facts.update(plan=[], baseline=None), (), "the lock has no plan"),
        (lambda facts: facts["plan"][0].update(engine="orr"), (), "no engine is named 'orr'. Did you mean 'ort'?"),
        (lambda facts: facts["plan"][0].update(nodes=3), (), "only 3 of 5 nodes are placed; the first missing one is 'n3'"),
        (lambda facts: facts["model"].update(seed="x"), (), "the lock's seed must be a number; it is 'x'"),
        (lambda facts: facts["options"].update(threads="9" * 20), (), "the lock's threads must be a number; it is '999"),
        (
            lambda facts: facts["options"].update(precision="fp17"),
            (),
            "the lock's options cannot be used: precision must be one of",
        ),
        (
            lambda facts: facts["model"].update(fingerprint="\ud800"),
            (),
            "the lock is of another model: the model 'main' had fing",
        ),
    ],
)
def test_what_cannot_run_is_exit_code_1(change: Any, more: tuple[str, ...], told: str, lock: Path, command: Command) -> None:
    path = alter_lock(lock, change)
    code, out, _ = command("check", path, *more)
    assert code == 1
    assert out.startswith(f"cannot run: {told}")
    code, out, _ = command("check", path, *more, "--json")
    assert code == 1
    assert json.loads(out)["state"] == "cannot run"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "nowhere.lock"), "there is no file 'nowhere.lock'; `xrt lock MODEL -o nowhere.lock` writes one"),
        (("check", "x.lock", "--max-regress", "much"), "--max-regress takes a share such as 1% or 0.01; got 'much'"),
        (("check", "x.lock", "--max-regress=-1%"), "--max-regress takes a share such as 1% or 0.01; got '-1%'"),
        (("check", "x.lock", "--max-regress", "5"), "--max-regress takes a share such as 1% or 0.01; got '5'. Did you mean 5%?"),
    ],
)
def test_a_mistake_is_exit_code_2(arguments: tuple[str, ...], told: str, command: Command) -> None:
    assert command(*arguments)[::2] == (2, f"error: {told}\n")


@pytest.mark.slow
def test_a_bundle_has_the_sizes_and_the_plan_of_a_lock(rows: Path, tmp_path: Path, command: Command) -> None:
    target = tmp_path / "m.xrt"
    data = ("compile", tmp_path / "rows.onnx", "-e", "ort,toy,auto", "--lock", rows, "-o", target)
    code, out, err = command(*data)
    assert (code, err) == (0, "") and "placed by a lock: " in out, err
    code, out, err = command(*data, "--dim", "batch=2")
    assert code == 2 and "is for --dim batch=4, and --dim batch=2 was given" in err
    code, out, err = command(*data, "--dim", "batch=4", "--dim", "batch=8")
    assert code == 2 and "a lock is for one size of each dim" in err


def test_a_lock_that_does_not_hold_makes_no_bundle(rows: Path, tmp_path: Path, command: Command) -> None:
    target = tmp_path / "m.xrt"
    other = alter_lock(rows, lambda facts: facts["model"].update(fingerprint="0" * 64))
    code, _, err = command("compile", tmp_path / "rows.onnx", "-e", "ort,toy,auto", "--lock", other, "-o", target)
    assert code == 2 and "does not hold: the model 'rows' had fingerprint 000000000000" in err and not target.exists()


@pytest.mark.slow
def test_a_check_is_made_on_what_the_lock_was_measured_on(rows: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    checked = tune.check_module

    def noted(module: Any, lock: PlacementFile, values: Any, *more: Any) -> Any:
        seen.extend(values)
        return checked(module, lock, values, *more)

    monkeypatch.setattr(tune, "check_module", noted)
    code, out, _ = command("check", rows, "--budget", "1s", "--max-regress", NEVER)
    assert (code, "not where it was locked" in out) == (0, False)
    np.testing.assert_array_equal(seen[0], np.load(rows.parent.parent / "x.npy"))
    array = sample_inputs(specialize(onnx.load(rows.parent.parent / "rows.onnx"), {"x": (4, 3)}), 7)
    np.testing.assert_array_equal(seen[1], array["z"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "the values of input 'x', in ../x.npy, are not available: there is no input file "),
        (lambda path: path.write_bytes(b"torn"), "the values of input 'x', in ../x.npy, are not available: "),
        (
            lambda path: np.save(path, np.zeros((2, 3))),
            "the values of input 'x', in ../x.npy, were float32[4,3] and are float64[2,3]",
        ),
    ],
)
def test_values_that_are_not_to_be_had_are_reported_and_drawn(change: Any, message: str, rows: Path, command: Command) -> None:
    change(rows.parent.parent / "x.npy")
    code, out, _ = command("check", rows, "--budget", "1s", "--max-regress", NEVER)
    assert code == 0
    assert out.startswith(f"not where it was locked: {message}")


@pytest.mark.full
def test_arrays_of_an_archive_are_found_again(rows: Path, command: Command) -> None:
    np.savez(rows.parent.parent / "all.npz", x=np.ones((4, 3), np.float32), other=np.ones(2))
    path = alter_lock(rows, lambda facts: facts.update(values={"x": "../all.npz", "z": "../all.npz"}))
    code, out, _ = command("check", path, "--budget", "1s", "--max-regress", NEVER)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("not where it was locked: ")]
    assert line == "not where it was locked: the values of input 'z', in ../all.npz, are not available: it has no array 'z'"
