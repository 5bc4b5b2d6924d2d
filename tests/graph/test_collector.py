"""The garbage collector stands still while a large graph is built, and only then."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
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
    inside, leave = threading.Barrier(2, timeout=300), threading.Event()

    def build() -> None:
        with pause_gc(MIN_NODES_TO_PAUSE_GC):
            inside.wait()
            leave.wait(300)

    thread = threading.Thread(target=build)
    thread.start()
    inside.wait()
    with pause_gc(MIN_NODES_TO_PAUSE_GC):
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
