"""The memory tier: one compile per signature, bounded, and nothing closed while in use."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from xrt.cache import CompileCache, Signature
from xrt.cache.memory import wait_until_closed
from xrt.engines import Executable, RunOptions
from xrt.errors import CompileRefused, OptionError

ROOT = Path(__file__).parents[2]


class Counting(Executable):
    def __init__(self) -> None:
        self.closed = 0

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if self.closed:
            raise RuntimeError("used after close")
        return list(inputs)

    def close(self) -> None:
        self.closed += 1


def signature(name: str) -> Signature:
    return Signature((("function", name),))


def test_the_second_asking_is_a_hit() -> None:
    cache = CompileCache()
    first = cache.lease(signature("a"), Counting)
    second = cache.lease(signature("a"), Counting)
    assert first.executable is second.executable
    assert (cache.statistics.hits, cache.statistics.misses, cache.statistics.size) == (1, 1, 1)


def test_threads_that_ask_at_once_share_one_compile() -> None:
    cache, result, barrier = CompileCache(), [], threading.Barrier(8)

    def make() -> Executable:
        result.append(Counting())
        return result[-1]

    leases: list[Any] = []

    def ask() -> None:
        barrier.wait()
        leases.append(cache.lease(signature("a"), make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 1
    assert {id(lease.executable) for lease in leases} == {id(result[0])}


def test_an_executable_that_cannot_tell_its_memory_is_closed() -> None:
    class Mute(Counting):
        def memory(self) -> Any:
            raise RuntimeError("no figures")

    cache, executable = CompileCache(), Mute()
    with pytest.raises(RuntimeError, match=r"^no figures$"):
        cache.lease(signature("a"), lambda: executable)
    assert executable.closed == 1
    assert cache.statistics.size == 0


def test_a_failed_compile_is_raised_and_not_kept() -> None:
    cache = CompileCache()

    def refuse() -> Executable:
        raise CompileRefused("no")

    with pytest.raises(CompileRefused, match=r"^no$"):
        cache.lease(signature("a"), refuse)
    assert signature("a") not in cache
    assert cache.statistics.failures == 1
    assert isinstance(cache.lease(signature("a"), Counting).executable, Counting)


def test_a_forced_compile_leaves_the_old_executable_to_its_users() -> None:
    """The ancestor freed it under them."""
    cache = CompileCache()
    old = cache.lease(signature("a"), Counting)
    new = cache.lease(signature("a"), Counting, force=True)
    assert new.executable is not old.executable
    assert old.executable.run([1]) == [1]
    saved = old.executable
    old.release()
    old.release()
    assert saved.closed == 1  # type: ignore[attr-defined]  # a Counting
    assert new.executable.run([2]) == [2]


def test_eviction_closes_the_least_recently_used_once_nobody_holds_it() -> None:
    cache = CompileCache(capacity=2)
    leases = {name: cache.lease(signature(name), Counting) for name in "ab"}
    a, b = leases["a"].executable, leases["b"].executable
    leases.clear()
    cache.lease(signature("a"), Counting)
    values = cache.lease(signature("c"), Counting)
    assert wait_until_closed(60)
    assert (a.closed, b.closed) == (0, 1)  # type: ignore[attr-defined]  # Countings
    assert cache.statistics.evictions == 1
    cache.clear()
    assert a.closed == 1  # type: ignore[attr-defined]  # a Counting
    assert values.executable.run([1]) == [1]


def test_clearing_closes_every_executable_and_raises_the_first_error() -> None:
    class Stuck(Counting):
        def close(self) -> None:
            super().close()
            raise RuntimeError(f"close {executables.index(self)}")

    executables: list[Counting] = [Counting(), Stuck(), Counting(), Stuck(), Counting()]
    cache = CompileCache()
    for number in range(5):
        cache.lease(signature(str(number)), partial(executables.__getitem__, number)).release()
    with pytest.raises(RuntimeError, match=r"^close 1$"):
        cache.clear()
    assert [executable.closed for executable in executables] == [1] * 5


def test_a_cache_of_no_capacity_is_refused() -> None:
    with pytest.raises(OptionError, match="the capacity of a cache must be at least 1; got 0"):
        CompileCache(0)


@pytest.mark.slow
def test_a_lease_that_lives_to_the_end_of_the_process_is_left_alone() -> None:
    code = (
        "import string, sys; from tests.cache.test_memory import Counting, signature; from xrt.cache import memory; "
        "string.lease = memory.CompileCache().lease(signature('a'), Counting); sys.kept = string, memory"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stderr == ""
