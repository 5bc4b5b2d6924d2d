"""The results of a comparison, as JSON and as an HTML page, and facts about the machine."""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt import __version__
from xrt.bench.targets import BenchCandidate
from xrt.graph import FrozenDict
from xrt.html import views
from xrt.partition.plan import color_engines
from xrt.runtime import count_available_cores

if TYPE_CHECKING:
    from xrt.bench.job_server import StartupReport
    from xrt.measure.statistics import Interval, RatioInterval


SCHEMA = 2
"""Version of `BenchReport.to_dict`; incremented when a field changes its meaning or is removed."""
Verdict: TypeAlias = Literal["fastest", "tie", "slower", "too noisy", "wrong", "failed"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the results of the first call compare with the reference."""

    message: str = ""
    """The difference beyond the tolerance, or why there is no reference; empty if all results agree."""
    absolute: float | None = None
    """Largest absolute difference; None without a reference."""
    relative: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether there is a reference and the results differ from it."""
        return bool(self.message) and self.absolute is not None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One candidate on one model; ``rounds`` has the mean seconds per call of each round."""

    candidate: BenchCandidate
    verdict: Verdict
    reason: str = ""
    start: StartupReport | None = None
    """None if the candidate did not start."""
    agreement: Agreement | None = None
    rounds: tuple[float, ...] = ()
    median_seconds: float | None = None
    interval: Interval | None = None
    """95 % interval of the median in seconds."""
    ratio: RatioInterval | None = None
    """Ratio of this candidate's median to the fastest one's, over the rounds that both ran; with 95 % interval."""
    timeline: views.MeanCall | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The candidates for one model, batch size and thread count, measured in turns."""

    model: str
    batch: int | None
    threads: int
    rows: tuple[ReportRow, ...]

    @property
    def title(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.model}{batch}, {views.format_count(self.threads, 'thread')}"


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a whole comparison, and the facts about machine and settings that they depend on."""

    machine: Mapping[str, str | int]
    settings: Mapping[str, Any]
    groups: tuple[Group, ...]
    date: str = ""
    command: str = ""

    @property
    def agrees(self) -> bool:
        """Whether no candidate has results that differ from the reference. Candidates that failed do not count."""
        return not any(row.verdict == "wrong" for group in self.groups for row in group.rows)

    @property
    def versions(self) -> dict[str, str]:
        versions: dict[str, str] = {}
        for group in self.groups:
            for row in group.rows:
                if row.start:
                    versions.update(zip(row.start.engines, row.start.versions, strict=True))
        return versions

    def _repr_html_(self) -> str:
        # Without links, which would point to other cells of the notebook.
        return views.render_cell("report.html", title=_title(self), is_page=False, **_describe(self))

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data: times in seconds, memory in bytes, None for missing values."""
        return {"schema": SCHEMA, "versions": self.versions, "agrees": self.agrees, **_to_plain(self)}


def _to_plain(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to dicts and lists. A candidate becomes a dict with its text as ``name``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"name": str(value), **fields} if isinstance(value, BenchCandidate) else fields
    if isinstance(value, dict | FrozenDict):  # dataclasses.asdict does not convert a FrozenDict
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_plain(item) for item in value]
    return value


def machine(*distributions: str) -> str:
    """Describe the machine and the versions of these distributions in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "onnx", *distributions))
    return f"{platform.machine()} {platform.system()}, Python {platform.python_version()}, {versions}"


def describe() -> dict[str, str | int]:
    """Collect facts about the machine that may explain timings, by label: processor, cores, load, versions."""
    return {
        "processor": get_processor_name(),
        "architecture": platform.machine(),
        "cores": count_available_cores(),
        "load": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "xrt": __version__,
        "numpy": metadata.version("numpy"),
        "onnx": metadata.version("onnx"),
    }


def get_processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or "unknown"


def read_peak_memory() -> int:
    """Read the peak resident memory of this process, in bytes.

    From /proc where it exists, since Linux's ``ru_maxrss`` includes the parent's memory at the time of the fork.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


CORRECT_VERDICTS = ("fastest", "tie", "slower", "too noisy")
"""Verdicts of candidates that ran with correct results; only these are ranked and have bars."""
TROUBLES = {"failed": "failed", "wrong": "is wrong, so its speed does not count"}
MIN_DRAWN_REGIONS = 2
"""Plans with at least this many regions get a drawing and a table."""
# The columns of two tables, with the CSS class of their cells.
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
    """Render the report as an HTML page that needs no network and no scripts, for light and dark screens and for print."""
    return views.render_page("report.html", _title(report), is_page=True, **_describe(report))


def _title(report: BenchReport) -> str:
    return f"Engines compared on {views.format_list(list(dict.fromkeys(group.model for group in report.groups))) or 'no model'}"


def _describe(report: BenchReport) -> dict[str, Any]:
    """Make the template's data for a report: its groups, and facts about machine, versions and settings."""
    threads = views.format_list([str(count) for count in dict.fromkeys(group.threads for group in report.groups)])
    facts = {
        "measured": f"{report.date} UTC" if report.date else None,
        "threads": f"{threads}: the budget of each candidate",
        **{name: str(value) for name, value in report.machine.items()},
        **report.versions,
        **{name.replace("_", " "): _format_setting(value) for name, value in report.settings.items()},
    }
    groups = [_describe_group(group) for group in report.groups]
    return {"report": report, "groups": groups, "facts": facts, "figures": FIGURES, "costs": COSTS}


def _format_setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{engine} on {device}" for engine, device in value.items()) or "none"
    return value if isinstance(value, str) else f"{value:g}"


def _describe_group(group: Group) -> dict[str, Any]:
    """Make the template's data for a group: summary, bars, tables, timelines, and drawings of plans with several regions."""
    correct = _list_correct(group)
    planned = [(row, row.start.plan) for row in group.rows if row.start and row.start.plan]
    # An engine has the same color for all candidates of the group: in the drawings, and in the timelines.
    drawing_colors = color_engines(region.engine for _, plan in planned for region in plan)
    troubles = [(row, TROUBLES.get(row.verdict, "could not be judged in full")) for row in group.rows if row.reason]
    timed = [views.Strip(str(row.candidate), plan, row.timeline) for row, plan in planned if row in correct and row.timeline]
    strip_colors = color_engines(region.engine for strip in timed for region in strip.plan)
    return {
        "title": group.title,
        "answer": summarize(group),
        "bars": views.make_bars([_make_bar(row) for row in correct]),
        "rounds": max((len(row.rounds) for row in correct), default=0),
        "figures": [_list_figures(row) for row in group.rows],
        "costs": [_list_costs(row) for row in group.rows if row.start and row.median_seconds is not None],
        "troubles": [(row.candidate, kind, row.reason) for row, kind in troubles],
        "colors": strip_colors,
        "strips": views.make_strips(timed, strip_colors) if timed else None,
        "whole": [str(row.candidate) for row, plan in planned if len(plan) < MIN_DRAWN_REGIONS],
        "placements": [(row.candidate, row.start.placement) for row in group.rows if row.start and row.start.placement],
        "pictures": [
            views.make_plan_picture(str(row.candidate), plan, row.timeline, drawing_colors)
            for row, plan in planned
            if len(plan) >= MIN_DRAWN_REGIONS
        ],
    }


def summarize(group: Group) -> str:
    """Summarize the result of a group in two or three sentences."""
    correct = _list_correct(group)
    if not correct:
        return "No candidate ran and agreed with the reference."
    best, *others = correct
    best_time = f"{best.candidate} takes {views.format_seconds_interval(best.median_seconds or 0.0, best.interval)} a call"
    if not others:
        return f"{best_time}; nothing else ran and agreed with the reference."
    ties = [str(row.candidate) for row in others if row.verdict == "tie"]
    noisy = [str(row.candidate) for row in others if row.verdict == "too noisy"]
    slower = next((row for row in others if row.verdict == "slower"), None)
    sentences = [f"{best_time}: the fastest."]
    if ties:
        tie = "is a tie with it" if len(ties) == 1 else "are ties with it"
        sentences = [f"{best_time}, the least of all; {views.format_list(ties)} {tie}: the difference lies within the noise."]
    if noisy:
        sentences.append(f"{views.format_list(noisy)}: too noisy to rank; measure again on an idle machine, or with more rounds.")
    if slower:
        sentences.append(f"{slower.candidate}, the next, takes {views.format_ratio_interval(slower.ratio)} times as long.")
    return " ".join(sentences)


def _list_correct(group: Group) -> list[ReportRow]:
    return [row for row in group.rows if row.verdict in CORRECT_VERDICTS]


def _make_bar(row: ReportRow) -> views.Bar:
    ratio = "" if row.verdict == "fastest" else f"{views.format_ratio_interval(row.ratio)} × the fastest"
    return views.Bar(
        str(row.candidate), row.verdict.replace(" ", "-"), row.verdict, row.median_seconds or 0.0, row.interval, ratio
    )


def _list_figures(row: ReportRow) -> tuple[Any, ...]:
    head = str(row.candidate), {"text": row.verdict, "verdict": row.verdict.replace(" ", "-")}
    if row.start is None or row.median_seconds is None:
        return *head, *[""] * (len(FIGURES) - len(head))
    times = views.format_seconds_interval(row.median_seconds, row.interval), views.format_ratio_interval(row.ratio)
    agreement = row.agreement
    if agreement is None:
        return *head, *times, "", ""
    return *head, *times, _format_difference(agreement.absolute), _format_difference(agreement.relative)


def _list_costs(row: ReportRow) -> tuple[Any, ...]:
    start = row.start
    assert start is not None
    return (
        str(row.candidate),
        f"{views.format_seconds(start.alone_seconds)}{'' if start.steady else ', not steady'}",
        views.format_seconds(start.first_seconds),
        views.format_seconds(start.import_seconds),
        views.format_seconds(start.compile_seconds),
        views.format_bytes(start.peak_bytes),
        views.format_bytes(start.loaded_bytes),
        row.candidate.precision,
    )


def _format_difference(value: float | None) -> str:
    if value is None:
        return "no reference"
    return f"{value:.1e}" if value else "0"
