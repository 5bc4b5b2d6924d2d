"""The disk tier: a second process hits, whatever goes wrong with files costs a compile and one warning, never a run."""

from __future__ import annotations

import errno
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from tests.cache.full import run_on_full_disk
from tests.cache.saving import BULK, Saving, chain, module
from xrt.cache import (
    CompileCache,
    CompileRequest,
    Signature,
    Store,
    find_cache_directory,
    make_signature,
    open_cache,
    open_disk_tier,
    parse_size,
)
from xrt.cache.entries import ENTRIES, list_entries
from xrt.cache.records import DEFAULT_LIMIT
from xrt.engines import CompileContext
from xrt.engines.contract.registry import create, probe_all
from xrt.errors import CacheError, CacheWarning, CompileFailed, CompileRefused, OptionError, PlanError
from xrt.formats import onnx
from xrt.graph import Constant, Function
from xrt.module import XRTModule, load
from xrt.testing.generate import rename_values

X = np.arange(4, dtype=np.float32)
SAVING = ["tvm", "ort", "openvino", "xla", "iree"]


@pytest.fixture
def engine(tmp_path: Path) -> Saving:
    return Saving(journal=str(tmp_path / "journal"))


def run(engine: Saving, directory: Path, function: Function | None = None, limit: int = 10**9) -> XRTModule:
    """Run the chain in what stands for a new process: a module with a memory tier of its own."""
    result = module(engine, directory, function, limit)
    np.testing.assert_array_equal(result(X), X + 15)
    return result


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


def test_the_machine_the_version_and_the_module_of_a_class_are_ingredients(
    engine: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sign(engine: Saving) -> Signature:
        return make_signature(chain(1), engine, CompileContext())

    before = sign(engine)
    elsewhere = type("Saving", (Saving,), {"__module__": "elsewhere"})(engine.journal)
    assert sign(elsewhere).list_differences(before) == ("engine", "code")
    changes = {"xrt": ("__version__", "99"), "machine": ("describe_machine", lambda: "another")}
    for ingredient, change in {**changes, "code": ("hash_sources", lambda module: "another")}.items():
        with monkeypatch.context() as patch:
            patch.setattr(f"xrt.cache.signature.{change[0]}", change[1])
            assert sign(engine).list_differences(before) == (ingredient,)


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
    assert "XRT_CACHE=off disables the cache" in str(caught[0].message)
    assert caught[0].filename == __file__


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
    with pytest.warns(CacheWarning, match="could not be used: cache entry .* cannot be used"):
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
    with pytest.raises(CacheError, match="its name is not the key of its signature"):
        ENTRIES.read(first.path)


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


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("file/cache", "it cannot be opened (Not a directory)"),
        ("file", "it cannot be opened (Not a directory)"),
        ("x" * 300, "it cannot be opened (File name too long)"),
        ("loop/cache", "it cannot be opened (Too many levels of symbolic links)"),
        ("loop", "'{}' is a link"),
    ],
)
def test_a_directory_that_cannot_be_opened_costs_one_warning(engine: Saving, tmp_path: Path, where: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    directory = tmp_path / where
    with pytest.warns(CacheWarning) as caught:
        run(engine, directory)
        run(engine, directory)
    assert [str(warning.message).partition(". Its files")[0] for warning in caught] == [
        f"the compile cache in '{directory}' is not used: {reason.format(directory)}"
    ] * 2  # a module each
    assert engine.count("compile") == 12


@pytest.mark.slow
@pytest.mark.parametrize("engine", SAVING)
def test_no_temporary_folder_is_needed(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles are saved and loaded, and engines probed, where no folder for temporary files can be written to."""
    with XRTModule(chain(2), engine=engine, cache=CompileCache()) as module:
        module.compile()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
        module.save(tmp_path / "m.xrt")
    with load(tmp_path / "m.xrt", cache=CompileCache(), strict=True) as loaded:  # strict: nothing is compiled again
        np.testing.assert_array_equal(loaded(X), X + 1)
    assert [status.state for status in probe_all([engine])] == ["ready"]


def test_a_file_system_without_locks_is_used_without(engine: Saving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("fcntl.flock", none)
    run(engine, tmp_path)
    run(engine, tmp_path)
    assert engine.count("compile") == 6


def test_the_least_recently_used_go_beyond_the_limit(engine: Saving, tmp_path: Path) -> None:
    run(engine, tmp_path)
    items = Store(tmp_path).entries.items()
    for age, item in enumerate(items):
        os.utime(item.path, (1e9 + age, 1e9 + age))
    saved = items[0]
    assert Store(tmp_path).entries.read(saved.key) is not None, "reading makes it recent"
    removed = Store(tmp_path).shrink(sum(items[n].size for n in (0, 4, 5)))
    assert [item.key for item in removed] == [item.key for item in items[1:4]]


def test_the_limit_holds_while_writing(engine: Saving, tmp_path: Path) -> None:
    limit = 3 * BULK
    run(engine, tmp_path, limit=limit)
    assert 0 < sum(item.size for item in Store(tmp_path).entries.items()) <= limit
    run(engine, tmp_path / "small", limit=BULK // 2)
    assert Store(tmp_path / "small").entries.items() == []


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    mine, gone = (store.root / "work" / name for name in (f"{os.getpid()}-aa", "999999999-bb"))
    for folder in (mine, gone):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"half")
    assert store.sweep() == 1
    assert mine.exists() and not gone.exists()


def test_clearing_touches_nothing_else(engine: Saving, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    run(engine, tmp_path)
    Store(tmp_path).clear()
    assert Store(tmp_path).entries.items() == []
    assert (tmp_path / "mine.txt").exists()


def test_a_path_that_is_not_text_costs_no_run(engine: Saving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.formats.output.MIN_STAMP_AGE_NS", 0)
    path = tmp_path / os.fsdecode(b"model\xff.onnx")
    large = chain(1).replace(constants={**chain(1).constants, "big": Constant(np.zeros(2**19, np.float32))})
    onnx.save(large, path)
    odd = replace(engine, journal=str(tmp_path / os.fsdecode(b"journal\xff")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = XRTModule(path, engine=[odd], cache=CompileCache(disk=open_disk_tier({}, tmp_path / "cache")), threads=1)
        np.testing.assert_array_equal(module(X), X)


def test_the_environment_says_where_how_large_and_whether(tmp_path: Path) -> None:
    tier = open_disk_tier({"XRT_CACHE_DIR": str(tmp_path), "XRT_CACHE_SIZE": "2 GB"})
    assert tier is not None and (tier.store.directory, tier.limit) == (tmp_path, 2_000_000_000)
    assert open_disk_tier({"XRT_CACHE": "off"}) is None
    assert find_cache_directory({}).name == "xrt"
    assert parse_size("12 MB") == 12_000_000 and parse_size("-1") is None


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("XRT_CACHE", "maybe", "XRT_CACHE must be on or off; got 'maybe', so the disk cache is on"),
        ("XRT_CACHE_SIZE", "big", "XRT_CACHE_SIZE must be a size such as 500MB or 20GB; got 'big', so it is 5GB"),
    ],
)
def test_an_impossible_value_is_reported(variable: str, value: str, shown: str, tmp_path: Path) -> None:
    with pytest.warns(CacheWarning) as caught:
        tier = open_disk_tier({variable: value, "XRT_CACHE_DIR": str(tmp_path)})
    assert str(caught[0].message) == shown
    assert tier is not None and tier.limit == DEFAULT_LIMIT


def test_a_module_takes_a_directory(engine: Saving, tmp_path: Path) -> None:
    XRTModule(chain(), engine=[engine], cache=tmp_path, threads=1)(X)
    assert len(Store(tmp_path).entries.items()) == 1
    assert open_cache(tmp_path) is open_cache(str(tmp_path))
    with pytest.raises(OptionError, match=r"cache must be an xrt\.cache\.CompileCache, or the directory of one; got 3"):
        XRTModule(chain(), engine="toy", cache=3)  # type: ignore[arg-type]  # the mistake


def test_a_new_directory_may_be_created_by_several_threads_at_once(tmp_path: Path) -> None:
    def write(folder: Path, barrier: Barrier) -> None:
        store = Store(folder)
        barrier.wait()
        with store.make_working_directory():
            pass

    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            barrier = Barrier(8)
            writers = [pool.submit(write, tmp_path / f"{number}" / "cache", barrier) for _ in range(8)]
            assert [writer.exception() for writer in writers] == [None] * 8


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("limit", [False, True], ids=["a disk without room", "files that may not grow"])
@pytest.mark.parametrize("spec", SAVING)
def test_a_disk_without_room_ends_no_run(spec: str, limit: bool, tmp_path: Path) -> None:
    completed = run_on_full_disk(tmp_path / "full", spec, limit=limit)
    assert completed["results"] == (X + 15).tolist()
    assert completed["left"] == []
    assert "Traceback" not in completed["stderr"]
    if not completed["mounted"]:  # files could not grow, or nobody may mount here
        return
    assert completed["writes"] == 0
    of_cache = [warning for warning in completed["warnings"] if warning.startswith("the compile cache in ")]
    assert len(set(of_cache)) == 1  # one from each cache that uses the folder
    assert "could not be used: [Errno 28] No space left on device. XRT compiles what is missing" in of_cache[0]
    assert completed["folder"] == ["CACHEDIR.TAG", "xrt-cache"]


@pytest.mark.slow
def test_an_object_goes_through_memory_and_what_does_not_fit_is_an_error(tmp_path: Path) -> None:
    engine = create("tvm")
    executable = engine.compile(chain(1), CompileContext())
    assert len(engine.save(executable, CompileContext(workdir=tmp_path))) > 10_000
    with pytest.raises(OSError, match="No such file or directory"):
        engine.save(executable, CompileContext(workdir=tmp_path / "gone"))


def test_a_program_is_not_saved_where_its_object_might_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from xrt.engines.tvm import serialization

    engine = create("tvm")
    executable = engine.compile(chain(1), CompileContext())
    monkeypatch.setattr(serialization.resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    with pytest.raises(CompileRefused) as caught:
        engine.save(executable, CompileContext(workdir=tmp_path))
    assert str(caught.value) == (
        "LLVM ends the process if it cannot write a file, and this one may not write files over 1048576 bytes (ulimit -f)"
    )
