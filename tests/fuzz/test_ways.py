"""How generated graphs run: alternating, and by the command."""

from __future__ import annotations

import pytest

from xrt.cli.app import main
from xrt.engines.contract import registry
from xrt.testing.corpus.entry import f32, graph, node
from xrt.testing.fuzz import ExecutionMode, make_sample


def test_casts_between_float_types_are_among_the_operators() -> None:
    kinds = {(str(n.attr("to"))) for seed in range(400) for _, n in make_sample(seed).function.walk() if n.op == "Cast"}
    assert {"1", "10", "11", "16"} <= kinds


def test_nodes_alternate_and_the_last_engine_has_what_no_other_takes() -> None:
    function = graph({"x": "float32[2]"}, {"y": "float32[2]"}, node("Relu", "x", "a"), node("Neg", "a", "y"))
    engines = tuple(map(registry.create, ("ort", "toy{native=off}", "toy")))
    way = ExecutionMode("alternating", engines)
    assert str(way) == "alternating ort,toy,toy by 0"
    assert way.run(function, [f32(1, -2)])[0].tolist() == [-1, 0]


def test_the_command_runs_the_ways_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fuzz", "--count", "6", "--way", "alone", "--way", "alternating", "--in-process"]
    with pytest.raises(SystemExit, match="0"):
        main(argv)
    told = capsys.readouterr().out
    assert "ort alone" in told and "alternating ort,toy" in told and "mixture" not in told
