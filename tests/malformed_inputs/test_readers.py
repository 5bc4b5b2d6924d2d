"""The harness of hostile files: a bounded run finds nothing, and what is planted is found and laid to the right case."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.malformed_inputs import READERS, HostileFinding, cases, child, harness, keep, run
from tests.malformed_inputs.__main__ import command
from tests.malformed_inputs.case import Reader
from tests.malformed_inputs.files import create_files
from tests.malformed_inputs.messages import alter_field, nest, write_field
from tests.malformed_inputs.mutators import BLIND, TEXTUAL, mutate
from tests.malformed_inputs.resealed import alter_section, alter_table
from xrt.errors import ModelError, OptionError, XRTError
from xrt.formats.onnx import load
from xrt.formats.output import identify_file
from xrt.graph import Function, Node

COUNT = 60
"""Mutants for each reader; `make fuzz` has 5,000."""


@pytest.mark.full
@pytest.mark.slow
def test_readers_take_whatever_they_are_given() -> None:
    keys = cases(count=COUNT)
    report = run(keys)
    assert [str(found) for found in report.findings] == []
    assert report.outcomes.total() == len(keys)
    assert {reader for reader, _ in report.outcomes} == set(READERS)


@pytest.mark.slow
def test_every_kind_of_file_is_tried() -> None:
    crafted = sum(len(reader.crafted) for reader in READERS.values())
    assert crafted > 150
    assert len(cases(count=7)) == crafted + 7 * sum(bool(reader.damages) for reader in READERS.values())
    assert cases(["pin"], count=2, seed=5)[-2:] == [("pin", "5"), ("pin", "6")]


def test_an_unknown_reader_is_named_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"there is no reader 'text2'\. Did you mean 'text'\? There is: onnx, "):
        cases(["text2"], count=1)


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.damages])
def test_a_seed_is_one_mutant(name: str) -> None:
    reader = READERS[name]
    assert reader.case("3") == reader.case("3")
    assert len({str(sorted(reader.case(str(seed)).files.items(), key=str)) for seed in range(20)}) > 10


def test_damage_changes_what_it_is_given() -> None:
    text = b'{"a": [1, 2, 3], "b": "c"}' * 5
    for damage in {*BLIND, *TEXTUAL}:
        assert any(damage(text, Random(seed)) != text for seed in range(20)), damage.__name__
        assert damage(b"", Random(0)) is not None
    assert mutate(text, TEXTUAL, Random(1)) == mutate(text, TEXTUAL, Random(1))


def test_an_altered_message_still_parses_mostly() -> None:
    whole = READERS["onnx"].samples[0]["model.onnx"]
    assert isinstance(whole, bytes)
    altered = [alter_field(whole, Random(seed)) for seed in range(60)]
    assert sum(one != whole for one in altered) > 50
    reasons = [str(error) for one in altered if (error := why_not_loaded(one)) is not None]
    assert sum("does not parse" in reason for reason in reasons) < len(reasons) / 2


def why_not_loaded(data: bytes) -> ModelError | None:
    try:
        load(data)
    except ModelError as error:
        return error
    return None


def test_nesting_is_written_as_protobuf_writes_it() -> None:
    assert nest(b"x", (1, 2), 2) == write_field(1, write_field(2, write_field(1, write_field(2, b"x"))))


def test_damage_below_the_checksums_is_not_seen_by_them() -> None:
    (entry,) = READERS["cache entry"].samples[0].values()
    assert isinstance(entry, bytes)
    for damage in (alter_section, alter_table):
        mutants = [damage(entry, Random(seed)) for seed in range(40)]
        assert sum(mutant != entry for mutant in mutants) > 30
        assert sum(alter_section(mutant, Random(0)) != mutant for mutant in mutants if mutant != entry) > 5


# ---------------------------------------------------------------------- what a reader must not do


@pytest.mark.slow
def test_each_sin_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process that reads by a table of sinners, each is found, named, and the next has its turn."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(child, "__name__", "tests.malformed_inputs.misbehaving_reader")
    report = run([("sinner", name) for name in ("good", "raises", "crashes", "good", "hangs", "silent", "eats", "exits", "good")])
    assert [str(found) for found in report.findings] == [
        "sinner, case raises: it raised ZeroDivisionError: integer division or modulo by zero",
        "sinner, case crashes: it ended the process: Segmentation fault (signal 11)",
        "sinner, case hangs: it was not done after 10 seconds of computing",
        "sinner, case silent: it raised ModelError without a text",
        f"sinner, case eats: it took {report.memory >> 20} MiB of memory for 5 bytes of files",
        "sinner, case exits: it raised SystemExit: 3",
    ]
    assert report.outcomes["sinner", "read"] == 4


def test_a_finding_is_kept_as_files(tmp_path: Path) -> None:
    place = keep(HostileFinding("external data", "a link upwards", "it was read, and must be refused"), tmp_path)
    assert (place / "finding.txt").read_text() == "external data, case a link upwards: it was read, and must be refused\n"
    assert (place / "model" / "w.bin").is_symlink()
    assert (place / "secret.bin").exists()


def test_a_way_to_die_is_reported() -> None:
    assert harness.describe_death(-signal.SIGALRM) == "it was not done after 60 seconds"
    assert harness.describe_death(3) == "it ended the process, with exit code 3"


# ---------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_counts_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["--count", "5", "--reader", "weight hashes"], standalone_mode=False) == 0
    shown = capsys.readouterr().out
    assert re.search(r"weight hashes\t\d\t\d\t0\n", shown)
    assert "5 files: 0 findings; at most" in shown


def test_the_command_keeps_what_it_finds_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = HostileFinding("pin", "3", "it ended the process")

    def found(keys: object, progress: object) -> harness.Report:
        progress(1, finding)  # type: ignore[operator]  # a stand-in for run
        return harness.Report(findings=[finding])

    monkeypatch.setattr("tests.malformed_inputs.__main__.run", found)
    assert command(["--count", "1", "--reader", "pin", "--keep", str(tmp_path)], standalone_mode=False) == 1
    assert (tmp_path / "pin-3" / "finding.txt").exists()
    assert "finding: pin, case 3: it ended the process" in capsys.readouterr().err


# ---------------------------------------------------------------------- what was found, each as a test of its own


def read(reader: str, name: str, folder: Path) -> None:
    case = READERS[reader].case(name)
    (folder / "model").mkdir()
    create_files(case.files, folder / "model")
    READERS[reader].read(folder / "model" / case.main)


FOUND = [
    ("onnx", "endless", "it is a device, which may have no end"),
    ("onnx", "a sparse tensor of a gigabyte", "is sparse and would take 1073741824 bytes as a dense tensor; at most 16777216"),
    ("bundle", "endless", "it is a pipe or a device, and no file"),
    ("bundle", "a pipe", "it is a pipe or a device, and no file"),
    ("native library", "a pipe", "it is a pipe or a device, and no file"),
    ("native library", "itself", "it cannot be read: Too many levels of symbolic links"),
    ("text", "a constant of half a name", "holds half of a character (a surrogate without its partner)"),
    ("text", "half a name", "holds half of a character (a surrogate without its partner)"),
    ("text", "a version of 99 digits", "the version of the domain must fit into 64 bits"),
    ("text", "an extent of 99 digits", "an extent must fit into 64 bits"),
    ("text", "an attribute beyond 64 bits", "must fit into 64 bits; found '9223372036854775808'"),
    ("spec", "a sum in quotes", "is not a quoted text"),
    ("arrays", "a header of brackets, alone", "is not a .npy or .npz file of numbers"),
    ("arrays", "terabytes, alone", "which takes 4398046511104 bytes, and 8 follow"),
    ("arrays", "zeros without end, packed", "more than 100 times as many; numpy.savez writes without compression"),
    ("arrays", "objects, alone", "it holds Python objects, which are never read"),
]


@pytest.mark.parametrize(("reader", "name", "told"), FOUND, ids=lambda value: str(value)[:40])
def test_what_was_found_is_refused_in_clear_words(reader: str, name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(XRTError) as caught:
        read(reader, name, tmp_path)
    assert told in str(caught.value)


def test_a_pin_of_many_stars_is_matched_in_no_time(tmp_path: Path) -> None:
    start = time.process_time()
    read("pin", "stars", tmp_path)
    assert time.process_time() - start < 60, "a choice at each star, and there is no end"


@pytest.mark.slow
def test_a_hundred_thousand_nodes_without_names_are_named_in_no_time() -> None:
    """Looking for a free name began anew for each, which took minutes."""
    start = time.process_time()
    function = Function((), (), tuple(Node("Relu", ("x",), ()) for _ in range(100_000)))
    assert len({node.name for node in function.nodes}) == 100_000
    assert time.process_time() - start < 60


def test_a_memo_that_names_no_path_is_forgotten(tmp_path: Path) -> None:
    assert identify_file(tmp_path / "a\0b") is None


def test_a_reader_without_samples_has_crafted_files_only() -> None:
    bare = [reader for reader in READERS.values() if not reader.damages]
    assert [reader.name for reader in bare] == ["native library"]
    assert isinstance(bare[0], Reader)
