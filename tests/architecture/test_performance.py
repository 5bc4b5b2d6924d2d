"""The page of performance and README's numbers fit the record of `make bench`; a missed target cannot look like a reached one."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.performance_page import PAGE, README, judged, page, summary, with_numbers
from tools.performance_record import BENCHMARKS, TOP, Benchmark, Record
from tools.performance_texts import SECTIONS

RECORD = Record.read()
BY_NAME = {benchmark.name: benchmark for benchmark in BENCHMARKS}
NO_FIGURES = {
    "cuda": "runs in make cuda-check, whose results are a section of their own",
    "memory_model": "a part of memory.py",
    "pytorch_models": "a part of pytorch.py",
    "pytorch_ways": "a part of pytorch.py",
    "region_pairs": "a part of regions.py",
    "dynamic_shapes": "prints a table of its own: what one program for all sizes costs",
    "first_result": "takes processes of its own for every figure, and prints a table of its own",
    "auto_figures": "a part of auto.py",
    "auto_steps": "a part of auto.py",
    "precision_figures": "a part of precision.py",
    "precision_models": "a part of precision.py",
    "precision_parts": "a part of precision.py",
    "precision_tools": "a part of precision.py",
    "precision_trained": "a part of precision.py",
}
"""What lies in benchmarks/ and has no section, and why."""


PAIRS = {
    "pairs": [
        {"engines": ["a", "b"], "kind": "chain", "to_parts": {"best": 1.01, "median": 9.0}},
        {"engines": ["a", "b"], "kind": "conv", "to_parts": {"best": 1.7, "median": 1.8}},
        {"engines": ["a", "c"], "kind": "chain", "to_parts": {"best": 1.06, "median": 1.0}},
        {"engines": ["a", "c"], "kind": "conv", "why_not": "the plan has regions on a"},
    ],
    "memory": [
        {"engine": "a", "kind": "chain", "us": 5.0, "given": {"best": 1.0, "median": 1.1}, "over": {"best": 3, "median": 3}}
    ],
}
"""Figures of pairs of engines, some of them over their targets."""


def judgeable(record: Record = RECORD) -> Record:
    """Return the record as if every benchmark had run with the arguments of a full run."""
    entries = {name: replace(entry, arguments=BY_NAME[name].arguments) for name, entry in record.entries.items()}
    return replace(record, entries=entries)


def changed(name: str, change: Callable[[Any], object]) -> Record:
    """Return a record that is judged, with other figures of one benchmark."""
    record = judgeable()
    figures = copy.deepcopy(record.entries[name].figures)
    change(figures)
    return record.plus(name, replace(record.entries[name], figures=figures))


# ---------------------------------------------------------------------- fresh


def test_the_page_is_what_the_record_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RECORD), "say: python tools/write_performance.py --from-record"


def test_the_numbers_in_the_readme_are_what_the_record_makes() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == with_numbers(text, RECORD), "say: python tools/write_performance.py --from-record"


def test_a_page_of_another_record_is_caught() -> None:
    other = changed("imports", lambda figures: figures["imports"][1]["over_numpy"].update(median=0.0987))
    assert "0.099" in page(other)
    assert page(other) != PAGE.read_text(encoding="utf-8")
    faster = changed("pytorch", lambda figures: figures["calls"]["as installed"]["bert"]["seconds"].update(xrt=0.0512))
    assert "**51.2**" in with_numbers(README.read_text(encoding="utf-8"), faster)


def test_the_record_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(str(RECORD), encoding="utf-8")
    assert Record.read(path) == RECORD
    assert Record.read(tmp_path / "none.json").entries == {}


def test_every_benchmark_has_a_section_and_an_entry() -> None:
    scripts = {path.stem for path in (TOP / "benchmarks").glob("*.py")}
    assert scripts - set(NO_FIGURES) == set(BY_NAME) == set(SECTIONS) == set(RECORD.entries)


def test_the_record_tells_nothing_of_whose_machine_it_was() -> None:
    assert re.findall(r"/(?:home|root|tmp|work|usr|opt|var)/", str(RECORD)) == []
    assert all(re.fullmatch(r"[0-9a-f]{12}\+?|unknown", entry.commit) for entry in RECORD.entries.values())
    assert "system" in RECORD.machine and "numpy" in RECORD.machine


# ---------------------------------------------------------------------- judged


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_every_benchmark_is_judged_and_only_after_a_full_run(benchmark: Benchmark) -> None:
    verdicts = judged(benchmark, judgeable())
    assert verdicts and all(verdict.target and verdict.figure for verdict in verdicts)
    quick = RECORD.plus(benchmark.name, replace(RECORD.entries[benchmark.name], arguments=benchmark.quick))
    assert judged(benchmark, quick) == []
    assert f"not judged: {benchmark.name}" in page(quick)


def call_of_ort(figures: Any, median: float) -> None:
    next(row for row in figures["tiny"] if row["engine"] == "ort")["module"]["ratio"]["median"] = median


def threads_of_ort(figures: Any, median: float) -> None:
    next(row for row in figures["threaded"] if row["engine"] == "ort")["6 floats"]["ratio"]["median"] = median


MISSES: list[tuple[str, Callable[[Any], object], str]] = [
    ("dispatch", lambda f: call_of_ort(f, 1.01), "to `session.run`: 1.010"),
    ("dispatch", lambda f: threads_of_ort(f, 0.97), "throughput of eight threads, `ort`, 6 floats, to the engine's: 0.97"),
    ("regions", lambda f: [row["to_regions_alone"].update(median=1.06) for row in f["cuts"]], "to the regions alone: 1.060"),
    ("regions", lambda f: f.update(PAIRS), "+ 20 us per boundary: 2 of 3: `a, b` conv 1.70; `a, c` chain 1.06, target none"),
    ("regions", lambda f: f.update(PAIRS), "as into new: 1 of 2: `a` chain over 3.00, target none"),
    ("regions", lambda f: f["cuts"][0].update(idle_cpu=0.5), "processor time while idle, the most: 50.0%"),
    (
        "memory",
        lambda f: f["forms"]["inline"][0]["xrt"]["8"].update(peak=9e9),
        "peak, `ort`, 8 regions, weights in the model file: 8,",
    ),
    (
        "memory",
        lambda f: f["forms"]["inline"][0]["xrt"]["8"]["again"].update(peak=9e9),
        "weights in the model file: 9,000 MB, limit",
    ),
    (
        "memory",
        lambda f: f["forms"]["inline"][0]["xrt"]["1"].update(failed="killed"),
        "weights in the model file: failed: killed",
    ),
    ("partition", lambda f: [row.update(median_s=0.26) for row in f["partition"]], "chain, partitioned: 0.260 s"),
    ("imports", lambda f: f["imports"][1]["over_numpy"].update(median=0.11), "`import xrt` over `import numpy`: 0.110"),
]


@pytest.mark.parametrize(("name", "miss", "text"), MISSES, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(MISSES)])
def test_a_missed_target_is_reported_as_missed(name: str, miss: Callable[[Any], object], text: str) -> None:
    record = changed(name, miss)
    missed = [line for line in summary(record).splitlines() if line.startswith("- missed")]
    assert any(text in line for line in missed), missed
    assert page(record).count("| **missed** |") == len(missed)


def test_a_target_that_is_just_reached_is_reached() -> None:
    record = changed("dispatch", lambda figures: call_of_ort(figures, 1.0))
    verdict = next(verdict for verdict in judged(BY_NAME["dispatch"], record) if "session.run" in verdict.what)
    assert verdict.reached


def test_a_large_model_that_fails_is_reported() -> None:
    def plant(figures: Any) -> None:
        alone, mine = {"failed": "refused"}, {"failed": "MemoryError", "again": {"failed": "MemoryError"}}
        figures.update(large=2300, beyond={"inline": {"engine": "ort", "alone": alone, "xrt": {"8": mine}}})

    text = page(changed("memory", plant))
    assert (
        "a model of 2,300 MB, weights in the model file, 8 regions of `ort`: peak failed: MemoryError MB, target loads and runs"
        in text
    )
