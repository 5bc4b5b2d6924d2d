"""The garbage collector stands still while a large graph is built, and only then."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.graph.function import LARGE, pause_gc
from xrt.passes import infer_shapes


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_pauses_for_a_large_graph_and_goes_on_afterwards() -> None:
    with pause_gc(LARGE):
        assert not gc.isenabled()
        with pause_gc(LARGE):
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), pause_gc(LARGE):
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_goes_on_for_a_small_graph() -> None:
    with pause_gc(LARGE - 1):
        assert gc.isenabled()


def test_one_that_the_user_has_switched_off_stays_off() -> None:
    gc.disable()
    with pause_gc(LARGE):
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_last_of_several_threads_puts_it_back() -> None:
    inside, leave = threading.Barrier(2, timeout=300), threading.Event()

    def build() -> None:
        with pause_gc(LARGE):
            inside.wait()
            leave.wait(300)

    thread = threading.Thread(target=build)
    thread.start()
    inside.wait()
    with pause_gc(LARGE):
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_large_graph_is_inferred_and_asked_about_with_it_standing_still() -> None:
    type_ = TensorType(DType.FLOAT32, (2,))
    names = ["x", *(f"v{i}" for i in range(LARGE))]
    nodes = tuple(Node("Relu", (names[i],), (names[i + 1],)) for i in range(LARGE))
    function = infer_shapes(Function((Value("x", type_),), (Value(names[-1], type_),), nodes, opsets={"": 20}))
    assert gc.isenabled()
    assert function.get_type("v1") == type_
