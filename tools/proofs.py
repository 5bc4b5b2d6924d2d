"""What `make test-full` proved, and of which sources and libraries that is true: ``tests/proofs.json``.

`make test` runs a share of the tests of each subject that has a record, and all tests of the others. The rest has run when the
record was written, and the record is stale as soon as the code or a library that it depends on is another: then `make test`
fails and names the command that renews it.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["RECORD", "SUBJECTS", "Subject", "find_stale", "hash_source", "read_record", "renew_record"]

TOP = Path(__file__).parents[1]
RECORD = TOP / "tests" / "proofs.json"

_SHARED = ("xrt/engines/*.py", "xrt/engines/contract/*.py")
_TOOLKIT = "xrt.engines.toolkit"
_LIBRARIES = {
    "toy": ("ml_dtypes",),
    "ort": ("onnxruntime",),
    "tvm": ("apache-tvm", "apache-tvm-ffi"),
    "openvino": ("openvino",),
    "xla": ("jax", "jaxlib"),
    "iree": ("iree-base-compiler", "iree-base-runtime"),
    "torch": ("torch",),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that a set of tests proves."""

    name: str
    sources: tuple[str, ...]
    """Patterns of the files that it depends on, relative to the repository."""
    packages: tuple[str, ...] = ()
    """Distributions that it depends on."""

    @property
    def command(self) -> str:
        """What renews its record."""
        return f'make test-full SUBJECT="{self.name}"'

    def state(self, top: Path = TOP) -> dict[str, dict[str, str]]:
        """Return what it depends on as it is now: a hash for each pattern of sources and the version of each package."""
        return {
            "sources": {pattern: _hash_pattern(pattern, top) for pattern in self.sources},
            "packages": {name: _version(name) for name in self.packages},
        }


def _engine(name: str) -> Subject:
    sources = [*_SHARED, f"xrt/engines/{name}/**/*.py"]
    if name in ("toy", "xla"):
        sources.append("xrt/engines/kernels/*.py")
    if name == "toy":
        sources.append("xrt/engines/native/**/*.py")
    sources += _find_toolkit(sources)
    if name == "toy":
        sources.append("xrt/engines/native/src/**/*")
    return Subject(f"engine {name}", tuple(sources), ("onnx", "numpy", *_LIBRARIES[name]))


def _find_toolkit(patterns: Iterable[str]) -> list[str]:
    """Return the modules of the toolkit that those sources import, and those that these import."""
    left = [path for pattern in patterns for path in TOP.glob(pattern)]
    found: set[Path] = set()
    while left:
        new = _list_toolkit(left.pop()) - found
        found |= new
        left += new
    return sorted(path.relative_to(TOP).as_posix() for path in found)


@cache
def _list_toolkit(path: Path) -> frozenset[Path]:
    """Return the files of the toolkit that a module imports anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(path for name in names if name.startswith(_TOOLKIT) for path in _find_files(name))


def _find_files(name: str) -> Iterator[Path]:
    """Yield the files that an import of a module of the toolkit reads: packages have one each."""
    whole = TOP.joinpath(*name.split("."))
    packages = [whole, *whole.parents[: name.count(".") - _TOOLKIT.count(".")]]
    yield from filter(Path.is_file, (whole.with_suffix(".py"), *(package / "__init__.py" for package in packages)))


_AREAS = (
    Subject("planner", ("xrt/partition/**/*.py", "xrt/placement/cost_model/*.py", "xrt/placement/search/*.py"), ("networkx",)),
    Subject("measurement", ("xrt/placement/**/*.py", "xrt/measure/*.py", "xrt/bench/**/*.py", "benchmarks/*.py")),
    Subject(
        "placement",
        ("xrt/placement/**/*.py", "xrt/partition/**/*.py", "xrt/measure/*.py", "xrt/module/*.py", "xrt/precision/*.py"),
    ),
    Subject("verification", ("xrt/verify/**/*.py", "xrt/worker/*.py", "xrt/testing/*.py")),
    Subject("processes", ("xrt/processes/*.py", "xrt/cache/**/*.py", "xrt/worker/*.py")),
    Subject("files", ("xrt/formats/**/*.py", "tests/malformed_inputs/*.py"), ("onnx", "protobuf")),
    Subject("training", ("xrt/training/*.py", "xrt/passes/gradient/**/*.py"), ("onnx", "torch")),
    Subject("pytorch", ("xrt/frontends/**/*.py",), ("torch", "transformers")),
    Subject("ray", ("xrt/integrations/**/*.py",), ("ray",)),
    Subject("plugins", ("examples/**/*.py", "xrt/engines/*.py", "xrt/engines/contract/*.py", "xrt/testing/*.py")),
    Subject("pages", ("xrt/html/*.py", "xrt/html/*.css", "xrt/html/templates/*")),
    Subject("devices", ("xrt/runtime/devices/*.py", "xrt/runtime/multi_device/*.py", "xrt/placement/**/*.py")),
    Subject("faults", ("xrt/module/*.py", "xrt/runtime/**/*.py", "xrt/worker/*.py", "xrt/testing/fault_injection.py")),
    Subject("suite", ("xrt/testing/*.py",), ("onnx",)),
    Subject("checks", ("tests/architecture/*.py", "tests/ops/test_ops.py", "tests/formats/test_proto.py")),
    Subject("distribution", ("pyproject.toml", "setup.py", "MANIFEST.in", "CMakeLists.txt", "xrt/engines/native/src/**/*")),
)
SUBJECTS: Mapping[str, Subject] = {subject.name: subject for subject in (*map(_engine, _LIBRARIES), *_AREAS)}
"""Every subject, by its name, which the tests' marker `proof` uses."""


@cache
def hash_source(text: str) -> str:
    """Return a hash of Python source that comments, docstrings and blank lines do not change."""
    lines = text.splitlines()
    for token in () if "#" not in text else tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for first, last in _docstrings(ast.parse(text)):
        lines[first - 1 : last] = [""] * (last - first + 1)
    return _hash(line.rstrip() for line in lines if line.strip())


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of every text that is a statement of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.end_lineno or node.lineno


def find_stale(record: Mapping[str, Any], top: Path = TOP) -> list[str]:
    """Return a sentence for each subject whose record is of other sources or libraries, with what renews it."""
    return [
        f"{subject.name}: {'; '.join(changes)}. Say: {subject.command}"
        for subject in SUBJECTS.values()
        if subject.name in record and (changes := list(_changes(record[subject.name], subject.state(top))))
    ]


def _changes(recorded: Mapping[str, Any], state: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for pattern, found in state["sources"].items():
        if recorded["sources"].get(pattern) != found:
            yield f"{pattern} changed"
    for name, found in state["packages"].items():
        if (before := recorded["packages"].get(name)) != found:
            yield f"{name} was {before}, is {found}"


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Return the record; empty where there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def renew_record(tests: Mapping[str, int], path: Path = RECORD) -> None:
    """Write that subjects are proved as they are now, by that many tests each; the others stay as they are recorded."""
    proved = {name: {"tests": count, **SUBJECTS[name].state()} for name, count in tests.items()}
    record = {name: entry for name, entry in read_record(path).items() if name in SUBJECTS} | proved
    path.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n", encoding="utf-8")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def _hash_pattern(pattern: str, top: Path) -> str:
    paths = sorted(top.glob(pattern))
    return _hash(f"{path.relative_to(top).as_posix()} {_hash_file(path)}" for path in paths if path.is_file())


def _hash_file(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return hash_source(text) if path.suffix == ".py" else _hash([text])


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
