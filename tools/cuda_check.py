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
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import xrt
from tools.cuda_page import RESULTS, cuda_section
from tools.performance_page import PAGE, make_page
from tools.performance_record import Record
from xrt.errors import CompileRefused, DeviceError, PlanError
from xrt.runtime.devices import device
from xrt.testing import node_cases
from xrt.testing.running import make_module

TOP = Path(__file__).parents[1]
NO_DEVICE = 3
TESTS, SUITE, BENCHMARK = 150, 110, 120
"""Time limits in seconds; with three engines less than ten minutes together."""
SUITES = {"toy": "toy{native=off}", "ort": "ort", "tvm": "tvm"}


def main() -> int:
    arguments = _parse_arguments()
    try:
        gpu = device("cuda")
    except DeviceError as error:
        print(f"nothing to check: {error}", file=sys.stderr)
        return NO_DEVICE
    if arguments.suite:
        print(json.dumps(run_suite(arguments.suite, arguments.seconds)))
        return 0
    results = check(gpu.hardware)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(make_page(Record.read()), encoding="utf-8")
    print(cuda_section(results))
    return int(any(counts.get("failed", 0) for counts in results["tests"].values()))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", help="only the node tests on one engine, as JSON")
    parser.add_argument("--seconds", type=float, default=SUITE)
    return parser.parse_args()


def check(hardware: str) -> dict[str, Any]:
    """Run all parts and return their results."""
    tests = {"tests marked cuda": run_pytest()}
    figures = run([sys.executable, "benchmarks/cuda.py", "--json"], BENCHMARK)
    results: dict[str, Any] = json.loads(figures) if figures else {"engines": {}, "latency": [], "chain": None, "mixtures": []}
    results.setdefault("copies", {"host": None, "device": None})
    if not figures:
        tests["benchmark"] = {"failed": 1}
    for name, spec in SUITES.items():
        if results["engines"].get(name, "ready") == "ready":
            text = run([sys.executable, "-m", "tools.cuda_check", "--suite", spec, "--seconds", str(SUITE)], SUITE + 30)
            tests[f"node tests on {name}"] = json.loads(text) if text else {"failed": 1}
    date = datetime.now(UTC).date().isoformat()
    return {**results, "device": hardware, "date": date, "versions": get_versions(), "tests": tests}


def get_versions() -> str:
    """The versions of the installed libraries."""
    installed = {"xrt": xrt.__version__} | {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    names = ("xrt", "numpy", "cupy-cuda13x", "cupy-cuda12x", "onnxruntime-gpu", "apache-tvm", "nvidia-cuda-nvrtc", "onnx")
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def run(command: list[str], seconds: float) -> str:
    """Return the output of a command; if it fails or takes too long, print that and return an empty text."""
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    try:
        process = subprocess.run(
            command, cwd=TOP, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command[1:3])} took more than {seconds:.0f} s", file=sys.stderr)
        return ""
    if process.returncode not in (0, 1) or not process.stdout.strip():
        print(f"{' '.join(command[1:3])} ended with code {process.returncode}:\n{process.stderr[-2000:]}", file=sys.stderr)
        return ""
    return process.stdout


def run_pytest() -> dict[str, int]:
    """Run the tests marked `cuda` and count the results."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "tests/devices", "tests/engines"]
    return parse_counts(run(command, TESTS))


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


def run_suite(engine: str, seconds: float) -> dict[str, int]:
    """Run the node tests of onnx on an engine on the device until the time limit, and count the results."""
    words: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for case in node_cases():
        if time.monotonic() > end:
            words["unreached"] += 1
            continue
        try:
            words[run_case(case, engine)] += 1
        except (PlanError, CompileRefused):
            words["declined"] += 1
        except Exception as error:  # noqa: BLE001  # any error is a failed test
            print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            words["failed"] += 1
    return dict(words)


def run_case(case: Any, engine: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with make_module(case.function, [engine], device="cuda") as module:
            results = module(*case.inputs)
            host = [copy_to_host(value) for value in ([results] if len(case.function.outputs) == 1 else results)]
    comparison = case.judge(host)
    if not comparison:
        print(f"{case.name}: {comparison}", file=sys.stderr)
    return "passed" if comparison else "failed"


def copy_to_host(value: Any) -> Any:
    if isinstance(value, list):
        return [copy_to_host(item) for item in value]
    return value.get() if hasattr(value, "get") else value


if __name__ == "__main__":
    sys.exit(main())
