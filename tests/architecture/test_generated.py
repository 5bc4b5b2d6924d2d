"""Generated pages of the reference fit the code, and the tool behind `make conformance` reads back what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.zoo import page as zoo
from benchmarks.zoo.run import read_record
from tools import torch_operators, write_commands, write_errors, write_gradients, write_options
from tools.conformance_record import CONFIGURATIONS, ENGINES, Record, get_versions
from tools.write_tables import get_engines
from xrt.testing import ConformanceReport, Outcome, ResultWord

RECORD = Record.read()


@pytest.mark.parametrize("tool", [write_options, write_commands, write_errors, write_gradients], ids=lambda tool: tool.PAGE.name)
def test_a_page_of_the_reference_is_what_the_code_makes(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.make_page(), "say: make tables"


def test_the_keywords_for_type_checkers_are_those_of_the_options() -> None:
    assert write_options.KEYWORDS_FILE.read_text(encoding="utf-8") == write_options.make_keywords(), "say: make tables"


def test_the_page_of_the_zoo_is_what_its_record_makes() -> None:
    assert zoo.PAGE.read_text(encoding="utf-8") == zoo.make_page(read_record()), "say: python -m benchmarks.zoo.page"


def test_the_page_of_pytorchs_operators_is_what_its_record_makes() -> None:
    record = json.loads(torch_operators.RECORD.read_text(encoding="utf-8"))
    assert torch_operators.PAGE.read_text(encoding="utf-8") == torch_operators.make_page(record)


def test_make_conformance_runs_every_engine() -> None:
    assert set(get_engines()) == set(ENGINES), "an engine came or went; add it to ENGINES and CONFIGURATIONS"
    assert {engine for configuration in CONFIGURATIONS for engine in configuration.engines} == set(ENGINES)


def test_a_configuration_run_again_replaces_only_its_own_letters() -> None:
    record = replace(RECORD, versions=get_versions())
    outcomes = [Outcome(entry.case, ResultWord.DECLINED, "why", entry.operators, group=entry.group) for entry in record.entries]
    updated = record.update({"iree": ConformanceReport("iree", tuple(outcomes))})
    assert updated.count("iree", ResultWord.DECLINED) == len(record.entries)
    for configuration in CONFIGURATIONS:
        if configuration.engines != ("iree",):
            assert all(
                a.word(configuration.name) is b.word(configuration.name)
                for a, b in zip(updated.entries, record.entries, strict=True)
            )


def test_reports_of_other_tests_or_versions_are_refused() -> None:
    few = ConformanceReport("iree", (Outcome("test_abs", ResultWord.PASSED),))
    for record in (replace(RECORD, versions=get_versions()), replace(RECORD, versions={})):
        with pytest.raises(SystemExit, match="without --only"):
            record.update({"iree": few} if record.versions else {})


def test_the_record_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(str(RECORD), encoding="utf-8")
    assert Record.read(path) == RECORD
