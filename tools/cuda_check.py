"""Run everything that needs a GPU: the tests marked `cuda`, the node tests of onnx on each engine, and the benchmark.

    python -m tools.cuda_check

Prints a table, and writes docs/cuda-results.json and the section of docs/performance.md. Uses what is installed, and no
network. Ends with code 3, and writes nothing, where there is no CUDA device; with 1 where a test has failed.
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
from tools.performance_page import PAGE, page
from tools.performance_record import Record
from xrt.errors import CompileRefused, DeviceError, PlanError
from xrt.runtime.devices import device
from xrt.testing import node_cases
from xrt.testing.running import make_module

TOP = Path(__file__).parents[1]
NO_DEVICE = 3
TESTS, SUITE, BENCHMARK = 150, 110, 120
"""Seconds for each part: with three engines, less than ten minutes together."""
SUITES = {"toy": "toy{native=off}", "ort": "ort", "tvm": "tvm"}


def main() -> int:
    asked = _arguments()
    try:
        there = device("cuda")
    except DeviceError as error:
        print(f"nothing to check: {error}", file=sys.stderr)
        return NO_DEVICE
    if asked.suite:
        print(json.dumps(suite(asked.suite, asked.seconds)))
        return 0
    results = checked(there.hardware)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(Record.read()), encoding="utf-8")
    print(cuda_section(results))
    return int(any(counts.get("failed", 0) for counts in results["tests"].values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", help="only the node tests on one engine, as JSON")
    parser.add_argument("--seconds", type=float, default=SUITE)
    return parser.parse_args()


def checked(hardware: str) -> dict[str, Any]:
    """Run all parts and return what they found."""
    tests = {"tests marked cuda": pytest_counts()}
    figures = run([sys.executable, "benchmarks/cuda.py", "--json"], BENCHMARK)
    found: dict[str, Any] = json.loads(figures) if figures else {"engines": {}, "latency": [], "chain": None, "mixtures": []}
    found.setdefault("copies", {"host": None, "device": None})
    if not figures:
        tests["benchmark"] = {"failed": 1}
    for name, spec in SUITES.items():
        if found["engines"].get(name, "ready") == "ready":
            text = run([sys.executable, "-m", "tools.cuda_check", "--suite", spec, "--seconds", str(SUITE)], SUITE + 30)
            tests[f"node tests on {name}"] = json.loads(text) if text else {"failed": 1}
    date = datetime.now(UTC).date().isoformat()
    return {**found, "device": hardware, "date": date, "versions": versions(), "tests": tests}


def versions() -> str:
    """Return the versions of what was used."""
    known = {"xrt": xrt.__version__} | {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    names = ("xrt", "numpy", "cupy-cuda13x", "cupy-cuda12x", "onnxruntime-gpu", "apache-tvm", "nvidia-cuda-nvrtc", "onnx")
    return ", ".join(f"{name} {known[name]}" for name in names if name in known)


def run(command: list[str], seconds: float) -> str:
    """Return what a command prints; nothing, with a word on the screen, where it fails or takes too long."""
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, cwd=TOP, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command[1:3])} took more than {seconds:.0f} s", file=sys.stderr)
        return ""
    if done.returncode not in (0, 1) or not done.stdout.strip():
        print(f"{' '.join(command[1:3])} ended with code {done.returncode}:\n{done.stderr[-2000:]}", file=sys.stderr)
        return ""
    return done.stdout


def pytest_counts() -> dict[str, int]:
    """Return how the tests marked `cuda` went."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "tests/devices", "tests/engines"]
    return counted(run(command, TESTS))


def counted(text: str) -> dict[str, int]:
    """Return the counts of pytest's last line; that nothing came of it is a failure.

    >>> counted("1 failed, 20 passed, 3 deselected in 1.2s")
    {'failed': 1, 'passed': 20}
    >>> counted("")
    {'failed': 1}
    """
    last = text.strip().rpartition("\n")[2]
    found = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    if "error" in found:
        found["failed"] = found.get("failed", 0) + found.pop("error")
    return found or {"failed": 1}


def suite(engine: str, seconds: float) -> dict[str, int]:
    """Return how the node tests of onnx go on an engine on the device, as far as the time reaches."""
    words: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for case in node_cases():
        if time.monotonic() > end:
            words["unreached"] += 1
            continue
        try:
            words[judged(case, engine)] += 1
        except (PlanError, CompileRefused):
            words["declined"] += 1
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a test that failed
            print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
            words["failed"] += 1
    return dict(words)


def judged(case: Any, engine: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with make_module(case.function, [engine], device="cuda") as module:
            results = module(*case.inputs)
            host = [down(value) for value in ([results] if len(case.function.outputs) == 1 else results)]
    found = case.judge(host)
    if not found:
        print(f"{case.name}: {found}", file=sys.stderr)
    return "passed" if found else "failed"


def down(value: Any) -> Any:
    """Return a result on the host."""
    return [down(item) for item in value] if isinstance(value, list) else value.get() if hasattr(value, "get") else value


if __name__ == "__main__":
    sys.exit(main())
