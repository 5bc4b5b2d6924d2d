"""Alternation: whose turn it is, who takes what, and what a case then counts as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from xrt.errors import CompileFailed, CompileRefused, OptionError
from xrt.graph import Function
from xrt.testing import ResultWord, conform
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.testing.running import alternate_engines, make_alternating_program

RELU = "test_single_relu_model"


def chain(*operators: str) -> Function:
    """x -> a0 -> a1 -> ...; the last is the output."""
    names = ["x", *(f"a{i}" for i in range(len(operators)))]
    nodes = [node(op, names[i], names[i + 1]) for i, op in enumerate(operators)]
    return graph({"x": "float32[2]"}, {names[-1]: "float32[2]"}, *nodes)


def branches() -> Function:
    """Two nodes read x, and one reads both."""
    nodes = node("Relu", "x", "l"), node("Neg", "x", "r"), node("Add", "l r", "y")
    return graph({"x": "float32[2]"}, {"y": "float32[2]"}, *nodes)


@dataclass(frozen=True)
class Second(RecordingEngine):
    """Another engine that takes everything."""

    name: ClassVar[str] = "second"


BOTH = (RecordingEngine(), Second())
PICKY = FaultyEngine(refuses="Relu", nth=99)
"""Says nothing against Relu before it is to compile it."""


@pytest.mark.parametrize(
    ("function", "engines", "first", "expected"),
    [
        (chain("Relu", "Neg", "Abs", "Relu"), BOTH, 0, "recording second recording second"),
        (chain("Relu", "Neg"), BOTH, 1, "second recording"),
        (branches(), BOTH, 0, "recording recording second"),
        (chain("Relu", "Neg", "Abs", "Relu"), (RecordingEngine(takes="Relu"), Second()), 0, "recording second second recording"),
        (chain("Neg", "Neg", "Neg", "Neg"), (*BOTH, PICKY), 0, "recording second faulty recording"),
    ],
    ids=["a chain", "the other begins", "after both inputs", "one declines", "three engines"],
)
def test_each_node_is_a_region_on_the_engine_whose_turn_it_is(function, engines, first, expected):
    launches = alternate_engines(function, engines, first).launches
    assert [launch.nodes for launch in launches] == [(node.name,) for node in function.nodes]
    assert [launch.engine.partition("{")[0] for launch in launches] == expected.split()


def test_the_first_engine_follows_a_node_on_the_last_resort():
    plan = alternate_engines(
        chain("Neg", "Abs", "Neg"), (RecordingEngine(takes="Neg"), Second(takes="Neg"), PICKY), last_resort=True
    )
    assert [launch.engine.partition("{")[0] for launch in plan.launches] == ["recording", "faulty", "recording"]


def test_what_nobody_takes_or_all_refuse_is_declined_with_every_reason():
    with pytest.raises(CompileRefused, match=r"Neg: second.*; recording.*"):
        alternate_engines(chain("Relu", "Neg"), (RecordingEngine(takes="Relu"), Second(takes="Abs")), 0)
    with pytest.raises(CompileRefused, match="the faulty engine is set to refuse Relu"):
        make_alternating_program(chain("Relu"), [np.zeros(2, np.float32)], (PICKY, Second(takes="Neg")))


def test_what_is_refused_at_compile_the_other_takes():
    x = np.array([-1.0, 2.0], np.float32)
    program = make_alternating_program(chain("Relu", "Neg", "Relu"), [x], (PICKY, Second()))
    assert [launch.engine.partition("{")[0] for launch in program.plan.launches] == ["second", "faulty", "second"]
    np.testing.assert_array_equal(program.run([x])[0], [0, 0])
    program.close()


def test_a_failure_to_compile_is_no_refusal():
    with pytest.raises(CompileFailed):
        make_alternating_program(chain("Relu"), [np.zeros(2, np.float32)], (FaultyEngine(where="compile"), Second()))


def test_symbolic_dims_are_bound_where_an_engine_wants_them():
    @dataclass(frozen=True)
    class Fixed(RecordingEngine):
        name: ClassVar[str] = "fixed"
        supports_dynamic_shapes: ClassVar[bool] = False

    symbolic = graph({"x": "float32[n]"}, {"y": "float32[n]"}, node("Relu", "x", "a"), node("Neg", "a", "y"))
    program = make_alternating_program(symbolic, [np.zeros(5, np.float32)], (Second(), Fixed()))
    assert {launch.function.inputs[0].type.shape for launch in program.plan.launches} == {(5,)}


def test_every_case_runs_once_for_each_engine_to_begin_with():
    report = conform(BOTH, RELU, groups=["simple"], alternate=True)
    [outcome] = report.outcomes
    assert (outcome.word, outcome.engines) == (ResultWord.PASSED, ("recording", "second"))
    assert report.mixed == 1
    assert "alternating: 1 passed" in str(report)
    assert str(report).endswith("1 ran on several engines")


def test_one_round_that_fails_is_a_failure():
    [outcome] = conform([RecordingEngine(), FaultyEngine(how="value")], RELU, groups=["simple"], alternate=True).outcomes
    assert outcome.word is ResultWord.FAILED


@pytest.mark.parametrize(
    ("engines", "options", "message"),
    [
        ("toy", {}, "nodes alternate between two engines or more; list another"),
        (BOTH, {"opening": "every"}, "^opening='every' compiles a case on one engine at a time, and alternate=True on several"),
    ],
    ids=["one engine", "symbolic dims"],
)
def test_what_cannot_alternate_is_refused(engines, options, message):
    with pytest.raises(OptionError, match=message):
        conform(engines, RELU, groups=["simple"], alternate=True, **options)
