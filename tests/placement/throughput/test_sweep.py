"""The sweep for throughput on simulated times: what it measures, its choice, what it prints, and what files hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.exact_errors import raises_exactly
from xrt.errors import OptionError, PlacementFileError, RunFailed
from xrt.formats.placement_file import PlacementFile, Split, dumps, loads, read_placement, write_placement
from xrt.measure.timing import LoadResult
from xrt.placement import throughput

SPLITS = (Split(1, 2), Split(2, 1))


@dataclass(eq=False)
class SimulatedBench:
    """Calls of ``size`` requests on a split take ``service(split, size)`` seconds."""

    service: Callable[[Split, int], float]
    noise: float = 0.0
    """Deviation of the logarithm of a call's time."""
    dim: str = "N"
    is_exact: bool = False
    now: float = 0.0
    loads: list[tuple[Split, int, int, float]] = field(default_factory=list)
    seed: int = 1

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    def clock(self) -> float:
        return self.now

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        self.loads.append((split, batch, concurrency, seconds))
        call = self.service(split, batch) * float(np.exp(self.noise * self._generator.standard_normal()))
        self.now += max(seconds, 5 * call)
        latency = concurrency / (batch * split.instances) * call
        return LoadResult(concurrency, batch * split.instances / call, 100, latency, 1.1 * latency)

    def describe_plan(self, split: Split, size: int) -> str:
        return "one" if size < 8 else "two"

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        return 1000 + 100 * split.instances * len(sizes)


def tune(bench: SimulatedBench, **terms: object) -> throughput.ThroughputResult:
    request = throughput.ThroughputRequest(**{"splits": SPLITS, "bound": 0.02, "budget": 120.0, **terms})  # type: ignore[arg-type]
    return throughput.ThroughputSweep(bench, request, clock=bench.clock).run()


def flat(split: Split, size: int) -> float:
    """A perceptron: a call costs much, a request little."""
    return 0.0004 + 0.00001 * size


def convex(split: Split, size: int) -> float:
    """A convolution: a request costs more in a larger batch, as it did when MobileNet was measured."""
    return 0.004 * size * (1.0 + 0.1 * math.log2(size)) / split.threads**0.7


def check_law(actual: throughput.ThroughputResult) -> None:
    """The chosen point has the highest measured rate within the bound, up to what counts as equal."""
    within = [candidate.rate for candidate in actual.candidates if candidate.rate is not None and candidate.p99 <= actual.bound]
    assert actual.configuration.rate >= 0.96 * max(within)
    assert actual.configuration.p99 <= actual.bound
    assert actual.candidates[0].verdict == "chosen"
    assert [candidate.verdict for candidate in actual.candidates].count("chosen") == 1


def test_a_model_whose_calls_cost_much_is_batched() -> None:
    result = tune(SimulatedBench(flat))
    check_law(result)
    assert (result.configuration.batch, result.configuration.instances, result.configuration.concurrency) == (32, 2, 64)
    assert result.configuration.rate == pytest.approx(2 * 32 / flat(SPLITS[1], 32), rel=1e-5)


def test_a_model_is_not_batched_where_that_does_not_pay() -> None:
    result = tune(SimulatedBench(convex))
    check_law(result)
    assert (result.configuration.batch, result.configuration.instances, result.configuration.concurrency) == (1, 2, 2)
    declined = {
        (candidate.batch, candidate.concurrency): candidate.note
        for candidate in result.candidates
        if candidate.split == SPLITS[1] and not candidate.rate
    }
    assert declined[8, 16] == "batches of 4 already take 21.1 ms"
    assert declined[32, 128] == "batches of 4 already take 21.1 ms"


def test_a_point_over_the_bound_spares_the_deeper_one_of_the_same_batch() -> None:
    bench = SimulatedBench(lambda split, size: 0.01 * size)
    tune(bench, batches=(1, 2), splits=SPLITS[:1], bound=0.012)
    assert [item[:3] for item in bench.loads] == [(SPLITS[0], 1, 1), (SPLITS[0], 1, 2), (SPLITS[0], 2, 2)]


def test_a_tight_bound_takes_smaller_batches() -> None:
    bench = SimulatedBench(lambda split, size: 0.004 + 0.0005 * size, is_exact=True)
    result = tune(bench, bound=0.012, budget=20.0)
    check_law(result)
    assert result.configuration.batch == 8
    assert result.configuration.sizes == (1, 2, 4, 8)
    assert result.configuration.plans == ("one", "one", "one", "two")


def test_nothing_is_chosen_where_a_single_call_takes_too_long() -> None:
    result = tune(SimulatedBench(convex), bound=0.001)
    assert result.configuration is None
    assert result.to_record() is None
    assert result.headline == "nothing serves requests within a p99 of 1 ms; the fastest request takes 2.46 ms"
    assert {candidate.verdict for candidate in result.candidates} == {"declined", "over"}


def test_a_point_that_fails_leaves_the_measurements_of_the_others() -> None:
    def run_out_of_memory(split: Split, size: int) -> float:
        if size >= least:
            raise RunFailed(f"no memory for {size} rows")
        return flat(split, size)

    least = 16
    result = tune(SimulatedBench(run_out_of_memory))
    check_law(result)
    assert result.configuration is not None and result.configuration.batch == 8
    failed = {candidate.batch: candidate.note for candidate in result.candidates if candidate.verdict == "declined"}
    assert failed == {16: "no memory for 16 rows", 32: "no memory for 32 rows"}
    least = 1
    with pytest.raises(RunFailed, match="no memory for 1 rows"):
        tune(SimulatedBench(run_out_of_memory))


def test_requests_that_are_calls_are_tuned_for_instances_alone() -> None:
    result = tune(SimulatedBench(convex, dim=""), batches=(1,))
    check_law(result)
    assert {candidate.batch for candidate in result.candidates} == {1}


def test_the_budget_is_divided_and_kept() -> None:
    bench = SimulatedBench(flat)
    result = tune(bench, budget=4.8)
    assert [item[3] for item in bench.loads] == [pytest.approx(0.2)] * 24
    assert result.spent == bench.now == pytest.approx(4.8)


def test_points_for_which_no_time_is_left_say_so() -> None:
    result = tune(SimulatedBench(lambda split, size: 1.0 * size), bound=math.inf, budget=1.0)
    assert [candidate.verdict for candidate in result.candidates] == ["chosen"] + ["declined"] * 23
    assert result.candidates[1].note == "no time was left of budget=1 s"


def test_an_interrupt_keeps_what_was_measured() -> None:
    class Interrupted(SimulatedBench):
        def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
            if len(self.loads) == 1:
                raise KeyboardInterrupt
            return super().run_load(split, batch, concurrency, seconds)

    result = tune(Interrupted(flat))
    assert result.is_interrupted
    assert result.configuration is not None and result.configuration.batch == 1


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

    result = tune(SimulatedBench(service, noise, is_exact=is_exact, seed=seed), bound=bound, budget=5.0, batches=(1, 4, 16))
    if result.configuration is not None:
        check_law(result)
        record = result.to_record()
        assert record.replace(rows=()) == result.configuration


def test_a_thread_budget_is_divided_without_a_rest_where_that_can_be() -> None:
    assert throughput.list_splits(1) == (Split(1, 1),)
    assert throughput.list_splits(8, (1, 3)) == (Split(1, 8), Split(3, 2))
    with raises_exactly(
        OptionError,
        "instances=4 needs a thread for each, and the thread budget is 2; ask for at most 2 instances, or raise threads=",
    ):
        throughput.list_splits(2, (4,))


def test_what_is_asked_for_is_checked() -> None:
    assert throughput.parse_batches((8, 2)) == (1, 2, 8)
    assert throughput.parse_bound(None) == math.inf
    with raises_exactly(OptionError, "batches must be positive integers, such as batches=(1, 2, 4); got [0]"):
        throughput.parse_batches([0])
    with raises_exactly(OptionError, "batches has 39 numbers, each of which is measured; at most 16 can be"):
        throughput.parse_batches(range(1, 40))
    with raises_exactly(OptionError, "p99 must be a positive number of seconds, such as p99=0.020, or None; got 0"):
        throughput.parse_bound(0)


def test_a_result_prints_as_a_table() -> None:
    result = tune(SimulatedBench(lambda split, size: 0.001 * size), batches=(1, 2), budget=5.0)
    first, points, chosen, *others = str(result).splitlines()
    assert result.configuration is not None
    assert first == f"most requests per second within a p99 of 20 ms: {result.configuration}"
    assert str(result.configuration) == "no batching, 2 instances of 1 thread, 2 in flight: 2000/s, p50 1 ms, p99 1.1 ms"
    assert points == "  8 points, 5.0 of 5 s"
    assert chosen == "  chosen: batch 1, 2 instances of 1 thread, 2 in flight, on one, 2000/s, p50 1 ms, p99 1.1 ms"
    assert "  within: batch 2, 2 instances of 1 thread, 8 in flight, on one, 2000/s, p50 4 ms, p99 4.4 ms" in others


@pytest.mark.parametrize("bound", [0.02, math.inf])
def test_a_placement_file_holds_the_configuration_and_its_search(bound: float, tmp_path: Path) -> None:
    result = tune(SimulatedBench(flat, is_exact=True), bound=bound, budget=5.0)
    record = result.to_record()
    write_placement(PlacementFile(serving=record), tmp_path / "m.lock")
    read = read_placement(tmp_path / "m.lock")
    assert read.serving == record
    assert record.replace(rows=()) == result.configuration
    assert len(record.rows) == len(result.candidates)


def test_a_damaged_configuration_is_refused() -> None:
    result = tune(SimulatedBench(flat, is_exact=True), budget=5.0)
    text = dumps(PlacementFile(serving=result.to_record()))
    with pytest.raises(PlacementFileError) as caught:
        loads(
            text.replace('"batch": 32', '"batch": 0', 1) if '"batch": 32' in text else text.replace('"batch": 16', '"batch": 0')
        )
    assert caught.value.position.startswith("serving")


def test_a_page_lists_all_points() -> None:
    result = tune(SimulatedBench(convex), budget=20.0)
    page = throughput.render_throughput_page(result, "a <model>")
    assert "Throughput of a &lt;model&gt;" in page
    for candidate in result.candidates:
        assert f"batch {candidate.batch}, {candidate.split}" in page
        assert f"batch {candidate.batch}, {candidate.split}" in result._repr_html_()
