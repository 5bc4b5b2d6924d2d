"""The garbage collector stands still while a large graph is built, and only then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from xrt.graph.function import MIN_NODES_TO_PAUSE_GC, pause_gc


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_pauses_for_a_large_graph_alone_and_goes_on_afterwards() -> None:
    with pause_gc(MIN_NODES_TO_PAUSE_GC - 1):
        assert gc.isenabled()
    with suppress(ZeroDivisionError), pause_gc(MIN_NODES_TO_PAUSE_GC):
        with pause_gc(MIN_NODES_TO_PAUSE_GC):
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    with pause_gc(MIN_NODES_TO_PAUSE_GC):
        pass
    assert not gc.isenabled(), "the user has switched it off"


def test_the_last_of_several_threads_puts_it_back() -> None:
    other = pause_gc(MIN_NODES_TO_PAUSE_GC)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(other.__enter__).result(300)
        with pause_gc(MIN_NODES_TO_PAUSE_GC):
            pass
        assert not gc.isenabled()
        pool.submit(other.__exit__, None, None, None).result(300)
    assert gc.isenabled()
