"""A module with a lock: the same lock gives the same plan without measuring, and one of something else says what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.test_faults import RIGHT, X, chain
from xrt.cache import CompileCache
from xrt.errors import LockError, OptionError, PlacementFileError, PlacementWarning
from xrt.formats.placement_file import CandidateRecord, PlacementFile, SearchRecord, read_placement, write_placement
from xrt.module.lockfile import check_module, lock_module

pytestmark = pytest.mark.sample(3)

OPS = ("Abs", "Neg", "Exp", "Cos", "Sqrt")
ENGINES = ["ort", "toy", "auto"]


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> PlacementFile:
    """A lock of the chain, measured for as long as it takes on a loaded machine."""
    folder = tmp_path_factory.mktemp("cache")
    with xrt.XRTModule(replace(chain(*OPS), name="n" * 5000), ENGINES, budget=40, cache=folder) as module:
        return lock_module(module, [X], {"source": "chain"}, 1.0)


@pytest.fixture
def path(lock: PlacementFile, tmp_path: Path) -> Path:
    write_placement(lock, tmp_path / "chain.lock")
    return tmp_path / "chain.lock"


@pytest.mark.slow
def test_a_long_name_of_a_model_is_cut(lock: PlacementFile, path: Path) -> None:
    assert read_placement(path) == lock
    assert lock.model["name"] == "n" * 400


def never(*args: Any, **more: Any) -> Any:
    raise AssertionError("it was measured")


def mixture(lock: PlacementFile) -> PlacementFile:
    """The same lock with a mixture for a plan, of a search that had no time to compare results."""
    first, *_ = lock.plan
    parts = (first.replace(engine="ort", nodes=2, last=""), first.replace(engine="toy", region=1, at=2, nodes=3, last=""))
    return lock.replace(plan=parts, engines=ENGINES_OF, search=lock.search.replace(is_checked=False))


ENGINES_OF = {name: xrt.engines.create(name).version() for name in ("ort", "toy")}


@pytest.mark.parametrize("engine", ["auto", ENGINES, ["tvm", "ort", "toy", "auto"]])
def test_the_same_lock_gives_the_same_plan_without_measuring(
    lock: PlacementFile, path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_placement(mixture(lock), path)
    monkeypatch.setattr("xrt.placement.auto.tune", never)
    monkeypatch.setattr("xrt.engines.toolkit.reference_evaluator.evaluate", never)
    with xrt.XRTModule(chain(*OPS), engine, lock=path, cache=CompileCache()) as module:
        assert [(x.engine, len(x.nodes)) for x in module.plan.launches] == [("ort", 2), ("toy", 3)]
        np.testing.assert_allclose(module(X), RIGHT, rtol=1e-5)
        assert module.tuned is not None and module.tuned.how == "locked"
        assert module.engines[:2] == ("ort", "toy"), "no other engine is loaded"
        output = str(module.explain()).splitlines()
        assert output[-1].startswith("  ") and any(line == "placed by a lock: ort + toy" for line in output)
        assert any(line.startswith(f"  from the lock '{path}', made on {lock.date} by xrt {lock.writer}") for line in output)
        inner = module(X, fetch=["v2"])["v2"]
        np.testing.assert_allclose(inner, -np.abs(X))


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"engines": {"ort": "onnxruntime 0.1", "toy": "xrt 0"}}, r"engine '(ort|toy)' was (onnxruntime 0.1|xrt 0) and is .*\d"),
        ({"machine": {"processor": "a Pentium"}}, r"processor was a Pentium and is "),
        (
            {"model": {"name": "other", "fingerprint": "0" * 64, "nodes": "5"}},
            r"the model 'other' had fingerprint 000000000000, and ",
        ),
    ],
)
def test_another_lock_lists_differences_and_measures(lock: PlacementFile, path: Path, changed: dict[str, Any], text: str) -> None:
    write_placement(lock.replace(**changed), path)
    begins = rf"^the lock '{path}' does not hold: .*{text}"
    with xrt.XRTModule(chain(*OPS), ENGINES, lock=path, budget=60, cache=CompileCache()) as module:
        with pytest.warns(PlacementWarning, match=begins) as caught:
            np.testing.assert_allclose(module(X), RIGHT, rtol=1e-5)
        assert "The placement is measured again" in str(caught[0].message)
        assert module.tuned is not None and module.tuned.how != "locked"
        assert module.engines[:2] == ("ort", "toy"), "all that were asked for took part"
    ends = "Write it again with `xrt lock`, or leave strict=True out to measure"
    with (
        xrt.XRTModule(chain(*OPS), ENGINES, lock=path, strict=True, cache=CompileCache()) as module,
        pytest.raises(LockError, match=rf"{begins}.* {ends}"),
    ):
        module(X)


@pytest.mark.slow
def test_an_engine_that_is_not_named_is_a_difference(lock: PlacementFile, path: Path) -> None:
    write_placement(mixture(lock), path)
    text = r"does not hold: engine 'toy', which the plan uses, is not in the list of engines or not ready\. Write it again"
    with xrt.XRTModule(chain(*OPS), ["ort", "auto"], lock=path, strict=True) as module, pytest.raises(LockError, match=text):
        _ = module.plan


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        (
            {"engine": "ort"},
            OptionError,
            r"^lock= has a placement by measurement; pass engine='auto', or a list with 'auto' in it$",
        ),
        (
            {"lock": 3},
            OptionError,
            r"^lock must be the path of a lockfile, an xrt.formats.placement_file.PlacementFile or None; got 3$",
        ),
        (
            {"lock": "nowhere.lock"},
            PlacementFileError,
            r"^there is no file 'nowhere.lock'; `xrt lock MODEL -o nowhere.lock` writes one$",
        ),
    ],
)
def test_what_cannot_be_is_refused(path: Path, options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        xrt.XRTModule(chain(*OPS), **{"engine": "auto", "lock": path, **options})


@pytest.mark.full
def test_a_lock_tells_the_whole_race(lock: PlacementFile) -> None:
    candidates = lock.search.candidates
    assert {candidate.title for candidate in candidates} >= {"ort", "toy"}
    assert candidates[0].verdict == "won"
    assert lock.baseline is not None and lock.baseline.plan in {candidate.title for candidate in candidates[1:]}, "whoever won"
    assert lock.engines == ENGINES_OF
    assert lock.inputs == {"x": "float32[2,3]"} and lock.model["source"] == "chain"


@pytest.mark.full
def test_only_what_was_measured_is_locked() -> None:
    with (
        xrt.XRTModule(chain(*OPS), "ort") as module,
        pytest.raises(LockError, match=r"^there is nothing to lock: the module does"),
    ):
        lock_module(module, [X], {}, 1.0)


def test_a_check_of_another_model_cannot_be(lock: PlacementFile) -> None:
    output = r"^the lock is of another model: the number of nodes was 5 and is 4; the model"
    with xrt.XRTModule(chain(*OPS[:4]), ["ort", "toy"]) as module, pytest.raises(LockError, match=output):
        check_module(module, lock, [X], 0.05, 1.0)


def test_a_race_without_figures_is_reported_too(lock: PlacementFile, path: Path) -> None:
    write_placement(lock.replace(search=SearchRecord(candidates=(CandidateRecord("tvm", "failed", note="it hung"),))), path)
    with xrt.XRTModule(chain(*OPS), ENGINES, lock=read_placement(path)) as module:
        assert str(module.tuned).splitlines()[-1] == "  failed: tvm, it hung"
