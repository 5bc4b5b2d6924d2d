"""Special numbers among the inputs of generated graphs: they are there, and what they break is found unless it is open."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.testing.test_special import Honest, Losing
from xrt.cli.app import main
from xrt.engines.contract import registry
from xrt.graph import Function
from xrt.passes import infer_shapes
from xrt.testing.batches import merge, settle_batch
from xrt.testing.corpus.entry import f32, graph, i64, node
from xrt.testing.execution_modes import Alternating
from xrt.testing.fault_injection import FaultyEngine
from xrt.testing.fuzz import Fuzzer, make_sample
from xrt.testing.open_results import Losses, admit_open_results
from xrt.testing.shrink import Sample
from xrt.testing.special_inputs import has_denormals, insert_special_numbers, select_kinds, with_zeros_for_denormals
from xrt.verify import Verdict
from xrt.verify.execution import run_alone

NAN, INF = np.nan, np.inf
NOTHING = Losses({"nan": frozenset(), "infinity": frozenset()}, frozenset())


def on_toy(function: Function, inputs: Any) -> list[Any]:
    return run_alone(registry.create("toy"), function, inputs)


@pytest.mark.slow
def test_half_of_the_graphs_have_special_numbers_of_each_kind() -> None:
    arrays = [array for seed in range(300) for array in make_sample(seed).inputs if array.dtype.kind == "f"]
    assert sum(bool(np.isnan(array).any()) for array in arrays) > 30
    assert sum(bool(np.isinf(array).any()) for array in arrays) > 30
    assert sum(has_denormals(array, frozenset({"float32", "float64"})) for array in arrays) > 30
    assert sum(not select_kinds(seed) for seed in range(300)) > 100


@pytest.mark.slow
def test_casts_between_float_types_are_among_the_operators() -> None:
    kinds = {(str(n.attr("to"))) for seed in range(400) for _, n in make_sample(seed).function.walk() if n.op == "Cast"}
    assert {"1", "10", "11", "16"} <= kinds


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_numbers_are_inserted_in_a_copy(dtype: Any) -> None:
    given = [np.ones((3, 4), dtype), np.ones(3, np.int64)]
    seed = next(seed for seed in range(100) if len(select_kinds(seed)) == 3)
    changed, kept = insert_special_numbers(given, seed)
    assert kept is given[1] and (given[0] == 1).all()
    assert changed.dtype == dtype and (changed != 1).any()


def test_denormal_numbers_become_zeros_with_their_signs() -> None:
    array = f32(1e-40, -1e-40, 1, NAN, INF)
    flushed = with_zeros_for_denormals(array, frozenset({"float32"}))
    assert flushed.tolist()[:3] == [0, 0, 1] and np.signbit(flushed).tolist()[:2] == [False, True]
    assert with_zeros_for_denormals(array, frozenset({"float64"})) is array


@pytest.mark.slow
def test_a_lost_nan_is_found_unless_it_is_declared() -> None:
    losing, honest = Fuzzer([Losing(native="off")], kinds=["alone"]), Fuzzer([Honest(native="off")], kinds=["alone"])
    seeds = [seed for seed in range(400) if _reads_nan(make_sample(seed))][:3]
    losing.run(seeds)
    honest.run(seeds)
    assert [found.seed for found in losing.findings] == seeds
    assert all(len(found.sample.function.nodes) == 1 for found in losing.findings)
    assert honest.findings == [] and honest.counts["honest alone", Verdict.OPEN] == len(seeds)


def _reads_nan(sample: Sample) -> bool:
    values = {value.name: given for value, given in zip(sample.function.inputs, sample.inputs, strict=True)}
    outputs = {value.name for value in sample.function.outputs}
    read = [values.get(n.inputs[0]) for n in sample.function.nodes if n.op == "Relu" and n.outputs[0] in outputs]
    return any(array is not None and array.dtype.kind == "f" and np.isnan(array).any() for array in read)


def test_what_comes_of_an_open_value_is_open() -> None:
    function = graph(
        {"x": "float32[2]"},
        {"i": "int64[2]", "y": "float32[2]"},
        node("Cast", "x", "i", to=7),
        node("Neg", "x", "y"),
    )
    inputs, expected = (f32(NAN, 2),), [i64(0, 2), f32(NAN, -2)]
    admitted = admit_open_results(function, inputs, [i64(5, 2), f32(0, -2)], expected, NOTHING, on_toy)
    assert admitted[0].tolist() == [0, 2]
    assert admitted[1].tolist() == [0, -2]


def test_a_sum_of_infinities_is_partly_open() -> None:
    function = graph(
        {"x": "float32[2,2]"}, {"y": "float32[2]"}, node("ReduceSum", "x a", "y", keepdims=0), constants={"a": i64([1])}
    )
    inputs, expected = (f32([[INF, -INF], [1, 2]]),), [f32(NAN, 3)]
    admitted = admit_open_results(function, inputs, [f32(INF, 4)], expected, NOTHING, on_toy)
    assert np.isnan(admitted[0][0]) and admitted[0][1] == 4


def test_a_denormal_number_may_count_as_zero_where_that_is_declared() -> None:
    function = graph({"x": "float32[2]"}, {"t": "bool[2]"}, node("Cast", "x", "t", to=9))
    inputs, expected, zero = (f32(1e-40, 1),), [np.array([True, True])], [np.array([False, True])]
    flushing = Losses(NOTHING.operators, frozenset({"float32"}))
    assert admit_open_results(function, inputs, zero, expected, flushing, on_toy)[0].tolist() == [True, True]
    assert admit_open_results(function, inputs, zero, expected, NOTHING, on_toy)[0].tolist() == [False, True]


# ---------------------------------------------------------------------- ways and batches


def test_graphs_that_are_merged_compute_what_each_does() -> None:
    samples = [make_sample(seed) for seed in range(12)]
    whole = infer_shapes(merge([sample.function for sample in samples]))
    with np.errstate(all="ignore"):
        results = on_toy(whole, [given for sample in samples for given in sample.inputs])
        expected = [result for sample in samples for result in on_toy(sample.function.replace(aliases=()), sample.inputs)]
    assert len(results) == len(expected)
    assert all(np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f") for pair in zip(results, expected, strict=True))


@pytest.mark.slow
def test_a_batch_finds_what_each_graph_alone_finds() -> None:
    seeds = range(40)
    one, many = (Fuzzer(["ort"], kinds=["alone"], batch=batch) for batch in (1, 16))
    one.run(seeds)
    many.run(seeds)
    assert one.counts == many.counts and many.settled


def test_a_batch_proves_nothing_of_a_wrong_graph() -> None:
    names = [node("Tanh", "x", "y"), node("Relu", "x", "y")]
    samples = [Sample(graph({"x": "float32[2]"}, {"y": "float32[2]"}, one), (f32(1, 2),)) for one in names]
    expected = [on_toy(sample.function, sample.inputs) for sample in samples]

    def judge(index: int, results: Any) -> Verdict:
        return Verdict.AGREES if np.array_equal(results[0], expected[index][0]) else Verdict.DISAGREES

    assert settle_batch(FaultyEngine(how="value", takes="Tanh"), samples, judge).get(0) is not Verdict.AGREES


def test_nodes_alternate_and_the_last_engine_has_what_no_other_takes() -> None:
    function = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Relu", "x", "a"), node("Neg", "a", "y"))
    engines = tuple(map(registry.create, ("ort", "toy{native=off}", "toy")))
    assert str(Alternating(engines)) == "alternating ort,toy,toy from 0"
    assert Alternating(engines).run(function, [f32(1, -2)])[0].tolist() == [-1, 0]


@pytest.mark.slow
def test_the_command_runs_the_ways_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fuzz", "--count", "6", "--way", "alone", "--way", "alternating", "--batch", "6", "--in-process"]
    with pytest.raises(SystemExit, match="0"):
        main(argv)
    told = capsys.readouterr().out
    assert "ort alone" in told and "alternating ort,toy" in told and "mixture" not in told
