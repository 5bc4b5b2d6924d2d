"""A ThroughputResult as a notebook or a page shows it: latency over the rate of requests as curves, and the candidates."""

from __future__ import annotations

from typing import Any

from xrt.html.curves import Curve, draw_curves
from xrt.html.formatting import size
from xrt.html.rendering import render_cell, render_page
from xrt.placement.result import format_count
from xrt.placement.throughput.result import COLUMNS, ServingCandidate, ThroughputResult, format_latency, format_rate

__all__ = ["render_throughput_page", "render_throughput_result"]

NUMBERS = ("batch", "instances", "threads", "a call", "requests/s", "p50", "p99", "memory")
KINDS = {"chosen": "best", "within": "tie", "over": "slower", "predicted": "slower", "declined": "slower"}


def render_throughput_result(found: ThroughputResult) -> str:
    """Return the cell of a ThroughputResult."""
    return render_cell("throughput.html", title="Throughput", **_describe(found))


def render_throughput_page(found: ThroughputResult, model: str) -> str:
    """Return the text of a page about a model, which is called so."""
    return render_page("throughput.html", f"Throughput of {model}", **_describe(found))


def _describe(found: ThroughputResult) -> dict[str, Any]:
    head = found.headline
    measured = [one for one in found.candidates if one.trials]
    return {
        "summary": f"{head[:1].upper()}{head[1:]}.",
        "graph": draw_curves([_make_curve(one) for one in measured], found.bound),
        "caption": "Each mark is a load: the time that 99 of 100 requests did not exceed. The strong curve is the chosen "
        "candidate; the broken line is the bound. Marks at the top are far over it.",
        "columns": {"candidate": "", **{name: "number" if name in NUMBERS else "" for name in COLUMNS}},
        "rows": [_make_row(one) for one in found.candidates],
        "notes": [f"{format_count(len(found.candidates), 'candidate')} in {found.spent:.1f} of {found.budget:g} s", *found.notes],
    }


def _name(one: ServingCandidate) -> str:
    return f"batch {one.batch}, {one.split}"


def _make_curve(one: ServingCandidate) -> Curve:
    points = [(trial.rate, trial.p99) for trial in one.trials]
    return Curve(_name(one), one.verdict == "chosen", points)


def _make_row(one: ServingCandidate) -> tuple[object, ...]:
    load, verdict = one.load, {"text": one.verdict, "verdict": KINDS[one.verdict]}
    known = (format_rate(load.rate), format_latency(load.p50), format_latency(load.p99)) if load else ("", "", "")
    call = "" if one.seconds is None else format_latency(one.seconds)
    memory = "" if one.memory is None else size(one.memory)
    split = one.split.instances, one.split.threads
    return (_name(one), verdict, one.batch, *split, one.plan, call, *known, memory, one.note)
