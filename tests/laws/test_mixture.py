"""Law 5: what each of several engines gets right, they get right together, however the nodes alternate between them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.laws.laws import bounded, living, on_toy, outputs_of
from xrt.comparison import compare_all, tolerance_for
from xrt.engines.contract import registry
from xrt.partition import Pin
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.running import as_planned, make_module
from xrt.testing.strategies import Form, make_random_inputs
from xrt.verify.comparison import find_ambiguity

PLAIN = Form(dtypes=Form().dtypes[:3])


@pytest.mark.slow
@settings(bounded, max_examples=40)
@given(data=st.data(), parity=st.integers(0, 1))
def test_ort_and_toy_alternate(data, parity):
    function = data.draw(living(PLAIN))
    ort = registry.create("ort")
    mine = {n.name for i, n in enumerate(function.nodes) if i % 2 == parity and ort.why_not(n, function) is None}
    rest = {n.name for n in function.nodes} - mine
    pins = [Pin(tuple(sorted(names)), engine, "name") for engine, names in (("ort", mine), ("toy", rest)) if names]
    with make_module(function, ["ort", "toy"], pins=pins) as module:
        results = outputs_of(module(*make_random_inputs(function, 3)), function)
        homes = {node: launch.engine for launch in module.plan.launches for node in launch.nodes}
    assert homes == {n.name: "ort" if n.name in mine else "toy" for n in function.nodes}, "a forcing pin is kept"
    inputs = make_random_inputs(function, 3)
    ties = find_ambiguity(function, inputs, on_toy)
    expected = on_toy(function, make_random_inputs(function, 3))
    found = compare_all(results, expected, tolerance_for("float32", "network"), ties=ties)
    assert found, found.message


@pytest.mark.parametrize("name", [e.name for e in CORPUS])
@pytest.mark.parametrize("parity", [0, 1])
def test_corpus_alternates_between_doubles(name, parity):
    one = find_entry(name)
    engines = [RecordingEngine(mark="even"), RecordingEngine(mark="odd")]
    nodes = as_planned(one.function).nodes
    homes = {e.spec: tuple(n.name for i, n in enumerate(nodes) if i % 2 == (k ^ parity)) for k, e in enumerate(engines)}
    pins = [Pin(names, spec, "name") for spec, names in homes.items() if names]
    with make_module(one.function, engines, pins=pins) as module:
        found = one.judge(outputs_of(module(*one.make_inputs()), one.function))
        if len(nodes) > 1:
            assert len(module.plan.launches) > 1, "a mixture counts only if it is one"
    assert found, found.message
