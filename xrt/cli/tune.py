"""``xrt tune``: where the nodes of a model go, found out by measurement."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from xrt.cli.explain import with_dims
from xrt.cli.inputs import all_inputs
from xrt.cli.options import dims_of, input_options, loaded, module_keywords, seconds_of, tuning_options
from xrt.cli.screen import err, out, show_table
from xrt.graph import Function, TensorType
from xrt.module import XRTModule
from xrt.tune import Contender, Progress, Told, Tuned
from xrt.tune.tuned import counted

__all__ = ["INTERRUPTED", "command", "shown"]

COLUMNS = ("verdict", "plan", "regions", "ms", "x baseline", "note")
NUMBERS = ("regions", "ms", "x baseline")
INTERRUPTED = 130
PAUSE = 1.0
"""Seconds between two lines of progress off a terminal."""


@click.command("tune")
@click.argument("model")
@tuning_options
@input_options
@click.option("--budget", default="60s", show_default=True, callback=seconds_of, help="How long to search: 60s, 2m")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def command(model: str, files: tuple[str, ...], seed: int, budget: float, as_json: bool, **given: Any) -> int:
    """Find the quickest engine, or mixture of engines, for MODEL, an ONNX file or a shipped model.

    What is found is remembered: XRTModule(MODEL, engine="auto") takes it without measuring. Ctrl-C ends the search with the best
    plan by then, and exit code 130; exit code 1 when nothing could be measured.
    """
    function = with_dims(loaded(model), dims_of(given["dims"]))
    keywords = module_keywords(given)
    if keywords["engine"] != ["auto"]:
        keywords["engine"] = [*keywords["engine"], "auto"]
    values = _values(function, files, seed)
    with XRTModule(function, **keywords, budget=budget) as module, shown(budget) as told:
        tuned = module.tune(**values, progress=told)
    if as_json:
        out.print_json(json.dumps({"model": model, "threads": module.threads, **tuned.to_dict()}))
    else:
        _show(tuned, module.threads)
    return {"interrupted": INTERRUPTED, "priority": 1}.get(tuned.how, 0)


def _values(function: Function, files: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Return inputs from files, and random ones for the others; none where extents are open, so that the module says so."""
    is_closed = all(isinstance(v.type, TensorType) and v.type.is_static for v in function.inputs)
    return all_inputs(files, function, seed) if is_closed or files else {}


# ---------------------------------------------------------------------- while it goes on


@contextmanager
def shown(budget: float) -> Iterator[Told]:
    """Show how far it is: a bar on a terminal, and a line now and then elsewhere."""
    if not err.is_terminal:
        yield _Lines()
        return
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=budget)
        yield lambda progress: bar.update(task, completed=min(progress.elapsed, budget), description=_line(progress))


class _Lines:
    """Writes a line when there is another best, and otherwise not too often."""

    def __init__(self) -> None:
        self._last = -PAUSE
        self._best = ""

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.best != self._best or now - self._last >= PAUSE:
            self._last, self._best = now, progress.best
            click.echo(_line(progress), err=True)


def _line(progress: Progress) -> str:
    best = f"; best so far: {progress.best}, {1e3 * progress.seconds:.4g} ms" if progress.seconds is not None else ""
    return f"{progress.elapsed:.1f} of {progress.budget:g} s: {progress.stage}{best}"


# ---------------------------------------------------------------------- in the end


def _show(tuned: Tuned, threads: int) -> None:
    head, *_ = str(tuned).splitlines()
    known = f"{counted(tuned.measurements, 'measurement')} of regions, {counted(tuned.race.rounds, 'round')}"
    spent = f"{tuned.spent:.1f} of {tuned.budget:g} s: {known}"
    if tuned.race.contenders:
        show_table(COLUMNS, [_cells(one) for one in tuned.race.contenders], numbers=NUMBERS, whole=("verdict",))
    out.print(f"{head} ({threads} thread{'s' * (threads != 1)})\n{spent}", markup=False)
    for remark in tuned.remarks:
        out.print(remark, markup=False)


def _ratio(one: Contender) -> str:
    """Return the ratio with its interval, where the rounds were enough for one."""
    if one.ratio is None:
        return ""
    known = one.ratio_low is not None and one.ratio_high is not None
    return f"{one.ratio:.3f} ({one.ratio_low:.3f}-{one.ratio_high:.3f})" if known else f"{one.ratio:.3f}"


def _cells(one: Contender) -> tuple[str, ...]:
    seconds = "" if one.seconds is None else f"{1e3 * one.seconds:.4g}"
    return one.verdict, one.title, str(len(one.plan.launches)), seconds, _ratio(one), one.note
