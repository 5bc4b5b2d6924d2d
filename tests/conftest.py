"""Settings of all tests: hypothesis does not judge by the clock of a loaded machine, and CI tries the same examples each time.

Random numbers that a test draws without a seed of its own are the same in every run.

No test touches the user's own cache: each process of the tests has a directory of its own, which its children share.

A test that is marked ``proof(subject, share=N, laws=M)`` belongs to what proves that subject. Where the subject has a record in
``tests/proofs.json``, a run without ``--full`` takes one in N of its tests that have parameters, and one in M (all, where M is
not given) of those that have none; with N = 0 it takes none. ``--full`` takes all tests, ``--subject`` those of one subject;
where they pass, the record notes what was proved (see tools/proofs.py).

A run with ``--quick`` leaves out what is marked ``slow`` and what ``tests/slow_tests.json`` lists (see tools/slow_tests.py).
"""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Container, Generator, Sequence

import numpy as np
import pytest
from hypothesis import settings

from tools.proofs import SUBJECTS, read_record, renew_record
from tools.slow_tests import name_function, read_slow_tests, write_slow_tests
from xrt.errors import DeviceError
from xrt.runtime import available_cores
from xrt.runtime.devices import device

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("there", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("there" if os.environ.get("CI") else "here")

_cache = tempfile.TemporaryDirectory(prefix="xrt-tests-")
os.environ["XRT_CACHE_DIR"] = _cache.name
os.environ.pop("XRT_CACHE", None)
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import onnxruntime before XRT does
os.environ.pop("XRT_CACHE_SIZE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the Makefile says."""
    parser.addoption("--full", action="store_true", help="run every test, and note in tests/proofs.json what passed")
    parser.addoption("--quick", action="store_true", help="leave out tests that are slow, or were when they were timed")
    parser.addoption("--note-slow", action="store_true", help="note in tests/slow_tests.json which tests are slow")
    parser.addoption("--subject", choices=SUBJECTS, help="run the tests that prove this subject, and note it if they pass")


def pytest_configure(config: pytest.Config) -> None:
    """Take note of what is proved, in the one process that hears of all tests."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ProofRecorder(config))
        if config.option.note_slow:
            config.pluginmanager.register(DurationRecorder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported and collected, which lives as long as the process, out of every collection of garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `--full` runs, and skip what needs a CUDA device where there is none."""
    if reason := why_no_cuda():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason=reason))
    recorded = read_record()
    kept = [item for item in items if is_selected(item, config.option.full, config.option.subject, recorded)]
    if config.option.quick:
        slow = read_slow_tests()
        kept = [item for item in kept if not item.get_closest_marker("slow") and name_function(item.nodeid) not in slow]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = put_slow_first(kept)


def put_slow_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with the modules and classes that have slow ones first, so that no worker ends with a long one alone."""
    slow = {_scope(item) for item in items if item.get_closest_marker("slow")}
    return sorted(items, key=lambda item: _scope(item) not in slow)


def _scope(item: pytest.Item) -> str:
    """Return what `--dist loadscope` gives to one worker as a whole."""
    return item.nodeid.rpartition("::")[0]


def is_selected(item: pytest.Item, full: bool, subject: str | None, recorded: Container[str]) -> bool:
    """Whether such a run has the test; what no record says of a subject has to be run."""
    mark = item.get_closest_marker("proof")
    if subject:
        return mark is not None and mark.args == (subject,)
    if full or mark is None or mark.args[0] not in recorded:
        return True
    share = mark.kwargs["share"] if hasattr(item, "callspec") else mark.kwargs["share"] and mark.kwargs.get("laws", 1)
    return bool(share) and zlib.crc32(item.nodeid.encode()) % share == 0


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let a module of tests draw the same numbers when it is imported, whatever was imported before it."""
    if isinstance(collector, pytest.Module):
        seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test draw the same numbers in every run, and send the subject with the test's reports."""
    seed_generators()
    if mark := item.get_closest_marker("proof"):
        item.user_properties.append(("proof", mark.args[0]))


def seed_generators() -> None:
    """Seed the generators that tests share: the standard library's, NumPy's, and PyTorch's once a test has imported it."""
    random.seed(0)
    np.random.seed(0)  # the one that libraries draw from
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


class ProofRecorder:
    """Counts the tests of each subject, and notes those subjects that passed a whole run."""

    def __init__(self, config: pytest.Config) -> None:
        self._options = config.option
        option = config.option
        narrowed = option.keyword or option.deselect or option.maxfail or getattr(option, "lf", False)
        self._is_whole = not narrowed and option.markexpr in ("", "proof") and config.args_source.name != "ARGS"
        self._passed: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._crashed = False
        """Whether a worker ended: its report does not say what the test belonged to."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that was called, or the failure of a phase of it."""
        self._crashed |= report.when not in ("setup", "call", "teardown")
        for subject in (value for key, value in report.user_properties if key == "proof"):
            if report.failed:
                self._failed.add(str(subject))
            elif report.when == "call" and report.passed:
                self._passed[str(subject)] += 1

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write what was proved; a run that was stopped, crashed or could not collect proves nothing."""
        whole = self._is_whole and not self._crashed and (self._options.full or self._options.subject)
        if whole and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            renew_record({name: count for name, count in self._passed.items() if name not in self._failed})


class DurationRecorder:
    """Times the tests, and notes those that are slow."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a phase of a test took."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write what was slow."""
        each: defaultdict[str, list[float]] = defaultdict(list)
        for nodeid, seconds in self._seconds.items():
            each[name_function(nodeid)].append(seconds)
        write_slow_tests(each)


@functools.cache
def why_no_cuda() -> str:
    """Return why there is no CUDA device; empty where there is one."""
    try:
        device("cuda")
    except DeviceError as error:
        return f"no CUDA device: {error}"
    return ""


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules have two threads where this process may use one core too."""
    cores = max(2, available_cores())
    monkeypatch.setattr("xrt.runtime.threads.available_cores", lambda: cores)


@pytest.fixture
def small_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk cache keep what `ort` compiles of models of any size."""
    monkeypatch.setattr("xrt.engines.ort.engine.WORTH_SAVING", 1)
