"""How long does `import xrt` take?

Fresh processes that take turns: one imports NumPy, one NumPy and XRT, one makes the first use of XRT's class and operators too,
which bring `onnx`. What counts is the difference to NumPy within a round; the interpreter's own start is not in it.

    python benchmarks/imports.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from xrt.bench import RatioInterval, machine
from xrt.measure.statistics import compute_quartiles, take_turns

WAYS = {
    "numpy": "import numpy",
    "xrt": "import numpy, xrt",
    "first use": "import numpy, xrt; xrt.XRTModule, xrt.ops.Relu",
}


def seconds(code: str) -> float:
    """Return what a fresh process takes for the code."""
    timed = f"import time; began = time.perf_counter(); {code}; print(time.perf_counter() - began)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)


def measured(rounds: int) -> list[dict[str, Any]]:
    """Time each way in turn; the first round, for bytecode and the system's cache of files, does not count."""
    turns = {name: partial(seconds, code) for name, code in WAYS.items()}
    take_turns(turns, 1)
    taken = take_turns(turns, rounds)
    return [{"what": name, "seconds": spread(mine), "over_numpy": over(mine, taken["numpy"])} for name, mine in taken.items()]


def over(mine: list[float], base: list[float]) -> dict[str, float]:
    return spread([a - b for a, b in zip(mine, base, strict=True)])


def spread(values: list[float]) -> dict[str, float]:
    """Return median and quartiles."""
    return asdict(compute_quartiles(values))


def report(figures: dict[str, Any]) -> str:
    rows = [
        f"  {row['what']:10} {RatioInterval(**row['seconds'])} s, over numpy {RatioInterval(**row['over_numpy'])} s"
        for row in figures["imports"]
    ]
    return "\n".join([figures["machine"], "", "imports in a fresh process: medians and quartiles", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=15, help="fresh processes of each kind (default 15)")
    arguments = parser.parse_args()
    figures = {"machine": machine(), "imports": measured(arguments.rounds)}
    print(json.dumps(figures, indent=2) if arguments.json else report(figures))


if __name__ == "__main__":
    main()
