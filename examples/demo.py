"""Run three real networks on the reference engine, on ONNX Runtime, and on TVM and ONNX Runtime together.

The networks are shipped with the ``onnx`` package and get random weights from a fixed seed. In the mixture, convolutions and
matrix products are pinned to ONNX Runtime, and TVM runs the rest. Each result is compared with that of the reference engine.

    python examples/demo.py [MODEL ...]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import xrt
from xrt.comparison import compare, tolerance_for
from xrt.models import light_models, load_light, sample_inputs

MODELS = ("squeezenet", "resnet50", "densenet121")
ENGINES: dict[str, dict] = {
    "toy": {"engine": "toy"},
    "ort": {"engine": "ort", "strict": True},
    "tvm + ort": {"engine": ["tvm", "ort"], "pins": ["Conv|Gemm|MatMul=ort"], "strict": True},
}
MEASURE_SECONDS = 3.0
"""Seconds for which the latency of a model is measured, with at least 3 and at most 50 runs."""


@dataclass(frozen=True)
class Outcome:
    """The result of one model on one engine, or on a mixture of engines."""

    model: str
    engine: str
    regions: Counter[str]
    """Number of regions in the plan, by engine."""
    compiled: float
    """Seconds to compile the model."""
    latency: float
    """Median seconds of a run."""
    result: np.ndarray
    difference: float
    """Largest absolute difference from the result of the reference engine."""
    fault: str
    """Why the outcome is wrong; empty if it is correct."""

    def row(self) -> tuple[str, ...]:
        regions = ", ".join(f"{count} {engine}" for engine, count in sorted(self.regions.items()))
        verdict = f"[red]{self.fault}[/]" if self.fault else f"{self.difference:.1e}"
        return (self.model, self.engine, regions, f"{self.compiled:.2f} s", f"{1e3 * self.latency:.1f} ms", verdict)


def run(model: str, engine: str, function: xrt.Function, reference: np.ndarray | None) -> Outcome:
    """Run the model on an engine of `ENGINES`; compare its result with ``reference``, or with itself if that is None."""
    with xrt.XRTModule(function, **ENGINES[engine]) as module:
        start = perf_counter()
        module.compile()
        compiled = perf_counter() - start
        values = list(sample_inputs(function).values())
        result = module(*values)
        regions = Counter(launch.engine.partition("{")[0] for launch in module.plan.launches)
        latency = median(time_runs(module, values))
    expected = result if reference is None else reference
    comparison = compare(result, expected, tolerance_for(result.dtype, "network"))
    wanted = set(engine.split(" + "))
    fault = comparison.message
    if set(regions) != wanted:
        fault = f"the plan uses {', '.join(sorted(regions))}, not {', '.join(sorted(wanted))}"
    return Outcome(model, engine, regions, compiled, latency, result, comparison.absolute, fault)


def time_runs(module: xrt.XRTModule, values: list[np.ndarray]) -> Iterator[float]:
    """Run the module repeatedly and yield the seconds of each run."""
    ends = perf_counter() + MEASURE_SECONDS
    for count in range(50):
        if count >= 3 and perf_counter() > ends:
            return
        start = perf_counter()
        module(*values)
        yield perf_counter() - start


def run_all(models: tuple[str, ...], progress: Progress) -> Iterator[Outcome]:
    """Run each model on each engine, the reference engine first, and yield the outcomes."""
    task = progress.add_task("", total=len(models) * len(ENGINES))
    for model in models:
        progress.update(task, description=f"{model}: making the weights")
        function = load_light(model)
        reference = None
        for engine in ENGINES:
            progress.update(task, description=f"{model} on {engine}")
            outcome = run(model, engine, function, reference)
            reference = outcome.result if reference is None else reference
            progress.advance(task)
            yield outcome


def main(models: tuple[str, ...]) -> int:
    """Print the outcomes. Return 1 if a result is wrong or a plan lacks one of its engines, 2 for an unknown model, else 0."""
    unknown = set(models) - set(light_models())
    if unknown:
        print(f"no model {', '.join(sorted(unknown))}; there are {', '.join(light_models())}", file=sys.stderr)
        return 2
    console = Console()
    table = Table("model", "engine", "regions", "compile", "latency", "difference from toy", box=None, pad_edge=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    failed = False
    with Progress(*columns, console=console, transient=True) as progress:
        for outcome in run_all(models, progress):
            table.add_row(*outcome.row())
            failed |= bool(outcome.fault)
            progress.console.print(f"{outcome.model} on {outcome.engine}: {outcome.row()[4]}", style="dim", highlight=False)
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or MODELS))
