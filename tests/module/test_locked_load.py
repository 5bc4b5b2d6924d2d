"""The load of a lock, repeated by a module: by the plans of the lock. The machine's speed decides nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.test_throughput import WEIGHT, perceptron, tensor
from xrt.errors import LockError
from xrt.formats.placement_file import PlacementFile
from xrt.measure.statistics import RatioInterval
from xrt.module import lockfile
from xrt.module.lockfile import check_module_load, lock_module
from xrt.module.tuning import tune_throughput
from xrt.placement.throughput import LoadCheckResult, Split

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")]

X = np.ones((4, 4), "float32")


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> PlacementFile:
    """A lock whose plan is on ort."""
    locks: list[PlacementFile] = []
    folder = tmp_path_factory.mktemp("cache")
    with xrt.XRTModule(perceptron(), ["toy", "auto"], strict=True, threads=1, cache=folder) as m:
        tune_throughput(
            m, budget=1.0, batches=(1, 4), progress=False, use=lambda one, given: locks.append(lock_module(one, given, {}, 0.1))
        )
        serving = m.serving
    (made,) = locks
    assert serving is not None
    on_ort = tuple(run.replace(engine="ort") for run in made.plan)
    engines = {**made.engines, "ort": xrt.engines.create("ort").version()}
    return made.replace(serving=serving.to_record(), plan=on_ort, engines=engines)


def make_module(tmp_path: Path, **terms: Any) -> xrt.XRTModule:
    return xrt.XRTModule(
        perceptron(**terms), ["toy", "ort", "auto"], strict=True, threads=1, cache=tmp_path, progress=False, budget=3600
    )


def test_each_size_runs_by_the_plan_of_the_lock(lock: PlacementFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search would take an hour."""
    seen: list[tuple[str, ...]] = []

    def look(bench: Any, locked: Any, limit: float, seconds: float, **more: Any) -> LoadCheckResult:
        plans = tuple(bench.describe_plan(Split(1, 1), size) for size in (1, 2, 4))
        seen.append(plans)
        module, (x,) = bench.find_example(1, 4)
        np.testing.assert_allclose(module(x), np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-6)
        return LoadCheckResult("held", limit, locked, RatioInterval(1, 1, 1), 1, f"{seconds}")

    monkeypatch.setattr(lockfile, "check_load", look)
    with make_module(tmp_path) as m:
        assert check_module_load(m, lock, [X], 0.05, 2.0, seed=7).note == "2.0"
    assert seen == [("ort", "ort", "ort")]  # the one plan counts for all sizes


def test_it_runs_loads(lock: PlacementFile, tmp_path: Path) -> None:
    with make_module(tmp_path) as m:
        found = check_module_load(m, lock, [X], 1e6, 0.02)
    assert (found.state, found.rounds >= 4) == ("held", True)


def test_a_configuration_for_more_cores_is_not_put_under_load(
    lock: PlacementFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfile, "available_cores", lambda: 2)
    assert lock.serving is not None
    large = lock.replace(serving=replace_record(lock.serving, instances=1 << 20))
    with make_module(tmp_path) as m:
        found = check_module_load(m, large, [X], 0.05, 2.0)
    assert found.state == "undecided"
    assert str(found).startswith("load not repeated: its instances need 1048576 threads, and this process may use 2\n")


def replace_record(record: Any, **changes: Any) -> Any:
    return type(record)(**{**{name: getattr(record, name) for name in record.__struct_fields__}, **changes})


def test_a_lock_of_another_model_is_refused(lock: PlacementFile, tmp_path: Path) -> None:
    with make_module(tmp_path, inputs=(tensor("x", 4, 4),), shape=(4, 3)) as m, pytest.raises(LockError) as caught:
        check_module_load(m, lock, [X], 0.05, 2.0)
    said = "the lock's requests cannot be joined: batch_dim names 'N', which is no symbolic dim of the inputs."
    assert str(caught.value) == said
    without = lock.replace(inputs={})
    with make_module(tmp_path) as m, pytest.raises(LockError) as caught:
        check_module_load(m, without, [X], 0.05, 2.0)
    assert str(caught.value) == "the lock does not have the sizes that it was made for; write it again"
