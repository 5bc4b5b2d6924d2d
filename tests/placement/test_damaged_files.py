"""Damaged files of the cost store are absent, with a line; and what a lock may not choose.

The reader of locks is among those of ``tests/malformed_inputs``.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.malformed_inputs.mutators import CONTENTS, JSON, mutate
from tests.placement.test_lock import CONTEXT, ENGINES, NET, X, locked, mixed, single
from xrt.cache import CompileCache
from xrt.engines.contract import registry
from xrt.errors import CacheWarning, NativeWarning, PlacementFileError
from xrt.formats.placement_file import CandidateRecord, SearchRecord, dumps, loads
from xrt.measure.timing import MeasuredCost
from xrt.module import XRTModule
from xrt.module.lockfile import LockedPlacement
from xrt.partition.cost_table import CostTable
from xrt.placement import CostStore, TuningResult, records
from xrt.placement.profiler import LocalRunner
from xrt.placement.race import make_candidate
from xrt.placement.result import PlacementRequest

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")
SEEDS = st.integers(0, 1 << 32)
SETTINGS = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
REQUEST = PlacementRequest(NET, tuple(ENGINES), CONTEXT, budget=0.0)
SPECS = [engine.spec for engine in ENGINES]
TABLE = CostTable({("ab" * 32, SPECS[0]): MeasuredCost(2e-3, 1e-3, 3e-3), ("cd" * 32, SPECS[0]): "it hung"})
WON = make_candidate(mixed(), "won", 1e-3, 9e-4, 2e-3, ratio=0.9, ratio_low=0.8, ratio_high=0.95, note="a note", regions=(1e-4,))
LOST = make_candidate(single("ort"), "lost", is_baseline=True)
TUNED = TuningResult(
    mixed(), SearchRecord(candidates=(WON, LOST), rounds=9, budget=60.0, spent=4.0, notes=("a note",), unmeasured={"tvm": "late"})
)
RIGHT = np.abs(np.cos(-np.exp(np.abs(X))))
STATUSES = {name: registry.probe(name) for name in ("toy", "ort")}


@dataclass(frozen=True)
class Kind:
    """One kind of file in the cache directory."""

    pattern: str
    keep: Callable[[Path], object]
    """Writes the file that there is one of below a folder."""
    recall: Callable[[Path], Any]
    """Returns what the file holds; something that is false where it holds nothing."""
    is_sound: Callable[[Any], bool] = bool
    """Whether what was recalled is of the types that it should be of."""


def asked() -> Any:
    return records.make_decision_key(REQUEST)


def keep_decision(folder: Path) -> None:
    CostStore(folder).store_decision(asked(), records.make_decision(TUNED, REQUEST))


def recall_decision(folder: Path) -> TuningResult | None:
    return records.load_decision(REQUEST, CostStore(folder))


def is_decision(found: TuningResult) -> bool:
    record = found.record
    numbers = [record.budget, record.spent, *(number for candidate in record.candidates for number in candidate.regions)]
    return bool(str(found)) and bool(found.to_dict()) and all(0 <= number < 1e10 for number in numbers)


def is_table(found: CostTable) -> bool:
    return CostTable.from_document(loads(dumps(found.to_document()))) == found


def are_statuses(found: dict[str, Any]) -> bool:
    texts = [getattr(item, field.name) for item in found.values() for field in fields(item) if field.name != "devices"]
    devices = [device for item in found.values() for device in item.devices]
    return all(isinstance(text, str) for text in (*texts, *found)) and all(
        isinstance(item, str) and len(item) != 1 for item in devices
    )


KINDS = {
    "costs": Kind(
        "costs/*.json",
        lambda folder: CostStore(folder).store_costs(TABLE, ENGINES[:1], CONTEXT),
        lambda folder: CostStore(folder).read_costs(ENGINES[:1], CONTEXT),
        is_table,
    ),
    "decisions": Kind("decisions/*.json", keep_decision, recall_decision, is_decision),
    "engines": Kind(
        "engines/*.json",
        lambda folder: CostStore(folder).store_statuses([*STATUSES.values()]),
        lambda folder: CostStore(folder).read_statuses(),
        are_statuses,
    ),
}


def only(folder: Path, kind: Kind) -> Path:
    (path,) = folder.rglob(kind.pattern)
    return path


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    assert {warning.category for warning in caught} <= {CacheWarning}
    return [str(warning.message) for warning in caught]


def recalled(kind: Kind, folder: Path) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = kind.recall(folder)
    return result, told(caught)


def whole(kind: Kind, folder: Path) -> Any:
    """Return what is kept where nothing is in the way."""
    kind.keep(folder / "another")
    result = kind.recall(folder / "another")
    assert result and kind.is_sound(result)
    return result


@functools.cache
def content(kind: str, folder: Path) -> bytes:
    """Return what a sound file of that kind holds."""
    KINDS[kind].keep(folder)
    return only(folder, KINDS[kind]).read_bytes()


@pytest.fixture(scope="module", autouse=True)
def as_installed() -> Iterator[None]:
    """To look through all distributions at each read is what would take the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xrt.cache.cost_store.hash_installed", lambda: "0" * 64)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@SETTINGS
def test_a_damaged_file_is_absent_with_one_line(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    kind, folder = KINDS[name], tmp_path_factory.getbasetemp() / name
    sound = content(name, folder)
    path = only(folder, kind)
    damaged = mutate(sound, JSON, Random(data.draw(SEEDS)))
    path.write_bytes(damaged)
    result, lines = recalled(kind, folder)
    if lines:
        assert not result or result == CostTable()
        assert len(lines) == 1 and "could not be used: " in lines[0]
        assert "\n" not in lines[0] and len(lines[0]) < 2000
    else:
        assert kind.is_sound(result) or damaged.strip() == b"[]", "no engine is known: a list of none"


def test_a_decision_without_engines_is_absent_with_one_line(tmp_path: Path) -> None:
    """It was an OptionError of the call: the list of engines is empty."""
    content("decisions", tmp_path)
    path = only(tmp_path, KINDS["decisions"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "engines": {}}))
    result, (line,) = recalled(KINDS["decisions"], tmp_path)
    assert result is None and "engines: none of them is part of the request" in line


OBSTACLES: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("what", OBSTACLES)
def test_what_is_no_file_is_absent(name: str, what: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    kind.keep(tmp_path)
    path = only(tmp_path, kind)
    path.unlink()
    OBSTACLES[what](path)
    result, lines = recalled(kind, tmp_path)
    assert (not result or result == CostTable()) and len(lines) <= 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind.keep(tmp_path)
    assert len(told(caught)) <= 1
    if what != "a folder":  # which is somebody's: no file takes its place
        assert recalled(kind, tmp_path) == (whole(kind, tmp_path), [])


WRITER = """
import sys
from pathlib import Path
from tests.placement import test_damaged_files as files
for number in range(15):
    for kind in files.KINDS.values():
        kind.keep(Path(sys.argv[1]))
    files.keep_costs(Path(sys.argv[1]), f"{sys.argv[2]}{number:02}")
"""


def keep_costs(folder: Path, begins: str) -> None:
    """Add the cost of one region, whose key begins so."""
    CostStore(folder).store_costs(CostTable({(begins.ljust(64, "0"), SPECS[0]): "it hung"}), ENGINES[:1], CONTEXT)


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    search = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], env=search) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        for kind in KINDS.values():
            result, lines = recalled(kind, tmp_path)
            assert lines == [] and (not result or kind.is_sound(result))
    assert [writer.wait() for writer in writers] == [0, 0]
    table = CostStore(tmp_path).read_costs(ENGINES[:1], CONTEXT)
    assert {key[:3] for key, _ in table.regions} >= {f"{name}{number:02}" for name, number in itertools.product("ab", range(15))}


@pytest.mark.slow
def test_a_module_runs_whatever_has_become_of_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.placement.autotune.choose_runner", lambda engine, limits: LocalRunner(engine))

    def placed() -> tuple[str, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with XRTModule(NET, ["toy", "ort", "auto"], cache=tmp_path, budget=10) as module:
                np.testing.assert_allclose(module(X), RIGHT, rtol=1e-5)
                assert module.tuned is not None
                return module.tuned.how, told([one for one in caught if one.category is not NativeWarning])

    assert placed() == ("measured", [])
    files = [*tmp_path.rglob("*.json")]
    assert {file.parent.name for file in files} >= {"costs", "decisions", "engines"}
    for file, damaged in zip(files, itertools.cycle(CONTENTS)):
        file.write_bytes(damaged)
    how, lines = placed()
    assert how == "measured"
    assert lines and all("could not be used: " in line and "\n" not in line for line in lines)
    assert placed() == ("remembered", [])


@pytest.mark.parametrize("depth", [700, 990, 10_000])
def test_what_is_nested_deeply_is_refused(depth: int) -> None:
    text = dumps(locked()).replace('"at": 0', f'"at": {"[" * depth + "]" * depth}')
    with pytest.raises(PlacementFileError, match=r"^(plan\[0\]\.at: expected `int`, got `array`|it is nested too deeply)$"):
        loads(text)


def test_a_lock_chooses_no_code(tmp_path: Path) -> None:
    """An engine with a library of kernels is taken of a lock only where the caller has named it too."""
    library = "toy{libraries=(nowhere.so)}"
    lock = locked().replace(plan=tuple(run.replace(engine=library) for run in locked().plan))
    assert LockedPlacement(lock, "").engines([]) is None
    assert LockedPlacement(lock.replace(plan=locked().plan), "").engines([]) is not None, (
        "words of the engine's choice are no code"
    )


def test_a_lock_whose_candidates_have_plans_is_still_a_lock() -> None:
    """Its own plan counts: candidates of a search could name other engines, which the check of the plan has not seen."""
    lock = locked()
    other = CandidateRecord("", "won", plan=tuple(run.replace(engine="toy{libraries=(/nowhere.so)}") for run in lock.plan))
    lock = lock.replace(search=SearchRecord(candidates=(other,), rounds=9, budget=1.0, spent=1.0))
    with XRTModule(NET, "auto", lock=lock, threads=1, cache=CompileCache()) as module:
        np.testing.assert_allclose(module(X), XRTModule(NET, "toy")(X), rtol=1e-5)
        assert module.tuned is not None and module.tuned.how == "locked"
