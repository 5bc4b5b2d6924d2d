"""Law 7: change one ingredient and it is another signature; change nothing and it is compiled once, whoever asks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.laws.laws import bounded
from xrt.cache import CompileCache, make_signature
from xrt.engines import CompileContext, ExecutionOptions
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.running import make_module
from xrt.testing.strategies import Form, functions, make_random_inputs


def leaky(shape=(2, 3), dtype=DType.FLOAT32, alpha=0.1, opset=18, added=1.0, op="LeakyRelu") -> Function:
    type_ = TensorType(dtype, shape)
    nodes = (
        Node(op, ("x",), ("h",), name="first").with_attributes(alpha=alpha),
        Node("Add", ("h", "c"), ("y",), name="second"),
    )
    constants = {"c": Constant(np.array([added], dtype.numpy))}
    return Function((Value("x", type_),), (Value("y", type_),), nodes, constants, {"": opset})


CHANGES = {
    "operator": leaky(op="Elu"),
    "attribute": leaky(alpha=0.2),
    "shape": leaky(shape=(3, 2)),
    "rank": leaky(shape=(2, 3, 1)),
    "element type": leaky(dtype=DType.FLOAT64),
    "opset": leaky(opset=19),
    "bytes of a constant": leaky(added=2.0),
    "sign of a zero": leaky(added=-0.0),
    "symbolic extent": leaky(shape=("N", 3)),
    "alias": leaky().replace(aliases=(("x", "y"),)),
    "output more": leaky().replace(outputs=(*leaky().outputs, Value("h", TensorType(DType.FLOAT32, (2, 3))))),
    "control edge": leaky().replace(nodes=(leaky().nodes[0], replace(leaky().nodes[1], control=("first",)))),
    "device of a node": leaky().replace(nodes=(leaky().nodes[0], replace(leaky().nodes[1], device="cuda:1"))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_function_is_another_signature(change):
    base = leaky(added=0.0) if change == "sign of a zero" else leaky()
    mine, other = (make_signature(f, RecordingEngine(), CompileContext()) for f in (base, CHANGES[change]))
    assert mine.key != other.key


@dataclass(frozen=True)
class Versioned(RecordingEngine):
    """A recording engine that claims a version."""

    name: ClassVar[str] = "recording"
    installed: ClassVar[str] = "1"

    def version(self) -> str:
        return self.installed


class Newer(Versioned):
    """The same engine after its library was updated."""

    installed: ClassVar[str] = "2"


Newer.__qualname__ = Versioned.__qualname__  # the class of tomorrow bears the same name


@pytest.mark.parametrize(
    ("ingredient", "one", "other"),
    [
        ("engine", (RecordingEngine(), CompileContext()), (RecordingEngine(takes="Add"), CompileContext())),
        ("version", (Versioned(), CompileContext()), (Newer(), CompileContext())),
        ("threads", (RecordingEngine(), CompileContext(threads=1)), (RecordingEngine(), CompileContext(threads=2))),
        ("device", (RecordingEngine(), CompileContext()), (RecordingEngine(), CompileContext(device="cuda:0"))),
        (
            "options",
            (RecordingEngine(), CompileContext()),
            (RecordingEngine(), CompileContext(ExecutionOptions(precision="fp16"))),
        ),
    ],
)
def test_another_engine_or_context_is_another_signature(ingredient, one, other):
    mine, theirs = make_signature(leaky(), *one), make_signature(leaky(), *other)
    assert mine.key != theirs.key
    assert mine.difference(theirs) == (ingredient,)


@pytest.mark.slow
@bounded
@given(function=functions(), seed=st.integers(0, 9))
def test_an_equal_function_is_the_same_signature(function, seed):
    again = function.replace(name="another", doc=f"{seed}", metadata={"who": "knows"})
    mine, other = (make_signature(f, RecordingEngine(), CompileContext()) for f in (function, again))
    assert mine.key == other.key


@pytest.mark.slow
@bounded
@given(function=functions(Form(symbolic=False)))
def test_a_second_module_hits(function):
    cache, engine = CompileCache(), RecordingEngine()
    for _ in range(2):
        with make_module(function, [engine], cache=cache) as module:
            module(*make_random_inputs(function, 0))
    launches = 1 if function.nodes else 0
    assert engine.journal.count("compile") == launches
    assert cache.statistics.hits == launches


@pytest.mark.slow
def test_one_compile_however_many_threads_ask():
    cache, engine = CompileCache(), RecordingEngine()
    barrier = threading.Barrier(16)
    failures: list[Exception] = []

    def call(number: int) -> None:
        try:
            barrier.wait()
            with make_module(leaky(added=float(number % 3)), [engine], cache=cache) as module:
                for _ in range(3):
                    module(np.ones((2, 3), np.float32))
        except Exception as error:  # noqa: BLE001  # told by the thread that started this one
            failures.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert engine.journal.count("compile") == 3
    assert engine.journal.count("prepare") == 3
    assert engine.journal.count("run") == 48
