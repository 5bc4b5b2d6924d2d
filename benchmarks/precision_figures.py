"""The figures of `benchmarks/precision.py`: times of candidates in turn, and their errors on unseen examples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from xrt.measure.statistics import compute_geometric_mean, compute_round_ratio, take_turns
from xrt.measure.timing import choose_calls_per_turn, measure_turn
from xrt.precision import ErrorBudget
from xrt.precision.budget import find_fault

Example: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]
Models: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Records of models by name, with a row per candidate."""

MIN_GAIN = 0.98
"""Minimum gain of a plan of auto over the best engine in float32."""
ROUNDING = 1e-4
"""Relative difference of two engines in float32, which a budget of 0 allows."""
MAX_DIFFERENCE, MAX_ERROR_SHARE = 1e-3, 0.1
"""Allowed difference of results of a quantized model: absolute, and as a share of its quantization error. A sum in another order
moves some values by one quantization step, which later layers amplify."""
TURN_SECONDS = 0.03
MAX_ROUNDS, MIN_ROUNDS = 60, 6


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    call: Callable[[Example], Sequence[Any]]
    is_exact: bool = False
    """Whether it is a single engine in float32; gains are relative to the fastest of these."""
    limit: float | None = None
    """The error budget, if any."""
    search: float | None = None
    """Seconds of its search."""
    plan: str = ""
    exact_nodes: tuple[str, ...] = ()
    """The first nodes that stay in float32."""


# ---------------------------------------------------------------------- measuring


def take_rounds(candidates: Mapping[str, Candidate], example: Example, seconds: float) -> dict[str, list[float]]:
    """Measure the candidates in turn on one example; return seconds per call by round."""
    turns = {}
    for name, candidate in candidates.items():
        call = partial(candidate.call, example)
        turns[name] = partial(measure_turn, call, choose_calls_per_turn(measure_turn(call, 1), TURN_SECONDS))
    until = time.perf_counter() + seconds
    return take_turns(turns, MAX_ROUNDS, lambda rounds, _: rounds >= MIN_ROUNDS and time.perf_counter() >= until)


def run_examples(call: Callable[[Example], Sequence[Any]], examples: Sequence[Example]) -> list[list[Any]]:
    """Call the model on each example; return copies of the outputs."""
    return [[np.array(value) for value in call(example)] for example in examples]


def measure_errors(
    candidates: Mapping[str, Candidate], exact: str, examples: Sequence[Example], metric: Any = None
) -> dict[str, Row]:
    """Measure the errors of outputs on unseen examples: relative, or as the loss of a metric.

    ``items_over`` counts examples whose error is over the limit; a metric has one value for all examples.
    """
    budget = ErrorBudget(1.0) if metric is None else ErrorBudget(1.0, metric)
    expected = run_examples(candidates[exact].call, examples)
    rows = {}
    for name, candidate in candidates.items():
        outputs = expected if name == exact else run_examples(candidate.call, examples)
        error = budget.measure_error(expected, outputs, examples)
        row: Row = {"error": error.error, "worst": error.worst, "fault": find_fault(expected, outputs)}
        if metric is not None:
            row["metric"] = float(metric([each[0] for each in outputs], list(examples)))
        elif candidate.limit is not None:
            errors = (budget.measure_error([a], [b], [e]).error for a, b, e in zip(expected, outputs, examples, strict=True))
            row["items_over"] = sum(each > candidate.limit for each in errors)
        rows[name] = row
    return rows


def measure_ratio(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Compute the ratio of two candidates from the ratios within each round."""
    return asdict(compute_round_ratio(of, to))


def make_rows(candidates: Mapping[str, Candidate], rounds: Mapping[str, list[float]], errors: Mapping[str, Row]) -> list[Row]:
    """Make a row per candidate, with its gain over the fastest single engine in float32."""
    best = min(
        (name for name, candidate in candidates.items() if candidate.is_exact), key=lambda name: statistics.median(rounds[name])
    )
    rows = []
    for name, candidate in candidates.items():
        row: Row = {"candidate": name, "ms": 1e3 * statistics.median(rounds[name])}
        row |= {"gain": measure_ratio(rounds[best], rounds[name]), **errors[name]}
        row |= {
            "limit": candidate.limit,
            "search": candidate.search,
            "plan": candidate.plan,
            "kept": list(candidate.exact_nodes),
            "rounds": rounds[name],
        }
        rows.append({key: value for key, value in row.items() if value not in (None, "", [])} | {"best": name == best})
    return rows


# ---------------------------------------------------------------------- over models


def list_auto(models: Models) -> Iterator[tuple[str, Row]]:
    """Yield the rows of auto with an error budget, with the names of their models."""
    for model, record in models.items():
        for row in record.get("rows", ()):
            if row["candidate"].startswith("auto") and "limit" in row:
                yield model, row


def find_slower(models: Models) -> list[str]:
    """List plans of auto whose whole interval is slower than the best engine in float32."""
    rows = list_auto(models)
    return [f"{model} {row['candidate']} {row['gain']['median']:.2f}" for model, row in rows if row["gain"]["high"] < MIN_GAIN]


def find_over(models: Models) -> list[str]:
    """List plans of auto whose error on unseen examples is over the budget, or whose outputs are wrong."""
    plans = []
    for model, row in list_auto(models):
        if row["error"] > max(row["limit"], ROUNDING):
            plans.append(f"{model} {row['candidate']}: {row['error']:.3%}")
        elif "fault" in row:
            plans.append(f"{model} {row['candidate']}: {row['fault']}")
    return plans


def find_losing_steps(models: Models) -> list[str]:
    """List steps to a larger budget that made a plan slower, by the whole interval."""
    return [
        f"{model} {step['of']} over {step['to']}: {step['median']:.2f}"
        for model, record in models.items()
        for step in record.get("steps", ())
        if step["high"] < MIN_GAIN
    ]


def list_quantized(models: Models) -> Iterator[tuple[str, Row]]:
    """Yield the rows of quantized models, with the names of model and tool."""
    for model, record in models.items():
        for row in record.get("rows", ()):
            yield f"{model} of {row['tool']}", row


def find_slowest(models: Models) -> dict[str, tuple[float, str]]:
    """Map each engine to its largest ratio to the library alone, and the model with that ratio."""
    slowest: dict[str, tuple[float, str]] = {}
    for name, row in list_quantized(models):
        ratio = (row["ratio"]["median"], name)
        slowest[row["engine"]] = max(slowest.get(row["engine"], ratio), ratio)
    return slowest


def find_other_answers(models: Models) -> list[str]:
    """List results that differ from those of the library and have a larger error against the reference."""
    return [
        f"{name} on {row['engine']}: {row['difference']:.2g}"
        for name, row in list_quantized(models)
        if min(row["difference"], row["to_reference"] - row["alone_to_reference"])
        > max(MAX_DIFFERENCE, MAX_ERROR_SHARE * row["error"])
    ]


def make_mean(models: Models, candidate: str) -> dict[str, float] | None:
    """Compute the geometric mean of a candidate's gain over the models with random weights, except the hard ones."""
    pairs = []
    for model, record in models.items():
        rows = {row["candidate"]: row for row in record.get("rows", ())}
        best = next((row for row in rows.values() if row["best"]), None)
        if candidate in rows and best is not None and not model.endswith("_hard"):
            pairs.append((best["rounds"], rows[candidate]["rounds"]))
    mean = compute_geometric_mean(pairs)
    return None if mean is None else {**asdict(mean), "models": len(pairs)}


def drop_rounds(record: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the times of rounds, which the page does not show."""
    rows = [{key: value for key, value in row.items() if key != "rounds"} for row in record.get("rows", ())]
    return {**record, "rows": rows} if "rows" in record else dict(record)
