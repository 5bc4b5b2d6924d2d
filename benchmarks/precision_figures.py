"""The figures of `benchmarks/precision.py`: candidates take turns, and have errors on unseen examples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.measure.statistics import compute_geometric_mean, compute_round_ratio, take_turns
from xrt.measure.timing import choose_calls_per_turn, seconds_per_turn
from xrt.precision import ErrorBudget
from xrt.precision.budget import find_fault

__all__ = [
    "LEAST",
    "Candidate",
    "drop_rounds",
    "find_losing_steps",
    "find_other_answers",
    "find_over",
    "find_slower",
    "find_slowest",
    "make_mean",
    "make_rows",
    "measure_errors",
    "measure_ratio",
    "take_rounds",
]

Example: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]
Models: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By name: the record of a model, with its rows."""

LEAST = 0.98
"""What no plan of auto may be slower than, as a gain."""
ROUNDING = 1e-4
"""What two engines may differ by in float32: a budget of nothing is no promise to have the bits of another engine."""
SAME, SHARE = 1e-3, 0.1
"""What answers to a quantized model may differ by, at least, and as a share of what its quantization costs: sums of floats in
another order move some values by one step of rounding, which the layers behind amplify."""
TURN = 0.03
MOST_ROUNDS, LEAST_ROUNDS = 60, 6


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    call: Callable[[Example], Sequence[Any]]
    """From an example to the outputs."""
    is_exact: bool = False
    """Whether it is a single engine in float32: the best of these is what gains are over."""
    limit: float | None = None
    """Of an error budget, where it has one."""
    search: float | None = None
    """Seconds that it took to be found."""
    plan: str = ""
    kept: tuple[str, ...] = ()
    """Nodes that stay in float32, the first ones."""


# ---------------------------------------------------------------------- measuring


def take_rounds(candidates: Mapping[str, Candidate], example: Example, seconds: float) -> dict[str, list[float]]:
    """Let the candidates take turns on one example; return seconds per call, one for each round."""
    calls = {name: _bind(one.call, example) for name, one in candidates.items()}
    repeats = {name: choose_calls_per_turn(seconds_per_turn(call, 1), TURN) for name, call in calls.items()}
    turns = {name: _make_turn(call, repeats[name]) for name, call in calls.items()}
    until = time.perf_counter() + seconds
    return take_turns(turns, MOST_ROUNDS, lambda rounds, _: rounds >= LEAST_ROUNDS and time.perf_counter() >= until)


def _bind(call: Callable[[Example], Any], example: Example) -> Callable[[], Any]:
    return lambda: call(example)


def _make_turn(call: Callable[[], Any], repeats: int) -> Callable[[], float]:
    return lambda: seconds_per_turn(call, repeats)


def run_examples(call: Callable[[Example], Sequence[Any]], examples: Sequence[Example]) -> list[list[Any]]:
    """Return the outputs of each example, in memory of their own."""
    return [[np.array(value) for value in call(example)] for example in examples]


def measure_errors(
    candidates: Mapping[str, Candidate], exact: str, examples: Sequence[Example], metric: Any = None
) -> dict[str, Row]:
    """Return what the outputs of each candidate are off by on unseen examples: relative, or as a loss of a metric.

    ``items_over`` counts the examples whose own error is over the limit; a metric has one of all examples only.
    """
    budget = ErrorBudget(1.0) if metric is None else ErrorBudget(1.0, metric)
    expected = run_examples(candidates[exact].call, examples)
    found = {}
    for name, one in candidates.items():
        outputs = expected if name == exact else run_examples(one.call, examples)
        error = budget.measure_error(expected, outputs, examples)
        row: Row = {"error": error.error, "worst": error.worst, "fault": find_fault(expected, outputs)}
        if metric is not None:
            row["metric"] = float(metric([each[0] for each in outputs], list(examples)))
        elif one.limit is not None:
            own = (budget.measure_error([a], [b], [e]).error for a, b, e in zip(expected, outputs, examples, strict=True))
            row["items_over"] = sum(each > one.limit for each in own)
        found[name] = row
    return found


def measure_ratio(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return how many times as long the first takes, by the rounds that both took part in."""
    return asdict(compute_round_ratio(of, to))


def make_rows(candidates: Mapping[str, Candidate], rounds: Mapping[str, list[float]], errors: Mapping[str, Row]) -> list[Row]:
    """Return a row for each candidate, with the time of the best single engine in float32 over its own."""
    best = min((name for name, one in candidates.items() if one.is_exact), key=lambda name: statistics.median(rounds[name]))
    rows = []
    for name, one in candidates.items():
        row: Row = {"candidate": name, "ms": 1e3 * statistics.median(rounds[name])}
        row |= {"gain": measure_ratio(rounds[best], rounds[name]), **errors[name]}
        row |= {"limit": one.limit, "search": one.search, "plan": one.plan, "kept": list(one.kept), "rounds": rounds[name]}
        rows.append({key: value for key, value in row.items() if value not in (None, "", [])} | {"best": name == best})
    return rows


# ---------------------------------------------------------------------- over models


def list_auto(models: Models) -> Iterator[tuple[str, Row]]:
    """Yield the rows of auto with a budget, each with the name of its model."""
    for model, record in models.items():
        for row in record.get("rows", ()):
            if row["candidate"].startswith("auto") and "limit" in row:
                yield model, row


def find_slower(models: Models) -> list[str]:
    """Return the plans of auto that are slower than the best engine in float32 for certain."""
    rows = list_auto(models)
    return [f"{model} {row['candidate']} {row['gain']['median']:.2f}" for model, row in rows if row["gain"]["high"] < LEAST]


def find_over(models: Models) -> list[str]:
    """Return the plans of auto whose error on unseen examples is over the budget, or whose outputs are wrong altogether."""
    found = []
    for model, row in list_auto(models):
        if row["error"] > max(row["limit"], ROUNDING):
            found.append(f"{model} {row['candidate']}: {row['error']:.3%}")
        elif "fault" in row:
            found.append(f"{model} {row['candidate']}: {row['fault']}")
    return found


def find_losing_steps(models: Models) -> list[str]:
    """Return the steps to a larger budget that made the plan slower for certain."""
    return [
        f"{model} {step['of']} over {step['to']}: {step['median']:.2f}"
        for model, record in models.items()
        for step in record.get("steps", ())
        if step["high"] < LEAST
    ]


def list_quantized(models: Models) -> Iterator[tuple[str, Row]]:
    """Yield the rows of quantized models, each with the names of its model and of the tool that made it."""
    for model, record in models.items():
        for row in record.get("rows", ()):
            yield f"{model} of {row['tool']}", row


def find_slowest(models: Models) -> dict[str, tuple[float, str]]:
    """Return for each engine the largest ratio to its library alone, and the model that has it."""
    found: dict[str, tuple[float, str]] = {}
    for name, row in list_quantized(models):
        ratio = (row["ratio"]["median"], name)
        found[row["engine"]] = max(found.get(row["engine"], ratio), ratio)
    return found


def find_other_answers(models: Models) -> list[str]:
    """Return where an engine's answers are other than its library's, and no nearer to those of the reference."""
    return [
        f"{name} on {row['engine']}: {row['difference']:.2g}"
        for name, row in list_quantized(models)
        if min(row["difference"], row["to_reference"] - row["alone_to_reference"]) > max(SAME, SHARE * row["error"])
    ]


def make_mean(models: Models, candidate: str) -> dict[str, float] | None:
    """Return the geometric mean of a candidate's gain over the models of random weights, without the hard ones."""
    pairs = []
    for model, record in models.items():
        rows = {row["candidate"]: row for row in record.get("rows", ())}
        best = next((row for row in rows.values() if row["best"]), None)
        if candidate in rows and best is not None and not model.endswith("_hard"):
            pairs.append((best["rounds"], rows[candidate]["rounds"]))
    found = compute_geometric_mean(pairs)
    return None if found is None else {**asdict(found), "models": len(pairs)}


def drop_rounds(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without the times of rounds, which the page does not need."""
    rows = [{key: value for key, value in row.items() if key != "rounds"} for row in record.get("rows", ())]
    return {**record, "rows": rows} if "rows" in record else dict(record)
