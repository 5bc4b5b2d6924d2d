"""What a module prepares in the background happens in a process of low priority: calls go on, whatever it holds or does."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.hanging import PATIENCE, wait_until
from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CompileRefused, FallbackWarning
from xrt.graph import Function, Node
from xrt.module.options import REFERENCE
from xrt.worker.background import NICENESS

pytestmark = pytest.mark.sample(3)

FOLDER = "XRT_TEST_BACKGROUND"
"""Names the folder in which processes leave word."""
MODEL = relu(("N", 3))


def hold_the_lock(event: Path) -> None:
    """Hold the interpreter's lock until the event comes: as a library does that does not release it."""
    if not event.exists():
        return
    handle = os.open(event, os.O_RDONLY)  # a FIFO; as it is open for writing already, this waits for nobody
    ctypes.PyDLL(None).read(handle, ctypes.create_string_buffer(1), 1)
    os.close(handle)


@dataclass(frozen=True)
class Compiled(GraphCompiler):
    """The reference, for one size at a time. It compiles and saves for as long as an event has not come, and nobody else runs."""

    name: ClassVar[str] = "compiled"

    fault: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return registry.create(REFERENCE).why_not(node, function)

    def version(self) -> str:
        return "1"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        note(f"compile {os.getpid()} {os.nice(0)}")
        hold_the_lock(Path(os.environ[FOLDER]) / "compile")
        if self.fault == "refuse":
            raise CompileRefused("too small a model")
        if self.fault == "raise":
            raise ValueError("no such operator")
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return registry.create(REFERENCE).compile(function, context)

    def save(self, executable: Executable, context: CompileContext) -> bytes:
        note(f"save {os.getpid()} {os.nice(0)}")
        hold_the_lock(Path(os.environ[FOLDER]) / "save")
        return b"nothing"

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        note(f"load {os.getpid()} {os.nice(0)}")
        return registry.create(REFERENCE).compile(function, context)


def note(line: str) -> None:
    """Leave a line for the test."""
    with (Path(os.environ[FOLDER]) / "notes").open("a") as file:
        file.write(f"{line}\n")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the notes."""
    made = tmp_path / "notes"
    made.mkdir()
    (made / "notes").touch()
    monkeypatch.setenv(FOLDER, str(made))
    return made


@pytest.fixture
def block(folder: Path) -> Iterator[Callable[[str], Callable[[], None]]]:
    """Return what makes a step wait; that returns what lets it go on."""
    handles: list[int] = []

    def make(step: str) -> Callable[[], None]:
        os.mkfifo(folder / step)
        handles.append(os.open(folder / step, os.O_RDWR))
        return lambda handle=handles[-1]: os.write(handle, b"." * 8) and None

    yield make
    for handle in handles:
        os.close(handle)


def read_notes(folder: Path) -> list[tuple[str, bool, int]]:
    """Return what was done: the step, whether here, and at which nice value more than here."""
    lines = [line.split() for line in (folder / "notes").read_text().splitlines()]
    return [(step, int(process) == os.getpid(), int(nice) - os.nice(0)) for step, process, nice in lines]


def make(cache: Any, **options: Any) -> xrt.XRTModule:
    return xrt.XRTModule(MODEL, [Compiled(**options)], first="quickest", cache=cache)


def call(module: xrt.XRTModule, rows: int = 5) -> str:
    """Call the module and return the engine that it was on."""
    values = np.arange(rows * 3, dtype="float32").reshape(rows, 3) - 7
    np.testing.assert_array_equal(module(values), np.maximum(values, 0))
    (engine,) = {launch.engine for launch in module.plan.launches}
    return engine


CACHES = {"directory": lambda folder: folder.parent / "cache", "memory": lambda folder: CompileCache()}


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step", ["compile", "save"])
def test_calls_go_on_while_a_library_holds_the_lock(
    cache: str, step: str, folder: Path, block: Callable[[str], Callable[[], None]]
) -> None:
    """Here, the first of these calls would never return."""
    go_on = block(step)
    with make(CACHES[cache](folder)) as module:
        assert call(module) == "toy"
        wait_until(lambda: any(one == step for one, *_ in read_notes(folder)))
        assert {call(module, rows) for rows in (5, 6, 7)} == {"toy"}
        go_on()
        module.settle(PATIENCE)
        assert call(module) == "compiled"
        assert read_notes(folder)[:3] == [("compile", False, NICENESS), ("save", False, NICENESS), ("load", True, 0)]


@pytest.mark.full
def test_a_later_module_finds_what_was_compiled_there(folder: Path) -> None:
    for is_later in (False, True):
        with make(folder.parent / "cache") as module:
            call(module)
            module.settle(PATIENCE)
            assert call(module) == "compiled"
            module._cache.clear()
        assert [step for step, *_ in read_notes(folder)] == ["compile", "save", "load", "load"][: 4 if is_later else 3]


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("refuse", "too small a model"),
        ("raise", "engine 'compiled{fault=raise}' failed to compile xrt_compiled_0: ValueError: no such operator"),
        ("crash", "engine 'compiled{fault=crash}' failed to compile xrt_compiled_0: its process was ended by SIGSEGV: a crash"),
    ],
)
def test_a_failure_there_places_the_region_elsewhere(cache: str, fault: str, text: str, folder: Path) -> None:
    with make(CACHES[cache](folder), fault=fault) as module, pytest.warns(FallbackWarning, match=text):
        call(module)
        module.settle(PATIENCE)
        assert call(module) == "toy"
        assert module.profile().stand_in_calls == 1
        assert {is_here for _, is_here, _ in read_notes(folder)} == {False}


@pytest.mark.full
def test_what_the_system_kills_is_compiled_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no process can be started: memory for both may have been too little."""
    monkeypatch.setattr(os, "kill", partial(_kill_others, os.kill, os.getpid()))
    with make(folder.parent / "cache", fault="kill") as module:
        call(module)
        module.settle(PATIENCE)
        assert call(module) == "compiled{fault=kill}"
        assert [(step, is_here) for step, is_here, _ in read_notes(folder)] == [("compile", False), ("compile", True)]


def _kill_others(kill: Callable[[int, int], None], own: int, process: int, number: int) -> None:
    if process != own:
        kill(process, number)


@pytest.mark.slow
def test_to_close_the_module_ends_the_compile(folder: Path, block: Callable[[str], Callable[[], None]]) -> None:
    go_on = block("compile")
    module = make(folder.parent / "cache")
    call(module)
    wait_until(lambda: bool(read_notes(folder)))
    (process,) = {int(line.split()[1]) for line in (folder / "notes").read_text().splitlines()}
    go_on()  # for the compile here that takes its place, like one that has begun here
    module.close()
    wait_until(lambda: not Path(f"/proc/{process}").exists())
    module.settle(PATIENCE)


@pytest.mark.full
def test_the_process_ends_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("xrt.placement.background.REST", 0.0)
    with make(folder.parent / "cache") as module:
        for rows in (5, 6):
            call(module, rows)
            call(module, rows)
            module.settle(PATIENCE)
            assert module._tiers is not None
            wait_until(lambda: not module._tiers.work.worker.is_running)
        assert [step for step, *_ in read_notes(folder)] == ["compile", "save", "load"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
def test_a_search_measures_in_the_worker(cache: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is searched for in this process; the decision is the worker's, and a later module finds it where files are kept."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it searches in the process that serves calls")

    monkeypatch.setattr("xrt.placement.auto.tune", refuse)
    given = CACHES[cache](folder)
    engines, options = ["toy", "ort", "auto"], {"budget": 20, "progress": False, "threads": 1}
    with xrt.XRTModule(MODEL, engines, cache=given, **options) as module:
        assert call(module) in ("ort", "toy")
        module.settle(PATIENCE)
        call(module)
        assert module.tuned is not None
        assert (module.tuned.how, module.tuned.race.winner is not None) == ("measured", True)
        assert module.profile().stand_in_calls == 1
        decided = json.dumps([launch.engine for launch in module.plan.launches])
    if cache == "directory":
        with xrt.XRTModule(MODEL, engines, cache=given, first="wanted", **options) as module:
            call(module)
            assert module.tuned is not None
            assert module.tuned.how == "remembered"
            assert json.dumps([launch.engine for launch in module.plan.launches]) == decided
