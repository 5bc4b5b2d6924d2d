"""Generated pages fit what they were generated from: the record, known failures, engines, libraries and the tests of onnx.

The record itself is held against a run of each way in tests/conformance.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from packaging.specifiers import SpecifierSet

from benchmarks.zoo import page as zoo
from benchmarks.zoo.run import read_record
from tools import torch_operators, write_commands, write_errors, write_gradients, write_options
from tools.conformance_page import PAGE, page
from tools.conformance_record import ENGINES, LIBRARIES, WAYS, Entry, Record, pins, versions
from tools.known_failures import MIXTURES, load_known_failures
from tools.write_tables import PAGE as ENGINE_PAGE
from tools.write_tables import engines, with_table
from xrt.testing import GROUPS, ConformanceReport, KnownFailure, Outcome, ResultWord

RECORD = Record.read()
AGAIN = "say: make conformance"


def changed(letters: str, record: Record = RECORD) -> Record:
    """Return the record with other outcomes for the first case."""
    first = record.entries[0]
    return replace(record, entries=(Entry(first.group, first.case, first.operators, letters), *record.entries[1:]))


# ---------------------------------------------------------------------- the pages


def test_the_page_is_what_the_record_and_the_known_failures_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RECORD), "say: make tables"


def test_the_table_of_engines_is_what_the_record_and_the_engines_make() -> None:
    text = ENGINE_PAGE.read_text(encoding="utf-8")
    assert text == with_table(text, RECORD), "say: make tables"


@pytest.mark.parametrize("tool", [write_options, write_commands, write_errors, write_gradients], ids=lambda tool: tool.PAGE.name)
def test_a_page_of_the_reference_is_what_the_code_makes(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.make_page(), "say: make tables"


def test_the_page_of_the_zoo_is_what_its_record_makes() -> None:
    assert zoo.PAGE.read_text(encoding="utf-8") == zoo.make_page(read_record()), "say: python -m benchmarks.zoo.page"


def test_the_page_of_pytorchs_operators_is_what_its_record_makes() -> None:
    record = json.loads(torch_operators.RECORD.read_text(encoding="utf-8"))
    assert torch_operators.PAGE.read_text(encoding="utf-8") == torch_operators.make_page(record)


def test_a_page_of_options_without_an_engine_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_options, "ENGINES", ("toy",))
    assert write_options.PAGE.read_text(encoding="utf-8") != write_options.make_page()


def test_a_page_of_another_record_is_caught() -> None:
    other = changed("D" * len(WAYS))
    assert page(other) != page(RECORD)
    assert with_table(ENGINE_PAGE.read_text(encoding="utf-8"), other) != ENGINE_PAGE.read_text(encoding="utf-8")


def test_a_page_of_other_known_failures_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    more = KnownFailure("test_abs", "never", "planted", "https://example.org")
    monkeypatch.setattr("tools.conformance_page.load_known_failures", lambda name: (*load_known_failures(name), more))
    assert page(RECORD) != PAGE.read_text(encoding="utf-8")


# ---------------------------------------------------------------------- the record


def test_the_record_has_every_engine() -> None:
    assert set(engines()) == set(ENGINES), "an engine came or went; add it to ENGINES and WAYS"
    assert {engine for way in WAYS for engine in way.engines} == set(ENGINES)


def test_the_record_is_of_the_libraries_that_are_pinned() -> None:
    assert [lib for lib, pin in pins().items() if not SpecifierSet(pin).contains(RECORD.versions[lib])] == [], AGAIN


@pytest.mark.parametrize("library", [library for library in LIBRARIES if library != "numpy"])
def test_the_record_is_of_the_libraries_that_are_installed(library: str) -> None:
    """A bug-fix release may come at any time; what it changes is for tests/conformance to find."""
    assert metadata.version(library).split(".")[:2] == RECORD.versions[library].split(".")[:2], AGAIN


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "node"])
def test_the_record_has_every_stored_case(group: str) -> None:
    """The node tests take seconds to make: tests/testing/test_conformance.py, which makes them, holds them against the record."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data" / group
    names = {path.parent.name for path in data.glob("*/model.onnx")}
    names |= {f"{path.stem}{tail}" for path in data.glob("*.onnx") for tail in ("", "_random")}
    assert {entry.case for entry in RECORD.of_group(group)} == names, AGAIN


def test_ways_that_were_run_again_replace_their_own_letters_only() -> None:
    record = replace(RECORD, versions=versions())
    outcomes = [Outcome(entry.case, ResultWord.DECLINED, "why", entry.operators, group=entry.group) for entry in record.entries]
    found = record.renewed({"iree": ConformanceReport("iree", tuple(outcomes))})
    assert found.count("iree", ResultWord.DECLINED) == len(record.entries)
    assert found.declined["iree"]["Abs"] == "why"
    for way in WAYS:
        if way.engines != ("iree",):
            assert all(a.word(way.name) is b.word(way.name) for a, b in zip(found.entries, record.entries, strict=True))
            assert found.mixed[way.name] == record.mixed[way.name]


def test_ways_of_other_tests_or_versions_do_not_come_into_the_record() -> None:
    few = ConformanceReport("iree", (Outcome("test_abs", ResultWord.PASSED),))
    for record in (replace(RECORD, versions=versions()), replace(RECORD, versions={})):
        with pytest.raises(SystemExit, match="without --only"):
            record.renewed({"iree": few} if record.versions else {})


def test_the_record_breaks_no_law() -> None:
    assert RECORD.faults() == []


def passed_but(letters: dict[str, str]) -> str:
    """Return the letters of a case that passes in every way but those."""
    return "".join(letters.get(way.name, "P") for way in WAYS)


@pytest.mark.parametrize(
    ("letters", "fault"),
    [
        ({"ort,toy": "F"}, "ort,toy fails {case}"),
        ({"ort": "D", "ort,tvm,toy": "D"}, "ort,tvm,toy loses {case}, which toy passes"),
        ({"tvm": "D", "ort/toy alternating": "D"}, "ort/toy alternating loses {case}, which each passes"),
    ],
)
def test_a_broken_law_is_caught(letters: dict[str, str], fault: str) -> None:
    assert fault.format(case=RECORD.entries[0].case) in changed(passed_but(letters)).faults()


def find_faults(record: Record) -> list[str]:
    """Return what the known failures and the record say differently of what each engine fails alone, in both directions."""
    found = []
    for engine in ENGINES:
        gaps, known = record.cases(engine, ResultWord.GAP), load_known_failures(engine)
        found += [f"{engine}: no entry for {case}" for case in sorted(gaps) if not any(gap.covers(case) for gap in known)]
        covered = [(gap, case.case) for gap in known for case in record.entries if gap.covers(case.case)]
        found += [f"{engine}: {gap} holds no more for {case}" for gap, case in covered if gap.everywhere and case not in gaps]
        found += [f"{engine}: {gap} matches no case" for gap in known if gap not in [one for one, _ in covered]]
    known = [gap for name in (*ENGINES, MIXTURES) for gap in load_known_failures(name)]
    mixed = {case for way in WAYS for case in record.cases(way.name, ResultWord.GAP)}
    return found + [f"no entry for {case}" for case in sorted(mixed) if not any(gap.covers(case) for gap in known)]


def test_the_known_failures_and_the_record_agree() -> None:
    assert find_faults(RECORD) == []


def test_a_gap_without_an_entry_is_caught() -> None:
    case = RECORD.entries[0].case
    assert find_faults(changed(passed_but({"ort": "G"}))) == [f"ort: no entry for {case}", f"no entry for {case}"]


def test_an_entry_that_holds_no_more_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = KnownFailure(RECORD.entries[0].case, "never", "planted", "https://example.org")
    shipped = load_known_failures
    monkeypatch.setitem(globals(), "load_known_failures", lambda name: (stale,) if name == "ort" else shipped(name))
    assert find_faults(RECORD) == [f"ort: {stale} holds no more for {stale.cases}"]


def test_the_record_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(str(RECORD), encoding="utf-8")
    assert Record.read(path) == RECORD


def test_the_record_knows_the_ways() -> None:
    assert {len(entry.letters) for entry in RECORD.entries} == {len(WAYS)}
    assert set(RECORD.mixed) == {way.name for way in WAYS}
