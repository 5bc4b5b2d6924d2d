"""The search for throughput on simulated times: what it chooses and declines; its choice has the highest measured rate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placement.throughput.simulated_bench import SPLITS, SimulatedBench, tune
from xrt.errors import OptionError
from xrt.placement.throughput.request import Split, list_splits, parse_batches, parse_bound
from xrt.placement.throughput.result import ServingConfiguration, ThroughputResult


def flat(split: Split, size: int) -> float:
    """A perceptron: a call costs much, a request little."""
    return 0.0004 + 0.00001 * size


def convex(split: Split, size: int) -> float:
    """A convolution: a request costs more in a larger batch, as it did when MobileNet was measured."""
    return 0.004 * size * (1.0 + 0.1 * math.log2(size)) / split.threads**0.7


def check_law(found: ThroughputResult) -> None:
    """The chosen configuration has the highest measured rate within the bound."""
    within = [one.load.rate for one in found.candidates if one.load is not None and one.load.p99 <= found.bound]
    assert found.configuration is not None
    assert found.configuration.rate == pytest.approx(max(within), rel=1e-5)
    assert found.configuration.p99 <= found.bound
    assert found.candidates[0].verdict == "chosen"
    assert [one.verdict for one in found.candidates].count("chosen") == 1


@pytest.mark.slow
def test_a_model_whose_calls_cost_much_is_batched() -> None:
    found = tune(SimulatedBench(flat))
    check_law(found)
    assert found.configuration is not None
    assert found.configuration.batch == 32
    assert found.configuration.instances == 2
    assert found.configuration.rate > 0.8 * 2 * 32 / flat(SPLITS[1], 32)


@pytest.mark.slow
def test_a_model_is_not_batched_where_that_does_not_pay() -> None:
    found = tune(SimulatedBench(convex))
    check_law(found)
    assert found.configuration is not None
    assert (found.configuration.batch, found.configuration.instances) == (1, 2)
    declined = {one.batch: one.note for one in found.candidates if one.verdict == "declined" and one.split == SPLITS[1]}
    assert declined[2] == "batching does not pay: 4.4 ms per request, and 4 ms in calls of 1"
    assert declined[16] == "calls of 8 already take 41.6 ms"


@pytest.mark.slow
def test_a_tight_bound_takes_smaller_batches() -> None:
    bench = SimulatedBench(lambda split, size: 0.004 + 0.0005 * size, is_exact=True)
    found = tune(bench, bound=0.012, budget=20.0)
    check_law(found)
    assert found.configuration is not None
    assert found.configuration.batch < 32
    assert found.configuration.sizes == tuple(1 << n for n in range(found.configuration.batch.bit_length()))
    assert len(found.configuration.plans) == len(found.configuration.sizes)


def test_nothing_is_chosen_where_a_single_call_takes_too_long() -> None:
    found = tune(SimulatedBench(convex), bound=0.001)
    assert found.configuration is None
    assert found.to_record() is None
    assert found.headline == "nothing serves requests within a p99 of 1 ms; the quickest call takes 2.46 ms"
    assert {one.verdict for one in found.candidates} == {"declined"}


def test_without_a_bound_the_instances_are_filled() -> None:
    found = tune(SimulatedBench(flat), bound=math.inf, budget=5.0)
    assert found.configuration is not None
    assert found.configuration.batch == 32
    assert found.configuration.rate == pytest.approx(2 * 32 / flat(SPLITS[1], 32), rel=0.1)


@pytest.mark.slow
def test_requests_that_are_calls_are_tuned_for_instances_alone() -> None:
    found = tune(SimulatedBench(convex, dim=""), batches=(1,))
    check_law(found)
    assert {one.batch for one in found.candidates} == {1}


@pytest.mark.slow
def test_a_rate_that_fresh_arrivals_do_not_confirm_is_lowered() -> None:
    """The machine becomes slower while it is measured: the rate of the search is not what is reported."""
    before = SimulatedBench(lambda split, size: 0.002)
    tune(before, batches=(1,), budget=20.0)
    confirmation = len(before.loads)
    bench = SimulatedBench(lambda split, size: 0.002 * (1.3 if len(bench.loads) >= confirmation else 1.0))
    found = tune(bench, batches=(1,), budget=20.0)
    check_law(found)
    assert found.configuration is not None
    assert found.configuration.rate < 2 / 0.0026


def test_the_budget_is_kept() -> None:
    bench = SimulatedBench(flat)
    found = tune(bench, budget=5.0)
    assert bench.now < 6.0
    assert found.spent == bench.now


def test_an_interrupt_keeps_what_was_measured() -> None:
    class Interrupted(SimulatedBench):
        def run_load(self, *terms: object) -> object:  # type: ignore[override]  # raises in the end
            if len(self.loads) == 1:
                raise KeyboardInterrupt
            return super().run_load(*terms)  # type: ignore[arg-type]

    found = tune(Interrupted(flat))
    assert found.is_interrupted
    assert found.candidates


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.floats(1e-4, 5e-3),
    st.floats(1e-5, 2e-3),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.2),
    st.floats(0.004, 0.05),
    st.booleans(),
    st.integers(0, 5),
)
def test_the_choice_has_the_highest_measured_rate(
    call: float, row: float, scaling: float, noise: float, bound: float, is_exact: bool, seed: int
) -> None:
    def service(split: Split, size: int) -> float:
        return (call + row * size) / split.threads**scaling

    found = tune(SimulatedBench(service, noise, is_exact=is_exact, seed=seed), bound=bound, budget=5.0, batches=(1, 4, 16))
    if found.configuration is not None:
        check_law(found)
        record = found.to_record()
        assert record is not None
        assert ServingConfiguration.from_record(record) == found.configuration


def test_a_thread_budget_is_divided_without_a_rest_where_that_can_be() -> None:
    assert list_splits(1) == (Split(1, 1),)
    assert list_splits(8, (1, 3)) == (Split(1, 8), Split(3, 2))
    with pytest.raises(OptionError) as caught:
        list_splits(2, (4,))
    assert str(caught.value) == (
        "instances=4 needs a thread for each, and the thread budget is 2; ask for at most 2 instances, or raise threads="
    )


def test_what_is_asked_for_is_checked() -> None:
    assert parse_batches((8, 2)) == (1, 2, 8)
    assert parse_bound(None) == math.inf
    with pytest.raises(OptionError) as caught:
        parse_batches([0])
    assert str(caught.value) == "batches must be positive integers, such as batches=(1, 2, 4); got [0]"
    with pytest.raises(OptionError) as caught:
        parse_batches(range(1, 40))
    assert str(caught.value) == "batches has 39 numbers, each of which is measured; at most 16 can be"
    with pytest.raises(OptionError) as caught:
        parse_bound(0)
    assert str(caught.value) == "p99 must be a positive number of seconds, such as p99=0.020, or None; got 0"
