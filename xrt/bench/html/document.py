"""The page: a whole comparison for a reader who was not there, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xrt.bench.html.sections import answer, group_section
from xrt.bench.report import BenchReport, Group
from xrt.html.document import make_cell, make_page
from xrt.html.formatting import format_list
from xrt.html.markup import Child, Markup, join_markup, tag
from xrt.html.tables import fold, make_facts

__all__ = ["cell", "page"]


def page(report: BenchReport) -> str:
    """Return the page's text: valid without a network, without scripts, in light and dark, on paper."""
    anchors = {f"group-{number}": group for number, group in enumerate(report.groups, 1)}
    sections = (group_section(group, anchor, answered=len(anchors) == 1) for anchor, group in anchors.items())
    return make_page(_title(report), _head(report), *_contents(anchors), *sections, _method(), _circumstances(report))


def cell(report: BenchReport) -> str:
    """Return what a notebook shows: the same, without links, which would lead to other cells."""
    sections = (group_section(group, None, answered=len(report.groups) == 1) for group in report.groups)
    about = fold("How it was measured, machine, versions and settings", _method(), _circumstances(report))
    return make_cell(_head(report), *sections, about)


def _title(report: BenchReport) -> str:
    return f"Engines compared on {format_list(list(dict.fromkeys(group.model for group in report.groups))) or 'no model'}"


def _head(report: BenchReport) -> Markup:
    only = report.groups[0] if len(report.groups) == 1 else None
    wrong = None if report.agrees else tag("p", tag("strong", "Not all results agree with the reference engine's."))
    lead = tag("p", answer(only), class_="lead") if only else None
    command = join_markup([tag("p", "Made by this command:"), tag("pre", f"$ {report.command}")]) if report.command else None
    return tag("header", tag("h1", _title(report)), lead, wrong, command)


def _contents(anchors: Mapping[str, Group]) -> Iterator[Markup]:
    """Yield the answers of several groups, each of them leading to its section."""
    if len(anchors) > 1:
        items = (
            tag("li", tag("a", group.title, href=f"#{anchor}"), tag("br"), answer(group)) for anchor, group in anchors.items()
        )
        yield tag("nav", tag("ul", *items), aria_label="The comparisons on this page")


# ---------------------------------------------------------------------- how, and where


METHOD = (
    """Each candidate compiles and runs in a process of its own, with an empty cache, and no other engine stands in for it. It
    warms up until its time no longer falls, and is timed alone.""",
    """Then all candidates take turns in an order that rotates: a machine that is busy for a while slows all of them, and the
    ratio within a round hardly moves. Intervals are percentile bootstraps over rounds, drawn from a fixed seed: the same rounds
    give the same intervals.""",
    """What is within the noise floor is called a tie. The results of the first call are compared with the reference engine's;
    what differs beyond the tolerance of its type is wrong, however quick it is. Import, compile and first call are what it costs
    to start; peak memory is that of the whole process, which before compiling held interpreter, libraries and model.""",
)


def _method() -> Markup:
    return tag("section", tag("h2", "How it was measured"), *(tag("p", " ".join(text.split())) for text in METHOD))


def _circumstances(report: BenchReport) -> Markup:
    threads = format_list([str(count) for count in dict.fromkeys(group.threads for group in report.groups)])
    facts: dict[str, Child] = {
        "measured": f"{report.date} UTC" if report.date else None,
        "threads": f"{threads}: what a candidate may use in all",
        **{name: str(value) for name, value in report.machine.items()},
        **report.versions,
        **{name.replace("_", " "): f"{value:g}" for name, value in report.settings.items()},
    }
    return tag("section", tag("h2", "Machine, versions, settings"), make_facts(facts))
