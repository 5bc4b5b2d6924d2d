"""Lockfiles that are damaged, nested deeply, or no files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.damaging import mutants
from tests.placement.test_damaged_files import OBSTACLES, SETTINGS, TUNED
from tests.placement.test_lock import NET, ask, locked, single
from xrt.errors import LockError, PlacementFileError
from xrt.formats.placement_file import Baseline, PlacementFile, dumps, loads, read_placement
from xrt.module.lockfile import LockedPlacement
from xrt.placement.records import list_mismatches, list_node_ranges, plan_from_ranges

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")


@pytest.fixture(scope="module", autouse=True)
def as_installed() -> Iterator[None]:
    """To look through all distributions at each read is what would take the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xrt.cache.cost_store.hash_installed", lambda: "0" * 64)
        yield


# ---------------------------------------------------------------------- locks


GATE = Baseline("ort", 0.72, 0.71, 0.735, 24, list_node_ranges(single("ort"), NET))


@pytest.mark.slow
@given(data=st.data())
@SETTINGS
def test_a_damaged_lock_is_an_error_that_says_what_to_do(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "net.lock"
    path.write_bytes(data.draw(mutants(dumps(locked(gate=GATE, race=TUNED.race)).encode())))
    try:
        lock = read_placement(path)
    except PlacementFileError as error:
        said = str(error)
        assert said.startswith(f"cannot read '{path}': ")
        assert said.endswith(f"; repair it, or write it again with `xrt lock MODEL -o {path}`")
        assert said.isprintable() and len(said) < 1000
        return
    assert loads(dumps(lock)) == lock
    use(lock)


def use(lock: PlacementFile) -> None:
    """Do all that is done with a lock."""
    assert all(isinstance(one, str) for one in list_mismatches(lock, ask(), for_check=True))
    with suppress(LockError):
        plan_from_ranges(lock.plan, ask())
    found = LockedPlacement(lock, "'net.lock'")
    assert found.engines([]) is None or [one.spec for one in found.engines([]) or ()] == [*found.specs]


@pytest.mark.parametrize("depth", [700, 990, 10_000])
def test_what_is_nested_deeply_is_refused(depth: int) -> None:
    text = dumps(locked()).replace('"at": 0', f'"at": {"[" * depth + "]" * depth}')
    with pytest.raises(PlacementFileError, match=r"^(plan\[0\]\.at: expected `int`, got `array`|it is nested too deeply)$"):
        loads(text)


@pytest.mark.parametrize("what", [one for one in OBSTACLES if one != "a link to nowhere"])
def test_a_lock_that_is_no_file_is_an_error(what: str, tmp_path: Path) -> None:
    OBSTACLES[what](tmp_path / "net.lock")
    with pytest.raises(
        PlacementFileError, match=r"^cannot read '.*net\.lock': .*; repair it, or write it again with `xrt lock M"
    ):
        read_placement(tmp_path / "net.lock")


def test_a_link_to_nowhere_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "net.lock").symlink_to("nowhere")
    with pytest.raises(PlacementFileError, match=r"^there is no file '.*net\.lock'; `xrt lock MODEL -o .*` writes one$"):
        read_placement(tmp_path / "net.lock")


def test_a_lock_chooses_no_code(tmp_path: Path) -> None:
    """An engine with a library of kernels is taken of a lock only where the caller has named it too."""
    library = "toy{libraries=(nowhere.so)}"
    lock = locked().replace(plan=tuple(run.replace(engine=library) for run in locked().plan))
    assert LockedPlacement(lock, "").engines([]) is None
    assert LockedPlacement(lock.replace(plan=locked().plan), "").engines([]) is not None, (
        "words of the engine's choice are no code"
    )
