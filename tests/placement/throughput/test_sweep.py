"""The sweep for throughput on simulated times: what it measures, and that its choice has the highest rate within the bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from tests.placement.throughput.simulated_bench import SPLITS, SimulatedBench, tune
from xrt.errors import OptionError, RunFailed
from xrt.formats.placement_file import Split
from xrt.measure.timing import LoadResult
from xrt.placement.throughput import ThroughputResult, list_splits, parse_batches, parse_bound


def flat(split: Split, size: int) -> float:
    """A perceptron: a call costs much, a request little."""
    return 0.0004 + 0.00001 * size


def convex(split: Split, size: int) -> float:
    """A convolution: a request costs more in a larger batch, as it did when MobileNet was measured."""
    return 0.004 * size * (1.0 + 0.1 * math.log2(size)) / split.threads**0.7


def check_law(found: ThroughputResult) -> None:
    """The chosen point has the highest measured rate within the bound, up to what counts as equal."""
    within = [one.rate for one in found.candidates if one.rate is not None and one.p99 <= found.bound]
    assert found.configuration is not None
    assert found.configuration.rate >= 0.96 * max(within)
    assert found.configuration.p99 <= found.bound
    assert found.candidates[0].verdict == "chosen"
    assert [one.verdict for one in found.candidates].count("chosen") == 1


def test_a_model_whose_calls_cost_much_is_batched() -> None:
    found = tune(SimulatedBench(flat))
    check_law(found)
    assert found.configuration is not None
    assert (found.configuration.batch, found.configuration.instances, found.configuration.concurrency) == (32, 2, 64)
    assert found.configuration.rate == pytest.approx(2 * 32 / flat(SPLITS[1], 32), rel=1e-5)


def test_a_model_is_not_batched_where_that_does_not_pay() -> None:
    found = tune(SimulatedBench(convex))
    check_law(found)
    assert found.configuration is not None
    assert (found.configuration.batch, found.configuration.instances, found.configuration.concurrency) == (1, 2, 2)
    declined = {(one.batch, one.concurrency): one.note for one in found.candidates if one.split == SPLITS[1] and not one.rate}
    assert declined[8, 16] == "batches of 4 already take 21.1 ms"
    assert declined[32, 128] == "batches of 4 already take 21.1 ms"


def test_a_point_over_the_bound_spares_the_deeper_one_of_the_same_batch() -> None:
    bench = SimulatedBench(lambda split, size: 0.01 * size)
    tune(bench, batches=(1, 2), splits=SPLITS[:1], bound=0.012)
    assert [one[:3] for one in bench.loads] == [(SPLITS[0], 1, 1), (SPLITS[0], 1, 2), (SPLITS[0], 2, 2)]


def test_a_tight_bound_takes_smaller_batches() -> None:
    bench = SimulatedBench(lambda split, size: 0.004 + 0.0005 * size, is_exact=True)
    found = tune(bench, bound=0.012, budget=20.0)
    check_law(found)
    assert found.configuration is not None
    assert found.configuration.batch == 8
    assert found.configuration.sizes == (1, 2, 4, 8)
    assert found.configuration.plans == ("one", "one", "one", "two")


def test_nothing_is_chosen_where_a_single_call_takes_too_long() -> None:
    found = tune(SimulatedBench(convex), bound=0.001)
    assert found.configuration is None
    assert found.to_record() is None
    assert found.headline == "nothing serves requests within a p99 of 1 ms; the fastest request takes 2.46 ms"
    assert {one.verdict for one in found.candidates} == {"declined", "over"}


def test_a_point_that_fails_leaves_the_measurements_of_the_others() -> None:
    def run_out_of_memory(split: Split, size: int) -> float:
        if size >= least:
            raise RunFailed(f"no memory for {size} rows")
        return flat(split, size)

    least = 16
    result = tune(SimulatedBench(run_out_of_memory))
    check_law(result)
    assert result.configuration is not None and result.configuration.batch == 8
    failed = {one.batch: one.note for one in result.candidates if one.verdict == "declined"}
    assert failed == {16: "no memory for 16 rows", 32: "no memory for 32 rows"}
    least = 1
    with pytest.raises(RunFailed, match="no memory for 1 rows"):
        tune(SimulatedBench(run_out_of_memory))


def test_requests_that_are_calls_are_tuned_for_instances_alone() -> None:
    found = tune(SimulatedBench(convex, dim=""), batches=(1,))
    check_law(found)
    assert {one.batch for one in found.candidates} == {1}


def test_the_budget_is_divided_and_kept() -> None:
    bench = SimulatedBench(flat)
    found = tune(bench, budget=4.8)
    assert [one[3] for one in bench.loads] == [pytest.approx(0.2)] * 24
    assert found.spent == bench.now == pytest.approx(4.8)


def test_points_for_which_no_time_is_left_say_so() -> None:
    found = tune(SimulatedBench(lambda split, size: 1.0 * size), bound=math.inf, budget=1.0)
    assert [one.verdict for one in found.candidates] == ["chosen"] + ["declined"] * 23
    assert found.candidates[1].note == "no time was left of budget=1 s"


def test_an_interrupt_keeps_what_was_measured() -> None:
    class Interrupted(SimulatedBench):
        def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
            if len(self.loads) == 1:
                raise KeyboardInterrupt
            return super().run_load(split, batch, concurrency, seconds)

    found = tune(Interrupted(flat))
    assert found.is_interrupted
    assert found.configuration is not None and found.configuration.batch == 1


@settings(max_examples=20, deadline=None)
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
        assert record.replace(rows=()) == found.configuration


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
