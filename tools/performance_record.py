"""What `make bench` measured, as a file: ``docs/performance.json``. One entry per benchmark, with what it printed as JSON."""

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
"""What of the machine belongs to the figures; its name, its user and its paths do not."""
MEASURED = ("xrt", "benchmarks", "setup.py", "pyproject.toml", "CMakeLists.txt")
"""What changes figures when it changes; the record itself changes while it is made."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script in ``benchmarks/`` and how `make bench` runs it."""

    name: str
    arguments: str = ""
    """For the record; empty where the script's own defaults are meant for it."""
    quick: str = "--rounds 3"
    """For a run of seconds, which shows that it works."""

    @property
    def script(self) -> Path:
        return TOP / "benchmarks" / f"{self.name}.py"

    def asked(self, *, quick: bool) -> str:
        """Return the arguments of a run."""
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
    Benchmark("auto", quick="--quick"),
    Benchmark("imports", quick="--rounds 3"),
    Benchmark("pytorch", quick="--rounds 3 --models lstm --budget 5 --parts calls,recompiles,dispatch"),
    Benchmark("precision", quick="--quick --models mobilenet,images --budget 5 --seconds 1"),
)
"""In the order in which they run and in which the page tells of them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one benchmark found, and when."""

    arguments: str
    date: str
    commit: str
    """XRT's, with a plus where something of it was changed since."""
    load: float
    """The machine's load average when the benchmark began: over about 0.5 something else was running."""
    seconds: float
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """The entries, and of what machine and versions they are true."""

    machine: Mapping[str, str | int]
    entries: Mapping[str, Entry]

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        """Return what the file holds; an empty record of this machine where there is none."""
        if not path.exists():
            return cls(machine(), {})
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["machine"], {name: Entry(**entry) for name, entry in data["benchmarks"].items()})

    def __str__(self) -> str:
        """Return the file's text."""
        entries = {b.name: asdict(self.entries[b.name]) for b in BENCHMARKS if b.name in self.entries}
        return json.dumps(rounded({"machine": dict(self.machine), "benchmarks": entries}), indent=1) + "\n"

    def plus(self, name: str, entry: Entry) -> Record:
        """Return the record with another entry."""
        return replace(self, entries={**self.entries, name: entry})

    def has(self, benchmark: Benchmark, *, quick: bool) -> bool:
        """Say whether there is an entry for what a run asks."""
        entry = self.entries.get(benchmark.name)
        return entry is not None and entry.arguments == benchmark.asked(quick=quick)

    def is_quick(self, benchmark: Benchmark) -> bool:
        """Say whether the entry is of a run that shows only that the benchmark works."""
        return self.has(benchmark, quick=True)


def rounded(value: Any) -> Any:
    """Return figures with six digits: what is behind them is chance, and would fill the file."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def machine() -> dict[str, str | int]:
    """Return what the figures belong to: the machine in words, and versions."""
    facts = describe()
    found = {fact: facts[fact] for fact in FACTS} | {"system": platform.system()}
    native = {"native kernels": "none" if why_not_shipped() else "built"}
    return found | {name: metadata.version(name) for name in LIBRARIES} | native


def commit() -> str:
    """Return XRT's commit, with a plus where files are changed; "unknown" outside a clone."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + "+" * bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=True).stdout.strip()
