"""Law 9: every node that is not where the first engine of the list would have had it has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.laws.laws import bounded
from xrt.errors import PlanError
from xrt.partition import partition
from xrt.passes import infer_shapes
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.testing.running import make_module
from xrt.testing.strategies import functions, make_random_inputs


@pytest.mark.slow
@bounded
@given(function=functions())
def test_a_declined_node_carries_what_the_engine_said(function):
    function = infer_shapes(function)
    first = RecordingEngine(takes="Relu|Add")
    plan = partition(function, [first, RecordingEngine(mark="last")], strict=True)
    said = {node.name: first.why_not(node, function) for node in function.nodes}
    for reason in plan.reasons:
        if said[reason.node] is not None:
            assert said[reason.node] in reason.text


@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
def test_a_refusal_at_compile_becomes_the_reason():
    function = next(f for f in _drawn() if len(f.nodes) > 2)
    faulty = FaultyEngine(where="compile", how="refuse")
    with make_module(function, [faulty, "toy"]) as module:
        module(*make_random_inputs(function, 0))
        reasons = {r.node: r.text for r in module.plan.reasons if r.engine == faulty.spec}
    assert set(reasons) == {node.name for node in function.nodes}
    assert all("set to refuse" in text for text in reasons.values())


def _drawn():
    from xrt.testing.generate import make_seeded_function

    return (make_seeded_function(seed) for seed in range(50))


def test_strictly_the_error_lists_every_node_and_why():
    function = next(f for f in _drawn() if len({n.op for n in f.nodes}) > 3)
    with pytest.raises(PlanError) as caught, make_module(function, [RecordingEngine(takes="none")]) as module:
        module(*make_random_inputs(function, 0))
    for node in function.nodes:
        assert repr(node.name) in str(caught.value)
    assert "it is set to take none" in str(caught.value)
