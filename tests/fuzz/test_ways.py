"""How generated graphs run: alternating, in batches, and by the command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xrt.cli.app import main
from xrt.engines.contract import registry
from xrt.graph import Function
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import f32, graph, node
from xrt.testing.fault_injection import FaultyEngine
from xrt.testing.fuzz import Alternating, Fuzzer, Sample, make_sample, merge, settle_batch
from xrt.verify import Verdict
from xrt.verify.execution import run_alone


def on_toy(function: Function, inputs: Any) -> list[Any]:
    return run_alone(registry.create("toy"), function, inputs)


def test_casts_between_float_types_are_among_the_operators() -> None:
    kinds = {(str(n.attr("to"))) for seed in range(400) for _, n in make_sample(seed).function.walk() if n.op == "Cast"}
    assert {"1", "10", "11", "16"} <= kinds


def test_graphs_that_are_merged_compute_what_each_does() -> None:
    samples = [make_sample(seed) for seed in range(12)]
    whole = infer_shapes(merge([sample.function for sample in samples]))
    with np.errstate(all="ignore"):
        results = on_toy(whole, [given for sample in samples for given in sample.inputs])
        expected = [result for sample in samples for result in on_toy(sample.function.replace(aliases=()), sample.inputs)]
    assert len(results) == len(expected)
    assert all(np.array_equal(*pair, equal_nan=pair[0].dtype.kind == "f") for pair in zip(results, expected, strict=True))


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


def test_the_command_runs_the_ways_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fuzz", "--count", "6", "--way", "alone", "--way", "alternating", "--batch", "6", "--in-process"]
    with pytest.raises(SystemExit, match="0"):
        main(argv)
    told = capsys.readouterr().out
    assert "ort alone" in told and "alternating ort,toy" in told and "mixture" not in told
