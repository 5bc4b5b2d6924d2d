"""What the benchmarks share: options, processes, sessions of ONNX Runtime, and output as JSON or as in docs/performance.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[1]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make the parser of a benchmark, with its module's docstring as help text and the option ``--json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def open_session(model: str | bytes | Path, threads: int | None = None) -> Any:
    """Open a model, a file or its bytes, in ONNX Runtime on the CPU; ``threads`` None is the library's default."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    if threads is not None:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def make_calibration_reader(examples: Iterable[Mapping[str, Any]]) -> Any:
    """Make the reader through which ONNX Runtime's static quantization gets its examples."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.examples = iter(examples)

        def get_next(self) -> Any:
            return next(self.examples, None)

    return Reader()


class ChildFailed(Exception):
    """A process failed or took too long; the message has the reason."""


def run_python(
    command: Sequence[str], environment: Mapping[str, str], limit: float | None = None, *, shows_errors: bool = False
) -> dict[str, Any]:
    """Run Python in a new process; return the JSON that it prints last, or raise ChildFailed with the reason.

    The process imports XRT from this checkout. ``limit`` is its time limit in seconds. With ``shows_errors`` its standard error
    goes to the terminal.
    """
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    errors = None if shows_errors else subprocess.PIPE
    try:
        process = subprocess.run(
            [sys.executable, *command],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildFailed(f"no result within {limit:g} s") from error
    if process.returncode:
        *_, message = ["see above" if shows_errors else "no message", *(process.stderr or "").strip().splitlines()]
        raise ChildFailed(f"the process ended with code {process.returncode}: {message[:300]}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


def limit_pools(threads: int) -> dict[str, str]:
    """Environment variables that limit the thread pools of libraries other than the engines."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))


def print_figures(name: str, figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the figures of the benchmark ``name`` as JSON, or as its section of ``docs/performance.md``."""
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    sys.path.insert(0, str(TOP))  # a script has only its own folder in sys.path
    from tools.performance_page import SECTIONS, make_verdict_table

    section = SECTIONS[name]
    print(f"{figures['machine']}\n")
    print("\n".join([*section.list_tables(figures), make_verdict_table(list(section.list_verdicts(figures)))]))
