"""What a search prints and draws, and what files hold of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.placement.throughput.simulated_bench import SimulatedBench, tune
from tests.placement.throughput.test_sweep import convex, flat
from xrt.errors import BundleError, PlacementFileError
from xrt.formats.placement_file import PlacementFile, dumps, loads, parse_serving, read_placement, spell_serving, write_placement
from xrt.placement.throughput import render_throughput_page


def test_a_result_prints_as_a_table() -> None:
    found = tune(SimulatedBench(lambda split, size: 0.001 * size), batches=(1, 2), budget=5.0)
    first, points, chosen, *others = str(found).splitlines()
    assert found.configuration is not None
    assert first == f"most requests per second within a p99 of 20 ms: {found.configuration}"
    assert str(found.configuration) == "no batching, 2 instances of 1 thread, 2 in flight: 2000/s, p50 1 ms, p99 1.1 ms"
    assert points == "  8 points, 5.0 of 5 s"
    assert chosen == "  chosen: batch 1, 2 instances of 1 thread, 2 in flight, on one, 2000/s, p50 1 ms, p99 1.1 ms"
    assert "  within: batch 2, 2 instances of 1 thread, 8 in flight, on one, 2000/s, p50 4 ms, p99 4.4 ms" in others


@pytest.mark.parametrize("bound", [0.02, math.inf])
def test_a_placement_file_holds_the_configuration_and_its_search(bound: float, tmp_path: Path) -> None:
    found = tune(SimulatedBench(flat, is_exact=True), bound=bound, budget=5.0)
    record = found.to_record()
    assert record is not None
    write_placement(PlacementFile(serving=record), tmp_path / "m.lock")
    read = read_placement(tmp_path / "m.lock")
    assert read.serving == record
    assert record.replace(rows=()) == found.configuration
    assert len(record.rows) == len(found.candidates)
    assert parse_serving(spell_serving(record)) == record
    assert parse_serving(spell_serving(None)) is None


def test_a_damaged_configuration_is_refused() -> None:
    found = tune(SimulatedBench(flat, is_exact=True), budget=5.0)
    text = dumps(PlacementFile(serving=found.to_record()))
    with pytest.raises(PlacementFileError) as caught:
        loads(
            text.replace('"batch": 32', '"batch": 0', 1) if '"batch": 32' in text else text.replace('"batch": 16', '"batch": 0')
        )
    assert caught.value.position.startswith("serving")
    with pytest.raises(BundleError) as refused:
        parse_serving('{"batch": 2}')
    assert str(refused.value) == "its serving configuration cannot be read: Object missing required field `instances`"


def test_a_page_lists_all_points() -> None:
    result = tune(SimulatedBench(convex), budget=20.0)
    page = render_throughput_page(result, "a <model>")
    assert "Throughput of a &lt;model&gt;" in page
    for one in result.candidates:
        assert f"batch {one.batch}, {one.split}" in page
        assert f"batch {one.batch}, {one.split}" in result._repr_html_()


def test_a_sweep_without_a_choice_says_so() -> None:
    page = tune(SimulatedBench(convex), bound=0.001)._repr_html_()
    assert "Nothing serves requests within a p99 of 1 ms" in page
