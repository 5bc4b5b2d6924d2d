"""Law 5: what each of several engines gets right, they get right together, however the nodes alternate between them."""

from __future__ import annotations

import pytest

from tests.laws.laws import outputs_of
from xrt.partition import Pin
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.running import as_planned, make_module


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
