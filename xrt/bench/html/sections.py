"""The parts of a group's section: the answer in words, the figures, what went wrong, where the time goes, and the plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xrt.bench.report import Group, ReportRow
from xrt.html.bars import Bar, bars
from xrt.html.colors import legend
from xrt.html.drawing import MOST, draw_plan
from xrt.html.formatting import (
    format_count,
    format_list,
    format_ratio_interval,
    format_seconds_interval,
    percent,
    seconds,
    size,
)
from xrt.html.markup import Child, Markup, join_markup, tag
from xrt.html.tables import fold, make_scrolling, make_table
from xrt.html.timelines import Strip, region_table, strips
from xrt.partition.html import color_engines

__all__ = ["answer", "group_section"]

SOUND = ("best", "tie", "slower")
VERDICTS = {"best": "the quickest", "tie": "a tie", "slower": "slower", "wrong": "wrong", "failed": "failed"}
DETAILED = 2
"""Regions from which on a plan is worth a drawing and a table."""


def group_section(group: Group, anchor: str | None, *, answered: bool) -> Markup:
    """Return all that the page says of one group, without the answer where it was given before; None is no place to link to."""
    parts = (_bars, _figures, _troubles, _timelines, _plans)
    return tag(
        "section",
        tag("h2", group.title, id=anchor),
        None if answered else tag("p", answer(group)),
        *(part(group) for part in parts),
    )


# ---------------------------------------------------------------------- the answer


def answer(group: Group) -> str:
    """Return what was found, in two or three sentences."""
    sound = _sound(group)
    if not sound:
        return "No candidate ran and agreed with the reference."
    best = sound[0]
    taken = f"{best.candidate} takes {format_seconds_interval(best.median_seconds or 0.0, best.interval)} a call"
    if len(sound) == 1:
        return f"{taken}; nothing else ran and agreed with the reference."
    return " ".join(_compared(taken, sound[1:]))


def _compared(taken: str, others: Sequence[ReportRow]) -> Iterator[str]:
    ties = [str(row.candidate) for row in others if row.verdict == "tie"]
    slower = [row for row in others if row.verdict == "slower"]
    if ties:
        tie = "is a tie with it" if len(ties) == 1 else "are ties with it"
        yield f"{taken}, the least of all; {format_list(ties)} {tie}: the difference lies within the noise."
    else:
        yield f"{taken}: the quickest."
    if slower:
        yield f"{slower[0].candidate}, the next, takes {format_ratio_interval(slower[0].to_best)} times as long."


def _sound(group: Group) -> list[ReportRow]:
    return [row for row in group.rows if row.verdict in SOUND]


# ---------------------------------------------------------------------- bars and figures


def _bars(group: Group) -> Markup | None:
    sound = _sound(group)
    if not sound:
        return None
    rounds = max(len(row.rounds) for row in sound)
    caption = (
        f"Time of a call: the median of {format_count(rounds, 'round')} in which the candidates took turns, and its 95 % "
        f"interval by "
        f"bootstrap over the rounds. × the quickest is the median of the ratios within rounds. The noise floor is "
        f"{percent(group.noise)}: so far did a candidate seem to be from itself; what is no further from the quickest is a tie."
    )
    return tag("figure", bars([_bar(row) for row in sound]), tag("figcaption", caption))


def _bar(row: ReportRow) -> Bar:
    ratio = "" if row.verdict == "best" else f"{format_ratio_interval(row.to_best)} × the quickest"
    return Bar(str(row.candidate), row.verdict, VERDICTS[row.verdict], row.median_seconds or 0.0, row.interval, ratio)


COLUMNS = (
    ("candidate", ""),
    ("verdict", ""),
    ("a call", "number"),
    ("× the quickest", "number"),
    ("alone", "number"),
    ("first call", "number"),
    ("import", "number"),
    ("compile", "number"),
    ("peak memory", "number"),
    ("before compiling", "number"),
    ("precision", ""),
    ("off the reference by", "number"),
    ("relative", "number"),
)


def _figures(group: Group) -> Markup:
    rows = [(str(row.candidate), _verdict(row), *_cells(row)) for row in group.rows]
    return make_table(f"All figures of {group.title}", COLUMNS, rows)


def _verdict(row: ReportRow) -> Markup:
    return tag("span", VERDICTS[row.verdict], class_=f"verdict {row.verdict}")


def _cells(row: ReportRow) -> tuple[str, ...]:
    start, agreement = row.start, row.agreement
    if start is None or row.median_seconds is None:
        return ("",) * (len(COLUMNS) - 2)
    off = ("", "") if agreement is None else (_difference(agreement.absolute), _difference(agreement.relative))
    return (
        format_seconds_interval(row.median_seconds, row.interval),
        format_ratio_interval(row.to_best),
        f"{seconds(start.alone_seconds)}{'' if start.steady else ', not steady'}",
        seconds(start.first_seconds),
        seconds(start.import_seconds),
        seconds(start.compile_seconds),
        size(start.peak_bytes),
        size(start.loaded_bytes),
        row.candidate.precision,
        *off,
    )


def _difference(value: float | None) -> str:
    return "no reference" if value is None else "0" if value == 0 else f"{value:.1e}"


# ---------------------------------------------------------------------- what went wrong


def _troubles(group: Group) -> Markup | None:
    rows = [row for row in group.rows if row.reason]
    return join_markup([tag("h3", "What went wrong"), *map(_trouble, rows)]) if rows else None


def _trouble(row: ReportRow) -> Markup:
    what = {"failed": "failed", "wrong": "is wrong, so its speed counts for nothing"}.get(
        row.verdict, "could not be judged in full"
    )
    return tag("div", tag("p", tag("strong", str(row.candidate)), f" {what}:"), tag("pre", row.reason), class_="trouble")


# ---------------------------------------------------------------------- where the time goes, and the plans


def _timelines(group: Group) -> Markup | None:
    timed = [(row, row.start.plan, row.timeline) for row in _sound(group) if row.timeline and row.start and row.start.plan]
    if not timed:
        return None
    rows = [row for row, _, _ in timed]
    drawn = [Strip(str(row.candidate), plan, timeline) for row, plan, timeline in timed]
    colours = _colours(rows)
    caption = (
        "One call of each candidate, region by region in the order in which they run. Means over calls made alone and recorded, "
        "after the turns: they are near the figures above and not the same. What is beside the regions is XRT's own work."
    )
    figure = tag("figure", legend(colours), strips(drawn, colours), tag("figcaption", caption))
    return join_markup([tag("h3", "Where the time of a call goes"), figure])


def _plans(group: Group) -> Markup | None:
    rows = [row for row in group.rows if row.start and row.start.plan]
    several = [row for row in rows if row.start and len(row.start.plan) >= DETAILED]
    whole = [f"{row.candidate}" for row in rows if row not in several]
    if not rows:
        return None
    alone = f"{format_list(whole)} {'takes' if len(whole) == 1 else 'each take'} the whole model as one region."
    parts: list[Child] = [tag("p", alone)] if whole else []
    return join_markup([tag("h3", "Plans"), *parts, *map(_placement, rows), *(_plan(row, _colours(rows)) for row in several)])


def _placement(row: ReportRow) -> Markup | None:
    """Return how the plan was chosen, where it was by measurement."""
    lines = row.start.placement if row.start else ()
    return join_markup([tag("p", f"How {row.candidate} chose its plan:"), tag("pre", "\n".join(lines))]) if lines else None


def _plan(row: ReportRow, colours: Mapping[str, str]) -> Markup:
    plan = row.start.plan if row.start else ()
    several = f" It is drawn in {MOST} boxes, each of them regions that run one after the other." if len(plan) > MOST else ""
    used = sorted({region.engine for region in plan})
    figure = tag(
        "figure",
        tag("figcaption", f"The plan of {row.candidate}: {format_count(len(plan), 'region')} on {format_list(used)}.{several}"),
        make_scrolling(f"Plan of {row.candidate}", draw_plan(str(row.candidate), plan, row.timeline, colours)),
    )
    table = make_scrolling(f"Regions of {row.candidate}", region_table(str(row.candidate), plan, row.timeline, colours))
    return join_markup([figure, fold(f"Regions of {row.candidate}", table)])


def _colours(rows: Sequence[ReportRow]) -> dict[str, str]:
    return color_engines(region.engine for row in rows if row.start for region in row.start.plan)
