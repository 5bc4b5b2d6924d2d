"""Law 4: with toy behind, whatever the engine in front declines, refuses or fails at, the result is toy's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.laws.laws import bounded, outputs_of, same_bits
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import FallbackWarning, RunFailed
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine
from xrt.testing.running import make_module
from xrt.testing.strategies import functions, make_random_inputs

BEFORE_THE_RUN = [("why_not", "refuse"), ("compile", "refuse"), ("compile", "raise"), ("prepare", "raise")]
ANYWHERE = [*BEFORE_THE_RUN, ("run", "raise"), ("run", "missing")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::xrt.errors.FallbackWarning")
@pytest.mark.parametrize(("where", "how"), ANYWHERE)
@settings(bounded, max_examples=25)
@given(data=st.data(), nth=st.integers(0, 2))
def test_what_fails_goes_to_toy(where, how, data, nth):
    function = data.draw(functions()).replace(aliases=())  # a call that updates in place is not repeated
    with make_module(function, [FaultyEngine(where=where, how=how, nth=nth), REFERENCE], strict=False) as module:
        found = same_bits(outputs_of(module(*make_random_inputs(function, 1)), function), function, 1)
    assert found, found.message


@pytest.mark.parametrize(("where", "how"), ANYWHERE[1:])
def test_a_refusal_is_reported(where, how):
    one = find_entry("engines_alternate")
    with make_module(one.function, [FaultyEngine(where=where, how=how), REFERENCE], strict=False) as module:
        with pytest.warns(FallbackWarning, match="set to (fail|refuse)|returned 0 outputs"):
            results = [module(*one.make_inputs())]
        assert one.judge(results)
        assert {launch.engine for launch in module.plan.launches} == {REFERENCE}


def test_what_fails_is_an_error_where_the_module_is_strict():
    one = find_entry("engines_alternate")
    with (
        make_module(one.function, [FaultyEngine(where="run", how="raise"), REFERENCE]) as module,
        pytest.raises(RunFailed, match=r"xrt_faulty_0.*set to fail in run"),
    ):
        module(*one.make_inputs())


@pytest.mark.parametrize("name", [e.name for e in CORPUS])
def test_corpus(name):
    one = find_entry(name)
    with make_module(one.function, [RecordingEngine(takes="Neg|Add|If|Concat|Cast"), REFERENCE]) as module:
        found = one.judge(outputs_of(module(*one.make_inputs()), one.function))
    assert found, found.message
