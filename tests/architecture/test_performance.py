"""The page of performance and README's numbers fit the record of `make bench`; a missed target cannot look like a reached one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools.performance_page import PAGE, README, SECTIONS, list_verdicts, make_page, update_readme
from tools.performance_record import BENCHMARKS, BY_NAME, Benchmark, Record

RECORD = Record.read()


def test_the_page_is_what_the_record_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page(RECORD), "say: python -m tools.write_performance --from-record"


def test_the_numbers_in_the_readme_are_what_the_record_makes() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == update_readme(text, RECORD), "say: python -m tools.write_performance --from-record"


def test_the_record_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(str(RECORD), encoding="utf-8")
    assert Record.read(path) == RECORD
    assert Record.read(tmp_path / "none.json").entries == {}


def test_every_benchmark_has_a_section_and_an_entry() -> None:
    assert set(BY_NAME) == set(SECTIONS) == set(RECORD.entries)


def test_the_record_tells_nothing_of_whose_machine_it_was() -> None:
    assert re.findall(r"/(?:home|root|tmp|work|usr|opt|var)/", str(RECORD)) == []
    assert all(re.fullmatch(r"[0-9a-f]{12}\+?|unknown", entry.commit) for entry in RECORD.entries.values())
    assert "system" in RECORD.machine and "numpy" in RECORD.machine


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_every_benchmark_is_judged_and_only_after_a_full_run(benchmark: Benchmark) -> None:
    entries = {name: replace(entry, arguments=BY_NAME[name].arguments) for name, entry in RECORD.entries.items()}
    verdicts = list_verdicts(benchmark, replace(RECORD, entries=entries))
    assert verdicts and all(verdict.target and verdict.figure for verdict in verdicts)
    quick = RECORD.add(benchmark.name, replace(RECORD.entries[benchmark.name], arguments=benchmark.quick))
    assert list_verdicts(benchmark, quick) == []
    assert f"not judged: {benchmark.name}" in make_page(quick)
