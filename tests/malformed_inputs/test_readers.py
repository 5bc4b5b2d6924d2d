"""Readers return or raise an XRTError with a text, whatever file they read; planted faults show that the harness sees others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.malformed_inputs import harness
from tests.malformed_inputs.case import Case, Reader, create_files
from tests.malformed_inputs.readers import READERS
from xrt.errors import ModelError, XRTError
from xrt.formats.output import identify_file
from xrt.graph import Function, Node

MUTANTS = int(os.environ.get("XRT_MUTANTS", "60"))
"""Damaged files for each reader; `make fuzz` reads 5,000."""


@pytest.mark.full
def test_malformed_files_are_read_or_refused_in_words() -> None:
    report = harness.run(harness.cases(count=MUTANTS))
    assert report.findings == []
    assert {reader for reader, _ in report.outcomes} == set(READERS)


@pytest.mark.slow
def test_damage_is_noticed_by_readers() -> None:
    """Mutants that every reader accepts, or that all fail at the first check, would prove nothing."""
    readers = ("onnx", "external data", "text", "bundle", "lock")
    report = harness.run(harness.cases(readers, count=20))
    assert report.findings == []
    assert all(report.outcomes[reader, "refused"] > 5 for reader in readers)


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.damages])
def test_a_seed_is_one_mutant(name: str) -> None:
    reader = READERS[name]
    assert reader.case("3") == reader.case("3")
    assert len({str(sorted(reader.case(str(seed)).files.items(), key=str)) for seed in range(20)}) > 10


def refuse_in_silence() -> None:
    raise ModelError("")


SINS: Mapping[str, Callable[[], object]] = {
    "good": lambda: None,
    "raises": lambda: 1 // 0,
    "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hangs": lambda: all(zero == 0 for zero in iter(int, 1)),
    "silent": refuse_in_silence,
    "eats": lambda: bytearray(b"x") * (200 << 20),
    "exits": lambda: sys.exit(3),
}


def misbehave(handle: str, folder: str) -> None:
    """Serve as `harness.main` does, with one reader that does all that a reader must not."""
    crafted = {name: Case({name: b"12345"}, refused=False) for name in SINS}
    harness.READERS = {"sinner": Reader("sinner", lambda path: SINS[path.name](), tuple, (), lambda: crafted)}
    harness.CPU_SECONDS = 1.0
    harness.main(handle, folder)


@pytest.mark.slow
def test_each_fault_of_a_reader_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(harness, "CHILD", "tests.malformed_inputs.test_readers:misbehave")
    names = ("good", "raises", "crashes", "good", "hangs", "silent", "eats", "exits", "good")
    report = harness.run([("sinner", name) for name in names])
    assert report.findings == [
        "sinner, case raises: it raised ZeroDivisionError: integer division or modulo by zero",
        "sinner, case crashes: it ended the process: Segmentation fault (signal 11)",
        "sinner, case hangs: it was not done after 10 seconds of computing",
        "sinner, case silent: it raised ModelError without a text",
        f"sinner, case eats: it took {report.memory >> 20} MiB of memory for 5 bytes of files",
        "sinner, case exits: it raised SystemExit: 3",
    ]
    assert report.outcomes["sinner", "read"] == 4
    assert harness.describe_death(-signal.SIGALRM) == "it was not done after 60 seconds"


def read(reader: str, name: str, folder: Path) -> None:
    case = READERS[reader].case(name)
    (folder / "model").mkdir()
    create_files(case.files, folder / "model")
    READERS[reader].read(folder / "model" / case.main)


FOUND = [
    ("onnx", "endless", "it is a device, which may have no end"),
    ("onnx", "a sparse tensor of a gigabyte", "is sparse and would take 1073741824 bytes as a dense tensor, too many for"),
    ("bundle", "endless", "it is a pipe or a device, not a regular file"),
    ("bundle", "a pipe", "it is a pipe or a device, not a regular file"),
    ("native library", "a pipe", "it is a pipe or a device, not a file"),
    ("native library", "itself", "it cannot be read: Too many levels of symbolic links"),
    ("text", "a number of 5000 digits", "expected the version of the domain; found '9999"),
    ("text", "a string of escapes", "found '\"'"),
    ("text", "a constant of half a name", "holds half of a character (a surrogate without its partner)"),
    ("text", "half a name", "holds half of a character (a surrogate without its partner)"),
    ("text", "a version of 99 digits", "the version of the domain must fit into 64 bits"),
    ("text", "an extent of 99 digits", "an extent must fit into 64 bits"),
    ("text", "an attribute beyond 64 bits", "must fit into 64 bits; found '9223372036854775808'"),
    ("spec", "a sum in quotes", "is not a quoted text"),
    ("arrays", "a header of brackets, alone", "is not a .npy or .npz file of numbers"),
    ("arrays", "terabytes, alone", f"announces [{1 << 40}] of float32, which takes {1 << 42} bytes, and 8 follow"),
    ("arrays", "texts of no characters, alone", "announces [1000000000] of <U0, which is not a valid array"),
    ("arrays", "more than it announces, alone", "announces [1] of float32, which takes 4 bytes, and 8 follow"),
    ("arrays", "zeros without end, packed", "more than 100 times as many; numpy.savez writes without compression"),
    ("arrays", "objects, alone", "it holds Python objects, which are never read"),
]


@pytest.mark.parametrize(("reader", "name", "told"), FOUND, ids=lambda value: str(value)[:40])
def test_what_was_found_is_refused_in_clear_words(reader: str, name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(XRTError) as caught:
        read(reader, name, tmp_path)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 500


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
