"""A ThroughputResult as a notebook or a page shows it: latency over the rate of requests as curves, and the candidates."""

from __future__ import annotations

from typing import Any

from xrt.html.curves import Curve, draw_curves
from xrt.html.formatting import size
from xrt.html.rendering import render_cell, render_page
from xrt.placement.result import format_count
from xrt.placement.throughput.result import COLUMNS, ServingCandidate, Split, ThroughputResult, format_latency, format_rate

__all__ = ["render_throughput_page", "render_throughput_result"]

NUMBERS = ("batch", "instances", "threads", "in flight", "requests/s", "p50", "p99", "memory")
KINDS = {"chosen": "best", "within": "tie", "over": "slower", "declined": "slower"}


def render_throughput_result(found: ThroughputResult) -> str:
    """Return the cell of a ThroughputResult."""
    return render_cell("throughput.html", title="Throughput", **_describe(found))


def render_throughput_page(found: ThroughputResult, model: str) -> str:
    """Return the text of a page about a model, which is called so."""
    return render_page("throughput.html", f"Throughput of {model}", **_describe(found))


def _describe(found: ThroughputResult) -> dict[str, Any]:
    head = found.headline
    splits = dict.fromkeys(one.split for one in found.candidates if one.load)
    return {
        "summary": f"{head[:1].upper()}{head[1:]}.",
        "graph": draw_curves([_make_curve(found, split) for split in splits], found.bound),
        "caption": "Each mark is a point of the sweep: the time that 99 of 100 requests did not exceed. The strong curve has the "
        "chosen point; the broken line is the bound.",
        "columns": {"candidate": "", **{name: "number" if name in NUMBERS else "" for name in COLUMNS}},
        "rows": [_make_row(one) for one in found.candidates],
        "notes": [f"{format_count(len(found.candidates), 'point')} in {found.spent:.1f} of {found.budget:g} s", *found.notes],
    }


def _make_curve(found: ThroughputResult, split: Split) -> Curve:
    own = [one for one in found.candidates if one.split == split and one.load is not None]
    points = sorted((one.load.rate, one.load.p99) for one in own if one.load is not None)
    return Curve(str(split), any(one.verdict == "chosen" for one in own), points)


def _make_row(one: ServingCandidate) -> tuple[object, ...]:
    load, verdict = one.load, {"text": one.verdict, "verdict": KINDS[one.verdict]}
    known = (format_rate(load.rate), format_latency(load.p50), format_latency(load.p99)) if load else ("", "", "")
    memory = "" if one.memory is None else size(one.memory)
    name = f"batch {one.batch}, {one.split}"
    place = (one.batch, one.split.instances, one.split.threads, one.concurrency)
    return (name, verdict, *place, one.plan, *known, memory, one.note)
