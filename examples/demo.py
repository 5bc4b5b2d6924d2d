"""Three real networks, each on the reference engine, on ONNX Runtime, and on TVM and ONNX Runtime together.

The networks are those that the ``onnx`` package ships, with seeded random weights. In the mixture, convolutions and
matrix products are pinned to ONNX Runtime and TVM has the rest. Every result is compared with the reference engine's.

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
SECONDS = 3.0
"""How long a latency is measured; at least three runs, at most fifty."""


@dataclass(frozen=True)
class Outcome:
    """One model on one engine, or on a mixture."""

    model: str
    engine: str
    regions: Counter[str]
    """How many regions each engine has in the Plan."""
    compiled: float
    """Seconds."""
    latency: float
    """Seconds, the median."""
    result: np.ndarray
    difference: float
    """The largest of any element from the reference engine's result."""
    fault: str
    """What is wrong with it; empty where nothing is."""

    def row(self) -> tuple[str, ...]:
        regions = ", ".join(f"{count} {engine}" for engine, count in sorted(self.regions.items()))
        verdict = f"[red]{self.fault}[/]" if self.fault else f"{self.difference:.1e}"
        return (self.model, self.engine, regions, f"{self.compiled:.2f} s", f"{1e3 * self.latency:.1f} ms", verdict)


def run(model: str, engine: str, function: xrt.Function, reference: np.ndarray | None) -> Outcome:
    """Compile the model for the engine, measure it, and hold its result against the reference."""
    with xrt.XRTModule(function, **ENGINES[engine]) as module:
        began = perf_counter()
        module.compile()
        compiled = perf_counter() - began
        values = list(sample_inputs(function).values())
        result = module(*values)
        regions = Counter(launch.engine.partition("{")[0] for launch in module.plan.launches)
        latency = median(timed_runs(module, values))
    expected = result if reference is None else reference
    comparison = compare(result, expected, tolerance_for(result.dtype, "network"))
    wanted = set(engine.split(" + "))
    fault = comparison.message
    if set(regions) != wanted:
        fault = f"the plan uses {', '.join(sorted(regions))}, not {', '.join(sorted(wanted))}"
    return Outcome(model, engine, regions, compiled, latency, result, comparison.absolute, fault)


def timed_runs(module: xrt.XRTModule, values: list[np.ndarray]) -> Iterator[float]:
    """Yield the seconds of one run after another."""
    ends = perf_counter() + SECONDS
    for count in range(50):
        if count >= 3 and perf_counter() > ends:
            return
        began = perf_counter()
        module(*values)
        yield perf_counter() - began


def outcomes(models: tuple[str, ...], progress: Progress) -> Iterator[Outcome]:
    """Yield every outcome as it is there, the reference engine's first for each model."""
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
    """Show each outcome as it comes; return 1 when a result differs or a mixture is none."""
    unknown = set(models) - set(light_models())
    if unknown:
        print(f"no model {', '.join(sorted(unknown))}; there are {', '.join(light_models())}", file=sys.stderr)
        return 2
    console = Console()
    table = Table("model", "engine", "regions", "compile", "latency", "difference from toy", box=None, pad_edge=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    failed = False
    with Progress(*columns, console=console, transient=True) as progress:
        for outcome in outcomes(models, progress):
            table.add_row(*outcome.row())
            failed |= bool(outcome.fault)
            progress.console.print(f"{outcome.model} on {outcome.engine}: {outcome.row()[4]}", style="dim", highlight=False)
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or MODELS))
