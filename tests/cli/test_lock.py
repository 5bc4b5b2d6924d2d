"""``xrt lock`` and ``xrt check`` as a person, or a CI job, meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import xrt
from tests.cli.locks import BUDGET, NEVER, altered
from tests.cli.test_cache_and_bundles import call
from tests.damaging import mutants
from tests.module.test_faults import chain
from xrt.formats import onnx
from xrt.formats.placement_file import PlacementFile, read_placement
from xrt.graph import DType, Function, Node, TensorType, Value

pytestmark = [pytest.mark.usefixtures("cache_of_place"), pytest.mark.sample(3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and its lock in another folder."""
    folder = tmp_path_factory.mktemp("locked")
    onnx.save(chain("Abs", "Neg", "Exp", "Cos", "Sqrt"), folder / "model.onnx")
    (folder / "locks").mkdir()
    return folder


@pytest.fixture
def lock(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    target = place / "locks" / "model.lock"
    if not target.exists():
        code, out, _ = call(capsys, "lock", str(place / "model.onnx"), "-e", "ort,toy", "-o", str(target), *BUDGET)
        assert code == 0
        assert out.startswith("placed by ")  # another test may have measured
        assert out.splitlines()[-1].startswith(f"{target}: locked at ")
    copy = tmp_path / "locks"
    copy.mkdir()
    shutil.copy(place / "model.onnx", tmp_path)
    return Path(shutil.copy(target, copy))


@pytest.mark.slow
def test_a_lock_names_its_model_from_where_it_is(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result: PlacementFile = read_placement(lock)
    assert result.model["source"] == "../model.onnx"
    code, out, err = call(capsys, "check", str(lock), "--budget", "2s", "--max-regress", NEVER)
    assert (code, err) == (0, "")
    assert out.startswith("held: ") and f"time over that of {result.baseline.plan}: " in out  # type: ignore[union-attr]


@pytest.mark.full
def test_a_regression_is_exit_code_1(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = altered(lock, lambda facts: facts["baseline"].update(ratio=1e-6, low=9e-7, high=2e-6))
    code, out, _ = call(capsys, "check", path, "--budget", "2s")
    assert code == 1
    assert out.startswith("regressed: +") and "; the limit is +5.0%\n" in out
    code, out, _ = call(capsys, "check", path, "--budget", "2s", "--json")
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
    asked: tuple[str, ...], code: int, says: str, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(lock, lambda facts: facts["baseline"].update(ratio=1.0, low=1e-6, high=1e6))
    result, out, _ = call(capsys, "check", path, "--budget", "1s", *asked)
    assert (result, out.splitlines()[-1]) == (code, says)
    assert out.startswith("not decided, the noise is too large: ")
    assert call(capsys, "check", path, "--budget", "1s", "--json", *asked)[0] == code


@pytest.mark.full
def test_engines_that_may_run_code_are_named_by_who_checks(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def with_library(facts: Any) -> None:
        for run in facts["plan"]:
            run.update(engine="toy{libraries=(nowhere.so)}", region=0)

    path = altered(lock, with_library)
    code, out, _ = call(capsys, "check", path, "--json")
    assert code == 1
    assert json.loads(out)["reason"] == (
        "the lock has engine 'toy{libraries=(nowhere.so)}', whose libraries may name files or code, and a lock does not choose "
        "what is run; pass --engines 'toy{libraries=(nowhere.so)}' if that is what you want"
    )
    code, out, _ = call(capsys, "check", path, "--engines", "toy{libraries=(nowhere.so)}")
    assert code == 1
    assert "nowhere.so" in out and "does not choose" not in out, "it is opened, or would be"


def test_engines_that_the_lock_does_not_have_are_a_mistake(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "check", str(lock), "--engines", "nobody")
    assert (code, out) == (2, "")
    assert err.startswith("error: --engines names 'nobody'; the lock has ")


@pytest.mark.full
def test_another_version_is_reported_and_checked(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = altered(lock, lambda facts: facts["engines"].update(ort="onnxruntime 1.0"))
    code, out, _ = call(capsys, "check", path, "--budget", "2s", "--max-regress", NEVER)
    assert code == 0
    assert out.startswith("not where it was locked: engine 'ort' was onnxruntime 1.0 and is onnxruntime 1.")


@pytest.mark.parametrize(
    ("change", "more", "told"),
    [
        (lambda facts: None, ("--model", "softmax_chain"), "the lock is of another model: "),
        (lambda facts: facts["model"].update(source=""), (), "the lock does not say where its model is; pass --model"),
        (lambda facts: facts.update(plan=[], baseline=None), (), "the lock has no plan"),
        (lambda facts: facts["plan"][0].update(engine="orr"), (), "no engine is named 'orr'. Did you mean 'ort'?"),
        (lambda facts: facts["plan"][0].update(nodes=3), (), "3 of 5 nodes are placed, and not 'n3'"),
        (lambda facts: facts["model"].update(seed="x"), (), "the lock's seed must be a number; it is 'x'"),
        (lambda facts: facts["options"].update(threads="9" * 20), (), "the lock's threads must be a number; it is '999"),
        (
            lambda facts: facts["model"].update(dims="batch"),
            (),
            "the lock's model cannot be used: --dim takes NAME=SIZE, such as ",
        ),
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
def test_what_cannot_run_is_exit_code_1(
    change: Any, more: tuple[str, ...], told: str, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(lock, change)
    code, out, _ = call(capsys, "check", path, *more)
    assert code == 1
    assert out.startswith(f"cannot run: {told}")
    code, out, _ = call(capsys, "check", path, *more, "--json")
    assert code == 1
    assert json.loads(out)["state"] == "cannot run"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "nowhere.lock"), "there is no file 'nowhere.lock'; `xrt lock MODEL -o nowhere.lock` writes one"),
        (("check", "x.lock", "--max-regress", "much"), "--max-regress takes a share such as 1% or 0.01; got 'much'"),
        (("check", "x.lock", "--max-regress=-1%"), "--max-regress takes a share such as 1% or 0.01; got '-1%'"),
        (("check", "x.lock", "--max-regress", "5"), "--max-regress takes a share such as 1% or 0.01; got '5'. Did you mean 5%?"),
        (("lock", "squeezenet", "-o", "no/x.lock"), "cannot write no/x.lock: there is no folder no"),
        (("lock", "squeezenet", "--gate", "soon"), "--gate takes a time such as 60s or 2m; got 'soon'"),
    ],
)
def test_a_mistake_is_exit_code_2(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, *arguments)[::2] == (2, f"error: {told}\n")


@pytest.mark.full
@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_has_become_of_a_lock_a_check_ends_with_an_answer(
    data: st.DataObject, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = lock.with_name("damaged.lock")
    damaged.write_bytes(data.draw(mutants(lock.read_bytes())))
    code, out, err = call(capsys, "check", str(damaged), "--budget", "0.01s", "--json")
    assert code in (0, 1, 2)
    assert "this should not happen" not in err
    assert bool(out) != err.startswith("error: "), "either an outcome or an error"
    if out:
        assert json.loads(out)["state"] in ("held", "regressed", "undecided", "alone", "cannot run")


def test_a_lock_that_holds_places_the_model_of_the_command_line(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "explain", str(lock.parent.parent / "model.onnx"), "-e", "auto", "--lock", str(lock))
    assert code == 0
    assert "placed by a lock: " in out


@pytest.mark.full
def test_a_lock_serves_all_sizes(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = Function(
        (Value("x", TensorType(DType.FLOAT32, ("s", 3))),), (Value("y"),), (Node("Exp", ("x",), ("y",)),), opsets={"": 20}
    )
    model, target = tmp_path / "open.onnx", tmp_path / "open.lock"
    onnx.save(opened, model)
    code, _, _ = call(capsys, "lock", str(model), "-e", "ort", "-o", str(target), *BUDGET, "--dim", "s=2")
    assert code == 0
    with xrt.XRTModule(model, "auto", lock=target, strict=True) as module:
        for rows, notes in ((2, ()), (3, ("placed as it was measured for s=2",)), (99, ("placed as it was measured for s=2",))):
            module(np.ones((rows, 3), "float32"))
            assert module.tuned is not None
            assert module.tuned.how == "locked"
            assert module.tuned.notes[-len(notes) or 99 :] == notes
    code, _, _ = call(capsys, "check", str(target), "--budget", "2s", "--max-regress", NEVER)
    assert code == 0
