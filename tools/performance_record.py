"""The record of `make bench`, ``docs/performance.json``: one entry per benchmark with the JSON that it printed."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from xrt.bench.report import describe
from xrt.engines.native import why_not_shipped

TOP = Path(__file__).parents[1]
RECORD = TOP / "docs" / "performance.json"
LIBRARIES = ("numpy", "onnx", "onnxruntime", "apache-tvm")
FACTS = ("processor", "architecture", "cores", "python")
"""Properties of the machine that explain figures; no names, users or paths."""
SOURCES = ("xrt", "benchmarks", "setup.py", "pyproject.toml", "CMakeLists.txt")
"""Files that change figures; the record itself is written during a run."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script in ``benchmarks/`` and its arguments for `make bench`."""

    name: str
    arguments: str = ""
    quick: str = "--rounds 3"
    """Arguments of a run of seconds, which shows that the script works."""

    @property
    def script(self) -> Path:
        return TOP / "benchmarks" / f"{self.name}.py"

    def get_arguments(self, *, quick: bool) -> str:
        return self.quick if quick else self.arguments


BENCHMARKS = (
    Benchmark("dispatch", quick="--rounds 3 --engines ort,toy --floats 1000 --threads 1"),
    Benchmark(
        "regions",
        quick="--rounds 3 --counts 2,8 --others toy --channels 2 --size 4 --threads 1 "
        "--engines ort,toy --side 16 --pair-rounds 3",
    ),
    Benchmark("memory", quick="--megabytes 20 --large 0 --engines ort --regions 1,8"),
    Benchmark("partition", quick="--rounds 3 --sizes 100,10000"),
    Benchmark("auto", "--budget 20", quick="--quick"),
    Benchmark("imports", quick="--rounds 3"),
    Benchmark("first_result", "--models mobilenet,squeezenet,bert,gpt,vit", quick="--rounds 1 --engines ort --models squeezenet"),
    Benchmark("dynamic_shapes", quick="--rounds 3 --engines ort --models chain --sizes 4,8"),
    Benchmark("pytorch", quick="--rounds 3 --models lstm --budget 5 --parts calls,dispatch"),
    Benchmark("precision", "--budget 20", quick="--quick --models mobilenet,images --budget 5 --seconds 1"),
)
"""In the order in which they run and appear on the page."""
BY_NAME = {benchmark.name: benchmark for benchmark in BENCHMARKS}


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one benchmark, and the circumstances of the run."""

    arguments: str
    date: str
    commit: str
    """The commit of XRT, with a plus if files were changed after it."""
    load: float
    """Load average at the start: above about 0.5 something else was running."""
    seconds: float
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """The entries, with the machine and the versions that they belong to."""

    machine: Mapping[str, str | int]
    entries: Mapping[str, Entry]

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        """Read a record; a missing file is an empty record of this machine."""
        if not path.exists():
            return cls(describe_machine(), {})
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["machine"], {name: Entry(**entry) for name, entry in data["benchmarks"].items()})

    def __str__(self) -> str:
        """The text of the file."""
        entries = {b.name: asdict(self.entries[b.name]) for b in BENCHMARKS if b.name in self.entries}
        return json.dumps(_round({"machine": dict(self.machine), "benchmarks": entries}), indent=1) + "\n"

    def add(self, name: str, entry: Entry) -> Record:
        return replace(self, entries={**self.entries, name: entry})

    def remove(self, name: str) -> Record:
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key != name})

    def has(self, benchmark: Benchmark, *, quick: bool) -> bool:
        """Whether there is an entry for the arguments of such a run."""
        entry = self.entries.get(benchmark.name)
        return entry is not None and entry.arguments == benchmark.get_arguments(quick=quick)

    def is_quick(self, benchmark: Benchmark) -> bool:
        return self.has(benchmark, quick=True)


def _round(value: Any) -> Any:
    """Round to six digits: the rest is noise, and fills the file."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _round(item) for key, item in value.items()}
    return [_round(item) for item in value] if isinstance(value, list) else value


def describe_machine() -> dict[str, str | int]:
    """Describe processor, system and versions of libraries."""
    facts = describe()
    properties = {fact: facts[fact] for fact in FACTS} | {"system": platform.system()}
    native = {"native kernels": "none" if why_not_shipped() else "built"}
    return properties | {name: metadata.version(name) for name in LIBRARIES} | native


def get_commit() -> str:
    """The commit of this clone, with a plus if files are changed; "unknown" outside a clone."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + "+" * bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=TOP, capture_output=True, text=True, check=True).stdout.strip()
