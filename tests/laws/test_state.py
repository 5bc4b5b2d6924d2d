"""State equals the functional form: each step of a session gives what a call gives that takes and returns the state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from tests.laws.laws import bounded, doubles, living, on_toy, pins
from xrt.comparison import BIT_EQUAL, compare_all, tolerance_for
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.graph import Function, State, declare_states, list_states
from xrt.module.state import StatefulFunction
from xrt.testing.running import make_module
from xrt.testing.strategies import Form, make_random_inputs
from xrt.verify.comparison import find_ambiguity

pytestmark = pytest.mark.slow

RECURRENT = Form(aliases=False, symbolic=False)
PLAIN = Form(dtypes=Form().dtypes[:3], aliases=False, symbolic=False)
STEPS = 3
SLOW = ("tvm", "iree")


@st.composite
def recurrent(draw: st.DrawFn, form: Form = RECURRENT) -> Function:
    """Return a strategy for Functions some of whose outputs are the next values of inputs."""
    function = draw(living(form))
    left = [value for at, value in enumerate(function.outputs) if value not in function.outputs[:at]]
    states = []
    for value in function.inputs:
        alike = [output for output in left if output.type is not None and output.type == value.type]
        if alike and draw(st.integers(0, 3)):
            states.append(State(value.name, alike[draw(st.integers(0, len(alike) - 1))].name))
            left = [output for output in left if output.name != states[-1].output]
    assume(states)
    return declare_states(function, states)


def run_both(module: Any, function: Function, seed: int, compare: Any) -> None:
    """Make steps of a session, each compared with the functional form of what the state was before it."""
    session, of = module.new_session(), StatefulFunction(module, function)
    plain = function.replace(aliases=())
    values = dict(zip((v.name for v in function.inputs), make_random_inputs(function, seed), strict=True))
    for name in of.states:
        session.state[name] = values[name]
    for step in range(STEPS):
        fresh = dict(zip((v.name for v in function.inputs), make_random_inputs(function, seed + step), strict=True))
        before = session.state
        given = [before[v.name] if v.name in of.states else fresh[v.name] for v in function.inputs]
        expected = on_toy(plain, [np.copy(x) for x in given])
        result = session(*[fresh[v.name] for v in of.others])
        shown = () if not of.returned else (result,) if len(of.returned) == 1 else result
        found = [*shown, *(session.state[name] for name in of.states)]
        wanted = [*(expected[place] for place in of.returned), *(expected[place] for place in of.next_values.values())]
        compare(found, wanted, plain, given)


def to_the_bit(found: Any, wanted: Any, *_: Any) -> None:
    same = compare_all(found, wanted, BIT_EQUAL)
    assert same, same.message


def closely(function: Function) -> Any:
    """Return a comparison for what several kernels compute."""

    def compare(found: Any, wanted: Any, plain: Function, inputs: Any) -> None:
        of, ties = StatefulFunction(None, function), find_ambiguity(plain, inputs, on_toy)
        in_order = [ties[place] for place in (*of.returned, *of.next_values.values())]
        same = compare_all(found, wanted, tolerance_for("float32", "network"), ties=in_order)
        assert same, same.message

    return compare


@settings(bounded)
@given(function=recurrent(), seed=st.integers(0, 3))
def test_a_session_on_toy_equals_the_functional_form(function, seed):
    with make_module(function, [REFERENCE]) as module:
        run_both(module, function, seed, to_the_bit)


@settings(bounded)
@given(data=st.data(), function=recurrent())
def test_a_session_over_any_mixture_equals_the_functional_form(data, function):
    engines = doubles()
    with make_module(function, engines, pins=data.draw(pins(function, engines)), fold_constants=False) as module:
        run_both(module, function, 1, to_the_bit)


@settings(bounded, max_examples=40)
@given(data=st.data(), function=recurrent())
def test_a_session_over_regions_that_write_in_place_equals_the_functional_form(data, function):
    engines = [registry.create("toy{native=off}"), registry.create("toy")]
    with make_module(function, engines, pins=data.draw(pins(function, engines))) as module:
        run_both(module, function, 2, closely(function))


@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")  # iree's compiler refuses some regions
@pytest.mark.parametrize("engine", ["ort", "openvino", "xla", "torch", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
@settings(bounded, max_examples=4)
@given(function=recurrent(PLAIN))
def test_a_session_on_an_engine_and_toy_equals_the_functional_form(engine, function):
    assume(any(registry.create(engine).why_not(node, function) is None for node in function.nodes))

    with make_module(function, [engine, "toy"]) as module:
        run_both(module, function, 1, closely(function))


def test_what_is_generated_has_state_of_several_kinds():
    """The laws above look at aliases within a region, across regions, and of passed-through values."""
    counts = {"states": 0, "several": 0}

    @settings(bounded, max_examples=30)
    @given(function=recurrent())
    def look(function):
        counts["states"] += 1
        counts["several"] += len(list_states(function)) > 1

    look()
    assert counts["states"] >= 20 and counts["several"] >= 3, counts
