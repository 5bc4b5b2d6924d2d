"""Render a BenchReport as an HTML page or a notebook cell. Text from the user is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xrt.bench.report import BenchReport, Group, ReportRow
from xrt.html.drawing import Bar, Strip, make_bars, make_strips, picture_plan
from xrt.html.formatting import format_list, format_ratio_interval, format_seconds_interval, seconds, size
from xrt.html.rendering import render_cell, render_page
from xrt.partition.html import color_engines

__all__ = ["answer", "cell", "page"]

SOUND = ("fastest", "tie", "slower", "too noisy")
TROUBLES = {"failed": "failed", "wrong": "is wrong, so its speed counts for nothing"}
DETAILED = 2
"""Plans with at least this many regions get a drawing and a table."""
FIGURES = {
    "candidate": "",
    "verdict": "",
    **dict.fromkeys(("a call", "× the fastest", "off the reference by", "relative"), "number"),
}
COSTS = {
    "candidate": "",
    **dict.fromkeys(("alone", "first call", "import", "compile", "peak memory", "before compiling"), "number"),
    "precision": "",
}


def page(report: BenchReport) -> str:
    """A standalone HTML page: no network, no scripts, light and dark, printable."""
    return render_page("report.html", _title(report), is_page=True, **_describe(report))


def cell(report: BenchReport) -> str:
    """The same for a notebook, without links, which would point to other cells."""
    return render_cell("report.html", title=_title(report), is_page=False, **_describe(report))


def _title(report: BenchReport) -> str:
    return f"Engines compared on {format_list(list(dict.fromkeys(group.model for group in report.groups))) or 'no model'}"


def _describe(report: BenchReport) -> dict[str, Any]:
    threads = format_list([str(count) for count in dict.fromkeys(group.threads for group in report.groups)])
    facts = {
        "measured": f"{report.date} UTC" if report.date else None,
        "threads": f"{threads}: what a candidate may use in all",
        **{name: str(value) for name, value in report.machine.items()},
        **report.versions,
        **{name.replace("_", " "): f"{value:g}" for name, value in report.settings.items()},
    }
    return {
        "report": report,
        "groups": [_describe_group(group) for group in report.groups],
        "facts": facts,
        "figures": FIGURES,
        "costs": COSTS,
    }


def _describe_group(group: Group) -> dict[str, Any]:
    sound = _list_sound(group)
    planned = [(row, row.start.plan) for row in group.rows if row.start and row.start.plan]
    timed = [Strip(str(row.candidate), plan, row.timeline) for row, plan in planned if row in sound and row.timeline]
    # One color per engine across all candidates of the group.
    colors = color_engines(region.engine for one in timed for region in one.plan)
    return {
        "title": group.title,
        "answer": answer(group),
        "bars": make_bars([_make_bar(row) for row in sound]),
        "rounds": max((len(row.rounds) for row in sound), default=0),
        "figures": [_list_figures(row) for row in group.rows],
        "costs": [_list_costs(row) for row in group.rows if row.start and row.median_seconds is not None],
        "troubles": [
            (row.candidate, TROUBLES.get(row.verdict, "could not be judged in full"), row.reason)
            for row in group.rows
            if row.reason
        ],
        "colors": colors,
        "strips": make_strips(timed, colors) if timed else None,
        "whole": [str(row.candidate) for row, plan in planned if len(plan) < DETAILED],
        "placements": [(row.candidate, row.start.placement) for row in group.rows if row.start and row.start.placement],
        "pictures": [
            picture_plan(
                str(row.candidate), plan, row.timeline, color_engines(region.engine for _, all_of in planned for region in all_of)
            )
            for row, plan in planned
            if len(plan) >= DETAILED
        ],
    }


def answer(group: Group) -> str:
    """The result in two or three sentences."""
    sound = _list_sound(group)
    if not sound:
        return "No candidate ran and agreed with the reference."
    best = sound[0]
    taken = f"{best.candidate} takes {format_seconds_interval(best.median_seconds or 0.0, best.interval)} a call"
    if len(sound) == 1:
        return f"{taken}; nothing else ran and agreed with the reference."
    return " ".join(_compare(taken, sound[1:]))


def _compare(taken: str, others: Sequence[ReportRow]) -> Iterator[str]:
    ties = [str(row.candidate) for row in others if row.verdict == "tie"]
    slower = [row for row in others if row.verdict == "slower"]
    noisy = [str(row.candidate) for row in others if row.verdict == "too noisy"]
    if ties:
        tie = "is a tie with it" if len(ties) == 1 else "are ties with it"
        yield f"{taken}, the least of all; {format_list(ties)} {tie}: the difference lies within the noise."
    else:
        yield f"{taken}: the fastest."
    if noisy:
        yield f"{format_list(noisy)}: too noisy to rank; measure again on an idle machine, or with more rounds."
    if slower:
        yield f"{slower[0].candidate}, the next, takes {format_ratio_interval(slower[0].ratio)} times as long."


def _list_sound(group: Group) -> list[ReportRow]:
    return [row for row in group.rows if row.verdict in SOUND]


def _make_bar(row: ReportRow) -> Bar:
    ratio = "" if row.verdict == "fastest" else f"{format_ratio_interval(row.ratio)} × the fastest"
    return Bar(str(row.candidate), row.verdict.replace(" ", "-"), row.verdict, row.median_seconds or 0.0, row.interval, ratio)


def _list_figures(row: ReportRow) -> tuple[Any, ...]:
    head = str(row.candidate), {"text": row.verdict, "verdict": row.verdict.replace(" ", "-")}
    agreement = row.agreement
    if row.start is None or row.median_seconds is None:
        return *head, *[""] * (len(FIGURES) - 2)
    off = ("", "") if agreement is None else (_difference(agreement.absolute), _difference(agreement.relative))
    return *head, format_seconds_interval(row.median_seconds, row.interval), format_ratio_interval(row.ratio), *off


def _list_costs(row: ReportRow) -> tuple[Any, ...]:
    start = row.start
    assert start is not None
    return (
        str(row.candidate),
        f"{seconds(start.alone_seconds)}{'' if start.steady else ', not steady'}",
        seconds(start.first_seconds),
        seconds(start.import_seconds),
        seconds(start.compile_seconds),
        size(start.peak_bytes),
        size(start.loaded_bytes),
        row.candidate.precision,
    )


def _difference(value: float | None) -> str:
    return "no reference" if value is None else "0" if value == 0 else f"{value:.1e}"
