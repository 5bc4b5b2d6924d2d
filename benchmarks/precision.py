"""How fast are bf16 and int8, how large is their error, and what does auto make of a budget of 0.1 %, 1 % and 5 %?

Live variants of BERT-base, GPT-2 (six layers; also with outlier channels), ConvNeXt-T and MobileNet v2 have random weights: their
errors are of outputs, and no accuracy. A classifier of digits is trained here, and has a budget in accuracy. All candidates of a
model take turns in one process; errors are of examples that were neither calibrated nor validated on.

    python benchmarks/precision.py [--quick] [--json] [--model NAME]... [--budget S] [--seconds S] [--threads N]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # also where this is imported by a test

from precision_models import NAMES, PrecisionModel, make_model, train_classifier

import xrt
from xrt.bench import machine
from xrt.errors import XRTError
from xrt.measure.interleave import take_turns
from xrt.measure.statistics import compute_round_ratio
from xrt.measure.timing import choose_calls_per_turn, seconds_per_turn
from xrt.placement.result import describe_plan
from xrt.precision import ErrorBudget
from xrt.runtime import available_cores

BUDGETS = (0.001, 0.01, 0.05)
ENGINES = ("ort", "openvino")
SINGLE: dict[str, dict[str, Any]] = {
    "ort fp32": {"engine": "ort"},
    "openvino fp32": {"engine": "openvino"},
    "openvino bf16": {"engine": "openvino{precision=bf16}"},
    "ort int8": {"engine": "ort", "use_int8": True},
    "openvino int8": {"engine": "openvino", "use_int8": True},
}
EXACT = ("ort fp32", "openvino fp32")
TARGETS = {"auto 1%": 1.6, "auto 5%": 2.2}
"""Geometric means of the gain over the best engine in fp32, on processors with bf16 or VNNI instructions."""
LEAST = 0.98
"""What no plan may be slower than, as a gain."""
ACCURACY_DROP = 0.01


@dataclass(frozen=True, slots=True)
class Figure:
    """One candidate on one model."""

    model: str
    candidate: str
    milliseconds: float
    gain: float
    """Time of the best engine in fp32 over this one's: the median of the rounds, with its interval."""
    low: float
    high: float
    error: float
    """On unseen examples: relative, or the loss of accuracy of the classifier."""
    limit: float | None = None
    plan: str = ""
    search: float = 0.0
    """Seconds that the plan took to be found."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for."""

    threads: int
    budget: float
    seconds: float
    is_quick: bool
    cache: Path

    @property
    def counts(self) -> tuple[int, int, int]:
        """Examples of calibration, of validation, and unseen ones."""
        return (4, 6, 8) if self.is_quick else (8, 16, 24)


def measure_model(model: PrecisionModel, asked: Asked) -> list[Figure]:
    """Return the figures of all candidates on a model."""
    first, second, third = asked.counts
    examples = [model.draw(seed) for seed in range(first + second + third)]
    calibrate, validate, unseen = examples[:first], examples[first : first + second], examples[first + second :]
    inputs = {value.name for value in model.function.inputs}
    with ExitStack() as stack:
        modules, searches, limits = {}, {}, {}
        for name, keywords in SINGLE.items():
            data = {"calibrate": [_select(one, inputs) for one in calibrate]} if "use_int8" in keywords else {}
            modules[name] = xrt.XRTModule(model.function, **keywords, **data, threads=asked.threads, cache=asked.cache)
        budgets: list[Any] = list(BUDGETS) if model.metric is None else [ErrorBudget(ACCURACY_DROP, model.metric)]
        for budget in budgets:
            limit = budget if isinstance(budget, float) else budget.limit
            name = f"auto {100 * limit:g}%" if model.metric is None else "auto, 1 point"
            data = {"max_error": budget, "calibrate": calibrate, "validate": validate}
            options = {"budget": asked.budget, "threads": asked.threads, "cache": asked.cache, "progress": False}
            modules[name] = xrt.XRTModule(model.function, [*ENGINES, "auto"], **data, **options)
            limits[name] = limit
        ready: dict[str, Callable[[], Any]] = {}
        for name, module in modules.items():
            stack.enter_context(module)
            began = time.perf_counter()
            given = _select(unseen[0], inputs)
            try:
                module(**given)
            except XRTError as error:
                print(f"{model.name}: {name} is left out: {error}", file=sys.stderr)
                continue
            searches[name] = time.perf_counter() - began
            ready[name] = _make_call(module, given)
        rounds = _take_turns(ready, asked.seconds)
        errors = _measure_errors(model, {name: modules[name] for name in ready}, unseen, inputs)
        plans = {name: _describe(modules[name]) for name in ready if name.startswith("auto")}
    return [_make_figure(model.name, name, rounds, errors[name], limits.get(name), plans, searches) for name in ready]


def _select(example: Mapping[str, Any], inputs: set[str]) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name in inputs}


def _make_call(module: xrt.XRTModule, given: dict[str, Any]) -> Callable[[], Any]:
    return lambda: module(**given)


def _take_turns(ready: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    repeats = {name: choose_calls_per_turn(seconds_per_turn(call, 1), 0.03) for name, call in ready.items()}
    turns = {name: _make_turn(call, repeats[name]) for name, call in ready.items()}
    until = time.perf_counter() + seconds
    return take_turns(turns, 60, lambda rounds, _: rounds >= 6 and time.perf_counter() >= until)


def _make_turn(call: Callable[[], Any], repeats: int) -> Callable[[], float]:
    return lambda: seconds_per_turn(call, repeats)


def _measure_errors(
    model: PrecisionModel, modules: Mapping[str, xrt.XRTModule], unseen: list[dict[str, Any]], inputs: set[str]
) -> dict[str, float]:
    outputs = {}
    for name, module in modules.items():
        results = [module(**_select(one, inputs)) for one in unseen]
        outputs[name] = [result if isinstance(result, tuple) else (result,) for result in results]
    budget = ErrorBudget(1.0) if model.metric is None else ErrorBudget(1.0, model.metric)
    return {name: budget.measure_error(outputs["ort fp32"], found, unseen).error for name, found in outputs.items()}


def _describe(module: xrt.XRTModule) -> str:
    record = module.tuned.precision if module.tuned is not None else None
    kept = f", {len(record.kept)} nodes in fp32" if record is not None and record.kept else ""
    return f"{record.precision if record else 'fp32'} on {describe_plan(module.plan)}{kept}"


def _make_figure(
    model: str,
    name: str,
    rounds: Mapping[str, list[float]],
    error: float,
    limit: float | None,
    plans: Mapping[str, str],
    searches: Mapping[str, float],
) -> Figure:
    best = min((one for one in EXACT if one in rounds), key=lambda one: np.median(rounds[one]))
    ratio = compute_round_ratio(rounds[best], rounds[name])
    taken = 1e3 * float(np.median(rounds[name]))
    search = searches[name] if name.startswith("auto") else 0.0
    return Figure(model, name, taken, ratio.median, ratio.low, ratio.high, error, limit, plans.get(name, ""), search)


# ---------------------------------------------------------------------- what is printed


def print_figures(figures: list[Figure]) -> None:
    """Print a row for each candidate."""
    print(f"{'model':10} {'candidate':15} {'ms':>8} {'gain':>6} {'interval':>15} {'error':>8} {'search':>7}  plan")
    for one in figures:
        over = " OVER" if one.limit is not None and one.error > one.limit else ""
        search = f"{one.search:5.1f} s" if one.search else ""
        row = f"{one.model:10} {one.candidate:15} {one.milliseconds:8.3f} {one.gain:6.2f} {one.low:7.2f}-{one.high:<7.2f}"
        print(f"{row} {one.error:8.3%} {search:>7}  {one.plan}{over}")


def print_targets(figures: list[Figure]) -> None:
    """Print each target with what was found."""
    for name, target in TARGETS.items():
        gains = [one.gain for one in figures if one.candidate == name and not one.model.endswith("_hard")]
        if gains:
            print(f"{name}: gain {math.exp(np.mean(np.log(gains))):.2f} over the best engine in fp32 (target {target})")
    placed = [one for one in figures if one.candidate.startswith("auto")]
    slower = [f"{one.model} {one.candidate} {one.gain:.2f}" for one in placed if one.high < LEAST]
    over = [f"{one.model} {one.candidate} {one.error:.3%}" for one in placed if one.limit is not None and one.error > one.limit]
    print(
        f"a larger budget slower than {LEAST} of a smaller one (target none): {', '.join(list_slower_budgets(placed)) or 'none'}"
    )
    print(f"slower than {LEAST} of the best engine in fp32 for certain (target none): {', '.join(slower) or 'none'}")
    print(f"over the budget on unseen examples (target none): {', '.join(over) or 'none'}")


def list_slower_budgets(placed: list[Figure]) -> list[str]:
    """Return the larger budgets under which a plan was slower than under a smaller one."""
    found = []
    for model in dict.fromkeys(one.model for one in placed):
        own = sorted((one for one in placed if one.model == model), key=lambda one: one.limit or 0.0)
        pairs = itertools.pairwise(own)
        found += [
            f"{model} {b.candidate} {a.milliseconds / b.milliseconds:.2f}"
            for a, b in pairs
            if a.milliseconds < LEAST * b.milliseconds
        ]
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small models and short searches")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", action="append", choices=[*NAMES, "digits"])
    parser.add_argument("--budget", type=float, help="seconds of a search [default: 40, quick 8]")
    parser.add_argument("--seconds", type=float, help="seconds of the turns of a model [default: 10, quick 2]")
    parser.add_argument("--threads", type=int, default=available_cores())
    given = parser.parse_args(arguments)
    budget, seconds = given.budget or (8.0 if given.quick else 40.0), given.seconds or (2.0 if given.quick else 10.0)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as cache:
        asked = Asked(given.threads, budget, seconds, given.quick, Path(cache))
        for name in given.model or (*NAMES, "digits"):
            model = (
                train_classifier(epochs=3 if given.quick else 12) if name == "digits" else make_model(name, is_small=given.quick)
            )
            found = measure_model(model, asked)
            figures += found
            if not given.json:
                print_figures(found)
    if given.json:
        print(json.dumps([asdict(one) for one in figures]))
        return
    print_targets(figures)
    print(machine("onnxruntime", "openvino"))


if __name__ == "__main__":
    main()
