"""The disk tier: a second process hits, whatever goes wrong with files costs a compile and one warning, never a run."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tests.cache.saving import BULK, Saving, chain, module
from xrt.cache import CompileCache, CompileRequest, Store, make_signature, open_disk_tier
from xrt.cache.entries import ENTRIES, explain_misses, list_entries
from xrt.engines import CompileContext
from xrt.errors import CacheError, CacheWarning, CompileFailed, CompileRefused, PlanError
from xrt.graph import Function
from xrt.module import XRTModule
from xrt.testing.generate import rename_values

X = np.arange(4, dtype=np.float32)


@pytest.fixture
def engine(tmp_path: Path) -> Saving:
    return Saving(journal=str(tmp_path / "journal"))


def run(engine: Saving, directory: Path, function: Function | None = None, limit: int = 10**9) -> XRTModule:
    """Run the chain in what stands for a new process: a module with a memory tier of its own."""
    result = module(engine, directory, function, limit)
    np.testing.assert_array_equal(result(X), X + 15)
    return result


# ---------------------------------------------------------------------- hits and misses


def test_a_second_process_loads_what_the_first_one_compiled(engine: Saving, tmp_path: Path) -> None:
    for _ in range(2):
        run(engine, tmp_path / "cache")
    assert engine.count("compile") == 6
    assert engine.count("load") == 6


def test_other_names_and_another_order_of_constants_hit(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    function = rename_values(chain(), {})
    run(engine, tmp_path, function.replace(constants=dict(reversed(list(function.constants.items())))))
    assert engine.count("compile") == 6


class Newer(Saving):
    release: ClassVar[str] = "2"


def test_another_version_misses(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    run(Newer(engine.journal), tmp_path)
    assert engine.count("compile") == 12


def test_changed_code_misses(engine: Saving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(engine, tmp_path)
    monkeypatch.setattr("xrt.cache.signature.hash_sources", lambda module: "another")
    run(engine, tmp_path)
    assert engine.count("compile") == 12


def test_a_class_without_a_source_file_is_not_kept(tmp_path: Path) -> None:
    typed = type("Typed", (Saving,), {"__module__": "a_prompt"})(str(tmp_path / "journal"))
    run(typed, tmp_path / "cache")
    run(typed, tmp_path / "cache")
    assert typed.count("compile") == 12
    assert Store(tmp_path / "cache").entries.items() == []


def test_an_engine_that_saves_nothing_writes_nothing(tmp_path: Path) -> None:
    cache = CompileCache(disk=open_disk_tier({}, tmp_path / "cache"))
    XRTModule(chain(), engine="toy", cache=cache)(X)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("small_is_kept")
def test_the_light_engines_hit_in_a_new_memory_tier(tmp_path: Path) -> None:
    expected = None
    for _ in range(2):
        cache = CompileCache(disk=open_disk_tier({}, tmp_path))
        with XRTModule(chain(), engine="ort", cache=cache, strict=True) as module:
            result = module(X)
        expected = result if expected is None else expected
        np.testing.assert_array_equal(result, expected)
    assert cache.statistics.disk.hits == 1


# ---------------------------------------------------------------------- failures


def test_a_refusal_is_remembered_with_its_reason_and_nodes(engine: Saving, tmp_path: Path) -> None:
    refusing = replace(engine, refuses=True)
    function = rename_values(chain(1), {})
    results = []
    for item in (chain(1), function):
        cache = CompileCache(disk=open_disk_tier({}, tmp_path))
        request = CompileRequest(item, refusing, CompileContext())
        signature = make_signature(item, refusing, CompileContext())
        with pytest.raises(CompileRefused) as caught:
            cache.lease(signature, lambda request=request: refusing.compile(request.function, request.context), request=request)
        results.append((str(caught.value), caught.value.nodes))
    assert refusing.count("compile") == 1
    assert results[0] == ("it never does", (chain(1).nodes[0].name,))
    assert results[1] == (
        "it never does (as at an earlier compile; `xrt cache gc --failures` forgets it)",
        (function.nodes[0].name,),
    )


def test_what_may_pass_is_not_remembered(engine: Saving, tmp_path: Path) -> None:
    starved = replace(engine, broken="memory")
    for _ in range(2):
        with pytest.raises(CompileFailed, match="MemoryError: no memory"):
            module(starved, tmp_path / "cache")(X)
    assert starved.count("compile") == 12
    assert Store(tmp_path / "cache").entries.items() == []


def test_an_executable_that_cannot_be_saved_still_runs(engine: Saving, tmp_path: Path) -> None:
    run(replace(engine, broken="save"), tmp_path / "cache")
    assert Store(tmp_path / "cache").entries.items() == []


def test_what_cannot_be_loaded_is_compiled_and_said_once(engine: Saving, tmp_path: Path) -> None:
    broken = replace(engine, broken="load")
    run(broken, tmp_path)
    with pytest.warns(CacheWarning) as caught:
        run(broken, tmp_path)
    assert len(caught) == 1
    assert "cannot load what it saved: ValueError: it cannot" in str(caught[0].message)
    assert "XRT_CACHE=off does without" in str(caught[0].message)
    assert caught[0].filename == __file__


# ---------------------------------------------------------------------- damage


def damages(data: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "one byte short": data[:-1],
        "one byte more": data + b"x",
        "zeros": bytes(len(data)),
        "a bit in the head": bytes([data[0] ^ 1]) + data[1:],
        "a bit in the middle": data[: BULK // 2] + bytes([data[BULK // 2] ^ 16]) + data[BULK // 2 + 1 :],
        "another file": b"hello" * 100,
    }


@pytest.mark.parametrize("damage", damages(b"x" * (BULK + 2)))
def test_a_damaged_entry_is_found_and_rebuilt(damage: str, engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    item = Store(tmp_path).entries.items()[0]
    item.path.write_bytes(damages(item.path.read_bytes())[damage])
    assert len(Store(tmp_path).find_damaged()) == 1
    with pytest.warns(CacheWarning, match="could not serve: cache entry .* cannot be used"):
        run(engine, tmp_path)
    assert engine.count("compile") == 7
    assert Store(tmp_path).find_damaged() == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(engine, tmp_path)


def test_an_entry_under_another_name_is_not_believed(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    first, other = Store(tmp_path).entries.items()[:2]
    first.path.write_bytes(other.path.read_bytes())
    with pytest.raises(CacheError, match="it is the entry of another signature"):
        ENTRIES.read(first.path)


@pytest.mark.slow
def test_random_damage_is_a_cache_error_and_nothing_else(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    path = Store(tmp_path).entries.items()[0].path
    whole, sound = path.read_bytes(), ENTRIES.read(path)
    rng = random.Random(0)
    interesting = [*range(64), *range(64, 600), *range(len(whole) - 300, len(whole))]
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.choice(interesting)] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            entry = ENTRIES.read(path)
        except CacheError:
            continue
        assert (entry.signature, bytes(entry.data or b"")) == (sound.signature, bytes(sound.data or b"")), "only padding differs"


# ---------------------------------------------------------------------- reports


def test_entries_are_listed_with_engine_and_failure(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    with pytest.raises(PlanError):
        module(replace(engine, refuses=True), tmp_path, chain(1))(X)
    Store(tmp_path).entries.items()[0].path.write_bytes(b"damaged")
    result = list_entries(Store(tmp_path))
    assert len(result) == 7
    assert [item.failure for item in result if item.failure] == ["it never does"]
    assert sum(bool(item.damage) for item in result) == 1
    assert all(item.engine.startswith("Saving saving") for item in result if not item.damage)


def test_a_miss_names_the_ingredient_that_differs(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    region = module(engine, tmp_path).plan.launches[0].function
    missed = explain_misses(Store(tmp_path), [make_signature(region, engine, CompileContext(threads=7))])
    assert missed[0].differences == (("threads", "7", "1"),)
    assert explain_misses(Store(tmp_path), [make_signature(region, engine, CompileContext(threads=1))]) == []
    assert explain_misses(Store(tmp_path / "empty"), [make_signature(region, engine, CompileContext())])[0].nearest is None
