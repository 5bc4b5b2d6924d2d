"""What `docs/performance.md` says of the benchmark `precision`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.precision_figures import find_losing_steps, find_other_answers, find_over, find_slower, find_slowest
from tools.conformance_page import table
from tools.performance_sections import Figures, Verdict, at_least, spread

__all__ = ["list_tables", "list_verdicts"]

GAINS = {"auto 1%": 1.6, "auto 5%": 2.2}
"""Geometric means over the best engine in float32, on processors with instructions for bf16 or for products of bytes."""
RATIOS = {"ort": 1.05, "openvino": 1.10}
DROP = 0.01


def list_tables(figures: Figures) -> Iterator[str]:
    """Yield models of random weights, plans of auto, trained models, quantized models, and what is left out."""
    if live := _measured(figures, "live"):
        yield "Gain over the best engine in float32, and relative error on unseen examples:\n\n" + make_matrix(live, _error_cell)
        columns = ("model", "budget", "gain", "error", "found in", "plan")
        yield "What auto has chosen within each budget:\n\n" + table(columns, list_plans(live))
    if trained := _measured(figures, "trained"):
        yield "Trained models: gain, accuracy on unseen items, and what it took to find:\n\n" + make_matrix(
            trained, _accuracy_cell
        )
    if quantized := _measured(figures, "qdq"):
        columns = ("model", "made by", "engine", "ms", "alone, ms", "ratio", "difference", "to the reference", "alone")
        yield "Quantized models of other tools, and the libraries alone:\n\n" + table(columns, list_quantized(quantized))
    if left := list(list_left(figures)):
        yield "Left out:\n\n" + "\n".join(left) + "\n"


def _measured(figures: Figures, part: str) -> dict[str, Any]:
    return {model: record for model, record in figures.get(part, {}).items() if "rows" in record}


def make_matrix(models: Mapping[str, Any], cell: Any) -> str:
    """Return a line for each candidate, with a column for each model."""
    names = dict.fromkeys(row["candidate"] for record in models.values() for row in record["rows"])
    found = {model: {row["candidate"]: row for row in record["rows"]} for model, record in models.items()}
    best = ["best engine in float32", *(_best_cell(rows) for rows in found.values())]
    lines = [(name, *(cell(rows[name]) if name in rows else "" for rows in found.values())) for name in names]
    return table(("candidate", *models), [tuple(best), *lines])


def _best_cell(rows: Mapping[str, Any]) -> str:
    row = next(row for row in rows.values() if row["best"])
    return f"{row['candidate'].removesuffix(' fp32')}, {row['ms']:.2f} ms"


def _error_cell(row: Mapping[str, Any]) -> str:
    return f"{row['gain']['median']:.2f} x, {row['error']:.2%}" + ", **wrong**" * ("fault" in row)


def _accuracy_cell(row: Mapping[str, Any]) -> str:
    search = f", {row['search']:.1f} s" if "search" in row else ""
    return f"{row['gain']['median']:.2f} x, {row['metric']:.2%}{search}"


def list_plans(models: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each plan of auto with a budget."""
    for model, record in models.items():
        for row in record["rows"]:
            if "limit" in row:
                plan = row.get("plan", "").replace("{", "`{").replace("}", "}`")
                error = f"{row['error']:.3%}"
                yield model, f"{row['limit']:.1%}", f"{spread(row['gain'], 2)} x", error, f"{row['search']:.1f} s", plan


def list_quantized(models: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each quantized model on each engine."""
    for model, record in models.items():
        for row in record["rows"]:
            times = f"{row['ms']:.2f}", f"{row['alone_ms']:.2f}", f"{spread(row['ratio'])} x"
            answers = (f"{row[name]:.1g}" for name in ("difference", "to_reference", "alone_to_reference"))
            yield (model, row["tool"], f"`{row['engine']}`", *times, *answers)


def list_left(figures: Figures) -> Iterator[str]:
    """Yield a line for each candidate that is left out, and for each model that failed."""
    for part in ("live", "trained", "qdq"):
        for model, record in figures.get(part, {}).items():
            if "failed" in record:
                yield f"- {part}, {model}: {record['failed']}"
            for name, reason in record.get("left", {}).items():
                yield f"- {part}, {model}, {name}: `{reason}`"


# ---------------------------------------------------------------------- targets


def list_verdicts(figures: Figures) -> Iterator[Verdict]:
    """Yield the targets of lower precision."""
    for name, target in GAINS.items():
        if name in figures["means"]:
            mean = figures["means"][name]
            what = f"`max_error={0.01 if name == 'auto 1%' else 0.05}` over the best engine in float32, geometric mean"
            yield at_least(f"{what} of {mean['models']}", target, mean)
    judged = {**_measured(figures, "live"), **_measured(figures, "trained")}
    for what, listed in (
        ("plans within a budget that are slower than 0.98 of the best engine in float32", find_slower(judged)),
        ("plans that are slower with a larger budget", find_losing_steps(judged)),
        ("plans over their budget, or wrong, on unseen examples", find_over(judged)),
    ):
        if judged:
            yield Verdict(what, "none", "; ".join(listed) or "none", not listed)
    for model, record in _measured(figures, "trained").items():
        row = next((row for row in record["rows"] if row["candidate"].startswith("auto,")), None)
        if row is not None:
            figure = f"{100 * row['error']:.2f} points, {row['gain']['median']:.2f} x as fast"
            yield Verdict(f"accuracy lost within a budget of one point: {model}", "at most 1 point", figure, row["error"] <= DROP)
    if quantized := _measured(figures, "qdq"):
        for engine, (ratio, name) in find_slowest(quantized).items():
            if engine not in RATIOS:
                continue  # a record has options of engines that are gone
            what = f"quantized models on `{engine}` over the library alone, the slowest ({name})"
            yield Verdict(what, f"at most {RATIOS[engine]:g} x", f"{ratio:.2f} x", ratio <= RATIOS[engine])
        other = find_other_answers(quantized)
        what = "quantized models with other answers than the library's, and no nearer to the reference"
        yield Verdict(what, "none", "; ".join(other) or "none", not other)
