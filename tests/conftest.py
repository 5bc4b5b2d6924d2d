"""Settings of all tests.

Hypothesis has no deadline, because the machine may be busy, and CI tries the same examples each time. Random numbers that a test
draws without setting a seed are the same in every run. Each test file has a new cache directory, which its child processes share;
the user's cache is never touched. Settings of the process that a file has changed are restored before the next file.

`make check` leaves out tests that are marked ``slow``, and `make test` those that are marked ``full``. Of a test that is marked
``sample(N)``, `make test` runs one in N of its parameter sets: always the same ones, and at least one. `make test-full` runs all,
and so does a run that names single tests (``pytest tests/x.py::test_y``).
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import random
import re
import signal
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from xrt.cache import default_cache
from xrt.errors import DeviceError
from xrt.runtime import count_available_cores
from xrt.runtime.devices import device

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("there", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("there" if os.environ.get("CI") else "here")

_cache = tempfile.TemporaryDirectory(prefix="xrt-tests-")
os.environ["XRT_CACHE_DIR"] = _cache.name
os.environ.pop("XRT_CACHE", None)
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import onnxruntime before XRT does
os.environ.pop("XRT_CACHE_SIZE", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited from a shell that started the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that the Makefile uses."""
    parser.addoption("--full", action="store_true", help="run every test, also those that are marked `full` or `sample`")
    parser.addoption("--engine", help="run the tests that have this engine in the name of their file or in their parameters")
    parser.addoption("--quick", action="store_true", help="leave out the tests that are marked `slow`")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported modules and collected tests from garbage collection, since they live as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of this run, move modules with slow tests to the front, and skip CUDA tests if there is no device."""
    if reason := why_no_cuda():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason=reason))
    selected = list(items)
    if not config.option.full and not any("::" in name for name in config.args):
        selected = [item for item in select_samples(selected) if not item.get_closest_marker("full")]
    if engine := config.option.engine:
        word = re.compile(rf"(?<![a-z]){re.escape(engine)}(?![a-z])")
        selected = [item for item in selected if word.search(item.nodeid)]
    if config.option.quick:
        selected = [item for item in selected if not item.get_closest_marker("slow")]
    if len(selected) < len(items):
        chosen = set(selected)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = put_slow_first(selected)


def select_samples(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Select one in N of the parameter sets of each test that is marked ``sample(N)``.

    The order of their hashes decides, so that a regular grid of parameters is not cut along one of its axes.
    """
    sets: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("sample"):
            is_plain = not hasattr(item, "callspec")
            share = mark.kwargs.get("plain", 1) if is_plain else mark.args[0]
            sets[_scope(item) if is_plain else item.nodeid.partition("[")[0], share].append(item)
    left_out: set[pytest.Item] = set()
    for (_, share), group in sets.items():
        group.sort(key=lambda item: zlib.crc32(item.name.encode()))
        left_out.update(group[-(-len(group) // share) :])
    return [item for item in items if item not in left_out]


def put_slow_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Move modules and classes with slow tests to the front, so that at the end no worker still runs a long one."""
    slow = {_scope(item) for item in items if item.get_closest_marker("slow") or item.get_closest_marker("full")}
    return sorted(items, key=lambda item: _scope(item) not in slow)


def _scope(item: pytest.Item) -> str:
    """The unit that `--dist loadscope` sends to one worker."""
    return item.nodeid.rpartition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed the generators before a test module is imported, so that it draws the same numbers after any other import."""
    if isinstance(collector, pytest.Module):
        seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the generators before each test, so that it draws the same numbers in every run."""
    seed_generators()


def seed_generators() -> None:
    """Seed the generators that tests share: the standard library's, NumPy's, and PyTorch's once a test has imported it."""
    random.seed(0)
    np.random.seed(0)  # the one that libraries draw from
    if (torch := sys.modules.get("torch")) and hasattr(torch, "manual_seed"):  # not while a thread of a library imports it
        torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def isolate_file() -> Iterator[None]:
    """Give each test file an empty cache; afterwards restore the settings of the process that it has changed."""
    variables, path, folder = dict(os.environ), list(sys.path), Path.cwd()
    logger = logging.getLogger("xrt")
    level, handlers = logger.level, list(logger.handlers)
    os.environ["XRT_CACHE_DIR"] = tempfile.mkdtemp(dir=_cache.name)  # removed at the end: threads may still write to it
    default_cache.cache_clear()
    with np.errstate():
        yield
    default_cache.cache_clear()
    for name in {*os.environ} - {*variables}:  # others are set by libraries when they are imported
        if name.startswith("XRT_"):
            del os.environ[name]
    os.environ.update(variables)
    os.chdir(folder)
    sys.path[:] = path
    logger.setLevel(level)
    logger.handlers[:] = handlers


@functools.cache
def why_no_cuda() -> str:
    """Return why there is no CUDA device, or an empty string if there is one."""
    try:
        device("cuda")
    except DeviceError as error:
        return f"no CUDA device: {error}"
    return ""


@pytest.fixture
def without_finalizers() -> Iterator[None]:
    """Disable garbage collection during the test, because Python loses an interrupt that arrives while a finalizer runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A function that runs ``xrt`` in this process and returns exit code, output and errors."""
    from xrt.cli import main

    def run(*arguments: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process instead of a worker, whose start would take most of the test's time."""
    from xrt.placement.profiler import LocalRunner

    monkeypatch.setattr("xrt.placement.autotune.choose_runner", lambda engine, limits: LocalRunner(engine))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules have two threads even if this process may use only one core."""
    cores = max(2, count_available_cores())
    monkeypatch.setattr("xrt.runtime.threads.count_available_cores", lambda: cores)


@pytest.fixture
def small_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `ort` store models of any size in the disk cache, even small ones."""
    monkeypatch.setattr("xrt.engines.ort.engine.MIN_SAVED_NODES", 1)
