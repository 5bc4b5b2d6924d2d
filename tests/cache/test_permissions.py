"""A cache directory is this user's alone: made so, not used where it is not, and nothing outside of it is touched."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cache.saving import Saving, chain, module
from xrt.cache import CompileCache, Store, find_cache_directory, open_disk_tier
from xrt.cache.cost_store import CostStore
from xrt.cache.records import make_private, why_not_trusted
from xrt.errors import CacheError, CacheWarning
from xrt.module import XRTModule

X = np.arange(4, dtype=np.float32)
NOBODY = 65534
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def engine(tmp_path: Path) -> Saving:
    return Saving(journal=str(tmp_path / "journal"))


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_a_folder_that_nothing_can_be_made_in_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /proc, where HOME may point in a container, a folder was tried until the stack was full."""
    results = []

    def refuse(folder: Path, mode: int = 0o777) -> None:
        results.append(folder)
        raise FileNotFoundError(2, "No such file or directory", str(folder))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FileNotFoundError):
        make_private(tmp_path / "cache" / "xrt")
    assert results == [tmp_path / "cache"]


def open_to_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o022)


def open_to_group(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


WAYS = [open_to_all, open_to_group, *([give_away] if IS_ROOT else [])]
"""How somebody else comes to write to a file; only root can give one away."""


def run(engine: Saving, directory: Path) -> None:
    np.testing.assert_array_equal(module(engine, directory)(X), X + 15)


def reason_for(path: Path, way: Callable[[Path], None]) -> str:
    if way is give_away:
        return f"'{path}' belongs to another user, nobody"
    return f"others may write to '{path}', whose mode is {stat.S_IMODE(path.lstat().st_mode):04o}"


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_nobody_else_may_read_or_write_what_is_made(
    mask: int, engine: Saving, tmp_path: Path, umask: Callable[[int], int]
) -> None:
    umask(mask)
    run(engine, tmp_path / "above" / "cache")
    CostStore(tmp_path / "above" / "cache").store_statuses([])
    umask(0o022)
    results = [tmp_path / "above", *(tmp_path / "above").rglob("*")]
    modes = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in results}
    assert any(path.suffix == ".xrt" for path in modes)
    assert [str(path) for path in modes if modes[path] != (0o700 if (tmp_path / path).is_dir() else 0o600)] == []


def test_it_is_tagged_as_a_cache_by_the_first_that_comes(engine: Saving, tmp_path: Path) -> None:
    with Store(tmp_path / "by a lock").lock("abc") as locked:
        assert locked
    run(engine, tmp_path / "by a run")
    (tmp_path / "there" / "xrt-cache").mkdir(parents=True, mode=0o700)
    run(engine, tmp_path / "there")
    for name in ("by a lock", "by a run", "there"):
        assert (tmp_path / name / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", [".", "..", "xrt-cache"])
def test_a_directory_that_others_may_write_to_is_not_used(
    where: str, way: Callable[[Path], None], engine: Saving, tmp_path: Path
) -> None:
    directory = tmp_path / "above" / "cache"
    run(engine, directory)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    way((directory / where).resolve())
    with pytest.warns(CacheWarning) as caught:
        run(engine, directory)
    assert engine.count("load") == 0
    assert engine.count("compile") == 12
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before or where == "xrt-cache"
    assert len(caught) == 1
    reason = reason_for((directory / where).resolve(), way)
    assert reason in str(caught[0].message)
    if where != "xrt-cache":
        assert str(caught[0].message) == (
            f"the compile cache in '{directory}' is not used: {reason}. Its files are run as native code, so only you may have "
            f"write access (chown, chmod 700); or set XRT_CACHE_DIR to another directory. XRT compiles without the cache; this "
            f"warning is shown once"
        )


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("spec", ["tvm", "xla", "iree", "ort", "openvino"])
@pytest.mark.usefixtures("small_is_kept")
def test_an_entry_of_another_user_is_not_loaded(spec: str, what: str, way: Callable[[Path], None], tmp_path: Path) -> None:
    def loaded() -> int:
        cache = CompileCache(disk=open_disk_tier({}, tmp_path))
        with XRTModule(chain(2), engine=spec, cache=cache, strict=True, threads=1) as module:
            np.testing.assert_array_equal(module(X), X + 1)
        return cache.statistics.disk.hits

    assert (loaded(), loaded()) == (0, 1)
    (entry,) = (item.path for item in Store(tmp_path).entries.items())
    path = entry if what == "file" else entry.parent
    way(path)
    reason = reason_for(path, way)
    assert list(Store(tmp_path).find_damaged().values()) == [f"{entry.name} cannot be used: {reason}"]
    with pytest.warns(CacheWarning) as caught:
        assert loaded() == 0
    assert [str(warning.message).partition(". ")[0] for warning in caught] == [
        f"the compile cache in '{tmp_path}' could not be used: {entry.name} cannot be used: {reason}"
    ]


@pytest.mark.slow
def test_measured_costs_and_answers_of_another_user_are_not_read(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.store_statuses([])
    (path,) = (tmp_path / "xrt-cache" / "engines").iterdir()
    open_to_all(path)
    with pytest.warns(CacheWarning, match=f"{path.name} cannot be used: others may write to"):
        assert store.read_statuses() == {}
    open_to_all(tmp_path)
    with pytest.warns(CacheWarning, match="is not used: others may write to"):
        assert CostStore(tmp_path).read_statuses() == {}


def test_a_folder_of_packages_that_cannot_be_read_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path, "n" * 300])  # longer than a name may be
    assert CostStore(tmp_path).read_statuses() == {}


def test_a_sticky_folder_above_is_fine(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o1777)
    assert why_not_trusted(above / "cache") is None
    above.chmod(0o777)
    assert why_not_trusted(above / "cache") == f"others may write to '{above}', whose mode is 0777"


def test_a_link_to_ones_own_directory_is_followed_and_one_inside_is_not(engine: Saving, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    run(engine, tmp_path / "cache")
    run(engine, tmp_path / "cache")
    assert engine.count("load") == 6
    entries = tmp_path / "real" / "xrt-cache" / "entries"
    entries.rename(tmp_path / "elsewhere")
    entries.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning, match=f"cannot be used: '{tmp_path}/cache/xrt-cache/entries' is a link"):
        run(engine, tmp_path / "cache")
    assert engine.count("load") == 6


def test_nothing_behind_a_link_is_removed(engine: Saving, tmp_path: Path, command: Callable[..., Any]) -> None:
    outside = tmp_path / "outside"
    run(engine, outside)
    run(engine, tmp_path / "cache")
    root, other = tmp_path / "cache" / "xrt-cache", outside / "xrt-cache"
    (other / "work" / "999999999-bb").mkdir(parents=True)
    (other / "weights").mkdir()
    (other / "weights" / "a.xrt").write_bytes(b"")
    for name in ("entries", "work", "weights"):
        if (root / name).exists():
            (root / name).rename(root / f"{name} before")
        (root / name).symlink_to(other / name)
    results = sorted(outside.rglob("*"))
    for arguments in (["gc", "--size", "1", "--failures"], ["clear"]):
        assert command("cache", "--dir", tmp_path / "cache", *arguments)[0] == 0
        assert sorted(outside.rglob("*")) == results
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["CACHEDIR.TAG"]


def test_the_commands_say_that_a_directory_is_not_used(tmp_path: Path, command: Callable[..., Any]) -> None:
    open_to_all(tmp_path)
    for name, expected in (("list", 0), ("verify", 1)):
        code, out, _ = command("cache", "--dir", tmp_path, name)
        assert code == expected and f"it is not used: others may write to '{tmp_path}', whose mode is 0722" in out


def test_a_directory_of_a_user_that_is_not_is_reported() -> None:
    output = "XRT_CACHE_DIR is '~no-such-user/x', and '~no-such-user' has no known home directory; use an absolute path"
    with pytest.raises(CacheError) as caught:
        find_cache_directory({"XRT_CACHE_DIR": "~no-such-user/x"})
    assert str(caught.value) == output
    with pytest.warns(CacheWarning) as warned:
        assert open_disk_tier({"XRT_CACHE_DIR": "~no-such-user/x"}) is None
    assert str(warned[0].message) == f"{output}. Nothing is stored on disk"
    with pytest.raises(CacheError, match="cache is '~no-such-user/x', and '~no-such-user' has no known home directory"):
        XRTModule(chain(1), engine="toy", cache="~no-such-user/x")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: Path("~/.cache/xrt"))
    with pytest.raises(CacheError, match="this user has no home directory for a cache; set XRT_CACHE_DIR to a directory"):
        find_cache_directory({})
