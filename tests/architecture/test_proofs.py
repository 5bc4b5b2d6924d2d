"""What `make test` leaves out has been proved for the code and the libraries that are here, and a change of them is seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import is_selected, put_slow_first
from tools.proofs import SUBJECTS, TOP, find_stale, hash_source, read_record, renew_record
from tools.slow_tests import does_exist, read_slow_tests, write_slow_tests

ENGINE = "xrt/engines/iree/engine.py"
PRODUCTS = "xrt/engines/toolkit/convolution_products.py"
WRITER = "xrt/engines/toolkit/node_writer.py"
RECORDED = ("engine iree", "processes", "suite")


def test_no_record_is_stale() -> None:
    assert find_stale(read_record()) == []


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a copy of what three subjects depend on."""
    for pattern in {pattern for name in RECORDED for pattern in SUBJECTS[name].sources}:
        for path in filter(Path.is_file, TOP.glob(pattern)):
            copy = tmp_path / path.relative_to(TOP)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return tmp_path


def _record(top: Path) -> dict[str, Any]:
    return {name: {"tests": 1, **SUBJECTS[name].state(top)} for name in RECORDED}


def _append(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text() + text)


@pytest.mark.parametrize(
    ("changed", "change", "stale"),
    [
        (ENGINE, _append("\nPLANTED = 1\n"), ["engine iree: xrt/engines/iree/**/*.py changed"]),
        (ENGINE, Path.unlink, ["engine iree: xrt/engines/iree/**/*.py changed"]),
        (PRODUCTS, _append("\nPLANTED = 1\n"), [f"engine iree: {PRODUCTS} changed"]),
        ("xrt/processes/spawn.py", _append("\nPLANTED = 1\n"), ["processes: xrt/processes/*.py changed"]),
        (ENGINE, _append("\n# planted\n\n"), []),
    ],
    ids=["a statement", "a file less", "the toolkit", "an area", "a comment"],
)
def test_a_planted_change_is_reported_with_the_command(
    top: Path, changed: str, change: Callable[[Path], object], stale: list[str]
) -> None:
    record = _record(top)
    assert find_stale(record, top) == []
    change(top / changed)
    found = find_stale(record, _copied(top))
    assert found == [f'{one}. Say: make test-full SUBJECT="{one.partition(":")[0]}"' for one in stale]


def _copied(top: Path) -> Path:
    """Return another copy: hashes are remembered by folder."""
    return Path(shutil.copytree(top, top / "again"))


def test_an_engine_depends_on_what_it_takes_of_the_toolkit() -> None:
    users = {name for name, subject in SUBJECTS.items() if PRODUCTS in subject.sources}
    assert users == {"engine iree", "engine ort"}
    assert users < {name for name, subject in SUBJECTS.items() if WRITER in subject.sources}, "which these modules import"
    taken = {source for subject in SUBJECTS.values() for source in subject.sources}
    assert {path.relative_to(TOP).as_posix() for path in TOP.glob("xrt/engines/toolkit/**/*.py")} <= taken


def test_another_version_is_reported(top: Path) -> None:
    record = _record(top)
    record["engine iree"]["packages"]["onnx"] = "1.0"
    del record["suite"]  # without a record, all its tests run
    (told,) = find_stale(record, top)
    assert told.startswith("engine iree: onnx was 1.0, is ")


def test_comments_docstrings_and_blank_lines_change_no_hash() -> None:
    text = 'def f(x):\n    """Return it."""\n    y = "#"  # a comment\n    return x + y\n'
    assert hash_source(text) == hash_source('def f(x):\n\n    """Return\n\n    more."""\n    y = "#"\n    return x + y\n')
    assert hash_source(text) != hash_source(text.replace('"#"', '"##"'))


def test_a_renewed_record_keeps_what_it_does_not_renew(tmp_path: Path) -> None:
    path = tmp_path / "proofs.json"
    renew_record({"planner": 3}, path)
    renew_record({"files": 4}, path)
    assert {name: entry["tests"] for name, entry in read_record(path).items()} == {"files": 4, "planner": 3}
    assert read_record(path)["files"]["sources"] == SUBJECTS["files"].state()["sources"]


def _item(name: str, *, share: int, has_parameters: bool = True) -> Any:
    mark = pytest.mark.proof("engine ort", share=share).mark
    parts = {"callspec": None} if has_parameters else {}
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark, **parts)


def test_a_share_runs_in_the_short_run_and_all_in_the_full_one() -> None:
    items = [_item(f"test_it[{k}]", share=10) for k in range(1000)]
    recorded = {"engine ort"}

    def selected(item: Any, *, full: bool = False, subject: str | None = None) -> bool:
        return is_selected(item, full, subject, recorded)

    assert 60 < sum(map(selected, items)) < 140
    assert all(selected(item, full=True) for item in items)
    assert all(selected(item, subject="engine ort") for item in items)
    assert not any(selected(item, subject="planner") for item in items)
    assert selected(_item("test_law", share=10, has_parameters=False))
    assert not selected(_item("test_law", share=0, has_parameters=False))
    recorded.clear()
    assert all(map(selected, items))


def test_modules_and_classes_with_slow_tests_come_first() -> None:
    names = ("a.py::f", "a.py::g", "b.py::C::f", "b.py::g", "c.py::f", "c.py::g")
    slow = ("b.py::C::f", "c.py::g")
    items: list[Any] = [SimpleNamespace(nodeid=n, get_closest_marker=lambda _, n=n: n in slow) for n in names]
    assert [item.nodeid for item in put_slow_first(items)] == [*names[2:3], *names[4:], *names[:2], names[3]]


def test_functions_that_take_long_in_the_mean_are_noted_and_the_rest_keeps_its_note(tmp_path: Path) -> None:
    path = tmp_path / "slow_tests.json"
    assert read_slow_tests(path) == frozenset()
    (tmp_path / "a.py").write_text("def f(): ...\ndef g(): ...\n")
    write_slow_tests({"a.py::f": [0.01, 0.3], "a.py::g": [0.01, 0.05], "gone.py::f": [1.0]}, path, tmp_path)
    assert read_slow_tests(path) == {"a.py::f", "gone.py::f"}
    write_slow_tests({"a.py::g": [1.0]}, path, tmp_path)
    assert read_slow_tests(path) == {"a.py::f", "a.py::g"}
    write_slow_tests({"a.py::f": [0.0], "tests/architecture/test_a.py::f": [1.0]}, path, tmp_path)
    assert read_slow_tests(path) == {"a.py::g"}


def test_what_is_noted_as_slow_exists() -> None:
    assert [name for name in read_slow_tests() if not does_exist(name)] == [], "say: make slow-tests"
