"""Run everything that needs a GPU: the tests marked `cuda`, the node tests of onnx on each engine, and the benchmark.

    python -m tools.cuda_check

Prints tables, and writes docs/cuda-results.json and the section of docs/performance.md. Uses the installed libraries and no
network. Exit code 3, without writing, if there is no CUDA device; 1 if a test failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import xrt
from tools.cuda_page import RESULTS, cuda_section
from tools.known_failures import load_known_failures
from tools.performance_page import PAGE, make_page
from tools.performance_record import Record
from xrt.errors import CompileRefused, DeviceError, PlanError
from xrt.runtime import count_available_cores
from xrt.runtime.devices import device
from xrt.testing import node_cases
from xrt.testing.running import make_module

TOP = Path(__file__).parents[1]
NO_DEVICE = 3
PYTEST_SECONDS, SUITE_SECONDS, BENCHMARK_SECONDS = 120, 110, 180
"""Time limits; less than seven minutes together."""
SUITES = {"toy": "toy{native=off}", "ort": "ort", "tvm": "tvm"}
"""Engines that run the node tests, to their specs."""


def main() -> int:
    arguments = _parse_arguments()
    try:
        gpu = device("cuda")
    except DeviceError as error:
        print(f"nothing to check: {error}", file=sys.stderr)
        return NO_DEVICE
    if arguments.suite:
        run_suite(arguments.suite, arguments.part, arguments.parts)
        return 0
    results = check(gpu.hardware)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(make_page(Record.read()), encoding="utf-8")
    print(cuda_section(results))
    return int(any(counts.get("failed", 0) for counts in results["tests"].values()))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", help="only the node tests on one engine: a line with a word and a name for each")
    parser.add_argument("--part", type=int, default=0, help="begin with this test")
    parser.add_argument("--parts", type=int, default=1, help="run one in so many tests")
    return parser.parse_args()


def check(hardware: str) -> dict[str, Any]:
    """Run the tests marked cuda, the benchmark and the node tests; return their results."""
    tests = {"tests marked cuda": run_pytest()}
    figures = run([sys.executable, "benchmarks/gpu.py", "--json"], BENCHMARK_SECONDS)
    results: dict[str, Any] = {
        "engines": {},
        "latency": [],
        "chain": None,
        "copies": {"host": None, "device": None},
        "mixtures": [],
    }
    if figures.rstrip().endswith("}"):
        results |= json.loads(figures)
    else:
        tests["benchmark"] = {"failed": 1}
    ready = {name: spec for name, spec in SUITES.items() if results["engines"].get(name, "ready") == "ready"}
    parts = max(1, count_available_cores() // max(1, len(ready)))
    with ThreadPoolExecutor(parts * len(ready)) as pool:
        running = {name: [pool.submit(run_part, spec, part, parts) for part in range(parts)] for name, spec in ready.items()}
    for name, futures in running.items():
        tests[f"node tests on {name}"] = dict(sum((future.result() for future in futures), Counter[str]()))
    date = datetime.now(UTC).date().isoformat()
    return {**results, "device": hardware, "date": date, "versions": get_versions(), "tests": tests}


def get_versions() -> str:
    """The versions of the installed libraries."""
    installed = {"xrt": xrt.__version__} | {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    names = ("xrt", "numpy", "cupy-cuda13x", "cupy-cuda12x", "onnxruntime-gpu", "apache-tvm", "nvidia-cuda-nvrtc", "onnx")
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def run(command: list[str], seconds: float) -> str:
    """Run a command and return its output, even if it fails or takes too long. Its errors go to standard error."""
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path}
    try:
        process = subprocess.run(command, cwd=TOP, env=variables, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        print(f"{' '.join(command[1:3])} took more than {seconds:.0f} s", file=sys.stderr)
        return (error.stdout or b"").decode()
    sys.stderr.write(process.stderr)
    return process.stdout


def run_pytest() -> dict[str, int]:
    """Run the tests marked `cuda` and count the results."""
    # Only files that have such tests: others import engines that need not be installed on a machine with a GPU.
    files = [str(path) for path in sorted((TOP / "tests").rglob("test_*.py")) if "@pytest.mark.cuda" in path.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "tests/devices", *files]
    text = run(command, PYTEST_SECONDS)
    counts = parse_counts(text)
    if "failed" in counts:
        print(text, file=sys.stderr)
    return counts


def parse_counts(text: str) -> dict[str, int]:
    """Parse the last line of pytest; a text without counts is a failure.

    >>> parse_counts("1 failed, 20 passed, 3 deselected in 1.2s")
    {'failed': 1, 'passed': 20}
    >>> parse_counts("")
    {'failed': 1}
    """
    last = text.strip().rpartition("\n")[2]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    if "error" in counts:
        counts["failed"] = counts.get("failed", 0) + counts.pop("error")
    return counts or {"failed": 1}


def run_part(engine: str, part: int, parts: int) -> Counter[str]:
    """Run every ``parts``-th node test from number ``part`` on in a new process, and count the results.

    If a test ends the process, a new process continues with the next test, until the time limit.
    """
    words: Counter[str] = Counter()
    total, end = len(node_cases()), time.monotonic() + SUITE_SECONDS
    while part < total and time.monotonic() < end:
        options = ["--suite", engine, "--part", str(part), "--parts", str(parts)]
        lines = run([sys.executable, "-m", "tools.cuda_check", *options], end - time.monotonic()).splitlines()
        words.update(line.partition(" ")[0] for line in lines)
        part += parts * len(lines)
        if part < total and time.monotonic() < end:
            print(f"{engine}: {node_cases()[part].name} ended the process", file=sys.stderr)
            words["failed"] += 1
            part += parts
    words["unreached"] += len(range(part, total, parts))
    return words


def run_suite(engine: str, part: int, parts: int) -> None:
    """Run every ``parts``-th node test of onnx, from number ``part`` on, on the device; print a line for each."""
    name = engine.partition("{")[0]
    known_failures = [*load_known_failures(name), *load_known_failures(f"{name} on cuda")]
    for case in node_cases()[part::parts]:
        try:
            word = run_case(case, engine)
        except (PlanError, CompileRefused):
            word = "declined"
        except Exception as error:  # noqa: BLE001  # any error is a failed test
            print(f"{engine}: {case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            word = "failed"
        if word == "failed" and any(gap.covers(case.name) for gap in known_failures):
            word = "known"
        print(word, case.name, flush=True)


def run_case(case: Any, engine: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with make_module(case.function, [engine], device="cuda") as module:
            results = module(*case.inputs)
            host = [copy_to_host(value) for value in ([results] if len(case.function.outputs) == 1 else results)]
    comparison = case.judge(host)
    if not comparison:
        print(f"{engine}: {case.name}: {comparison.message}", file=sys.stderr)
    return "passed" if comparison else "failed"


def copy_to_host(value: Any) -> Any:
    if isinstance(value, list):
        return [copy_to_host(item) for item in value]
    return value.get() if hasattr(value, "get") else value


if __name__ == "__main__":
    sys.exit(main())
