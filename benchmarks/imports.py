"""How long does `import xrt` take?

New processes take turns: one imports NumPy, one NumPy and XRT, and one also uses XRTModule and an operator, which imports `onnx`.
The result is the difference to NumPy within a round, without the start of the interpreter.

    python benchmarks/imports.py [--json] [--rounds N]
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from output import make_parser, print_figures

from xrt.bench import machine
from xrt.measure.statistics import compute_quartiles, take_turns

IMPORTS = {
    "numpy": "import numpy",
    "xrt": "import numpy, xrt",
    "first use": "import numpy, xrt; xrt.XRTModule, xrt.ops.Relu",
}


def time_import(code: str) -> float:
    """Measure the seconds that a new process needs to run the code."""
    timed = f"import time; began = time.perf_counter(); {code}; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Measure all imports in turns. The first round is not counted, because it fills the caches of bytecode and files."""
    turns = {name: partial(time_import, code) for name, code in IMPORTS.items()}
    take_turns(turns, 1)
    times = take_turns(turns, rounds)
    return [
        {"what": name, "seconds": compute_spread(values), "over_numpy": subtract(values, times["numpy"])}
        for name, values in times.items()
    ]


def subtract(values: list[float], base: list[float]) -> dict[str, float]:
    return compute_spread([a - b for a, b in zip(values, base, strict=True)])


def compute_spread(values: list[float]) -> dict[str, float]:
    """Compute the median and quartiles."""
    return asdict(compute_quartiles(values))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="fresh processes of each kind (default 15)")
    arguments = parser.parse_args()
    figures = {"machine": machine(), "imports": measure(arguments.rounds)}
    print_figures("imports", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
