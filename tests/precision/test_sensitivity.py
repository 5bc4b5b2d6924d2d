"""The error of each node alone, and which nodes stay in float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from xrt.models import load, sample_inputs
from xrt.placement.lockfile import QuantizedForm, list_quantizable_nodes, prepare_for_quantization
from xrt.precision.integer_search import choose_kept_nodes, find_node_errors, make_switchable_model

NAMES = [f"n{number}" for number in range(100)]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1) | st.just(math.inf), min_size=1), st.floats(1e-3, 1))
def test_the_others_are_within_the_limit_and_no_node_is_kept_in_vain(errors: dict[str, float], limit: float) -> None:
    kept = choose_kept_nodes(errors, limit)
    rest = [errors[name] for name in errors if name not in kept]
    assert math.sqrt(sum(error**2 for error in rest)) <= limit * (1 + 1e-6)
    assert all(errors[name] >= max(rest, default=0.0) for name in kept)
    if kept and math.isfinite(errors[kept[-1]]):
        assert math.sqrt(sum(error**2 for error in (*rest, errors[kept[-1]]))) >= limit * (1 - 1e-6)


def test_parts_are_divided_until_the_culprit_is_alone() -> None:
    culprit, runs = 37, []

    def measure(switches: np.ndarray) -> float:
        runs.append(int(switches.sum()))
        return math.sqrt(sum(0.25 if at == culprit else 1e-8 for at in np.flatnonzero(switches)))

    found = find_node_errors(NAMES, measure, lambda: True)
    assert found.errors["n37"] == pytest.approx(0.5) and set(found.errors) == {*NAMES}
    assert choose_kept_nodes(found.errors, 0.01) == ["n37"]
    assert found.runs == len(runs) < 40


def test_without_time_parts_count_as_the_worst() -> None:
    left = iter([True, True, *[False] * 200])
    found = find_node_errors(NAMES, lambda switches: 0.1, lambda: next(left))
    assert found.runs <= 3 and len(found.errors) == 100 and max(found.errors.values()) == pytest.approx(0.05)


@pytest.mark.slow
def test_switched_off_a_model_is_exact_and_switched_on_it_is_quantized() -> None:
    prepared = prepare_for_quantization(load("mlp", features=32, hidden=64, classes=8))
    batches = [sample_inputs(prepared, seed) for seed in range(4)]
    with xrt.XRTModule(prepared, engine="ort") as module:
        table, exact = module.calibrate(batches), module(**batches[0])
    names = [name for _, name in list_quantizable_nodes(prepared)]
    with xrt.XRTModule(make_switchable_model(prepared, table, names), engine="ort") as module:
        off, on = (module(**batches[0], xrt_switches=np.full(len(names), state)) for state in (False, True))
    with xrt.XRTModule(QuantizedForm(table).apply(prepared), engine="ort") as module:
        quantized = module(**batches[0])
    assert np.allclose(off, exact, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(on - quantized) < 0.3 * np.linalg.norm(quantized - exact)
