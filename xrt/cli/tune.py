"""``xrt tune``: where the nodes of a model go, found out by measurement."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress as Bar, SpinnerColumn, TextColumn

from xrt.bench.targets import DIGITS
from xrt.cache import DiskTier, default_cache
from xrt.cli.inputs import all_inputs, from_files, set_shapes
from xrt.cli.options import (
    add_tuning_options,
    check_sizes,
    check_writable,
    input_options,
    isolation_options,
    list_dims,
    load_with_sizes,
    module_keywords,
    parse_seconds,
    set_dims,
)
from xrt.cli.quantize import add_precision_options, read_precision_keywords, show_pareto
from xrt.cli.screen import TimedRow, err, out, show_table, show_times
from xrt.cli.throughput import add_throughput_options, check_objective, tune_for_throughput
from xrt.errors import OptionError, did_you_mean
from xrt.formats.bundle import is_bundle
from xrt.formats.output import replace_file
from xrt.module import XRTModule
from xrt.placement.report import describe_precision
from xrt.placement.result import VERDICTS, format_count
from xrt.placement.sizes import format_sizes, parse_sizes

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.placement import CandidateResult, Progress, ProgressCallback, TuningResult

__all__ = ["INTERRUPTED", "command", "format_result"]

DETAILS = ("regions", "to the best engine", "note")
COLUMNS = ("plan", "ms", "ratio", "verdict", *DETAILS)
"""Of a pipe; a terminal shows the details with -v."""
NUMBERS = ("regions", "to the best engine")
INTERRUPTED = 130
COARSE = 2.0
"""Seconds by which the times of files may be too early, as a file system rounds them."""
PAUSE = 1.0
"""Seconds between two lines of progress off a terminal."""


@click.command("tune")
@click.argument("model")
@add_tuning_options
@isolation_options
@input_options
@click.option(
    "--budget", default="60s", show_default=True, callback=parse_seconds, metavar="TIME", help="Time of the search: 60s, 2m"
)
@click.option(
    "--sizes",
    multiple=True,
    metavar="NAME=SIZE,...",
    help="Search at each of these sizes of a symbolic dim, which stays symbolic: s=16,128,512",
)
@add_precision_options
@click.option("--pareto", is_flag=True, help="Show error against time of the plans that were measured")
@add_throughput_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("-v", "--verbose", is_flag=True, help="Also show intervals, regions, notes and what was not measured, and why")
def command(  # noqa: C901, PLR0912
    model: str,
    files: tuple[str, ...],
    seed: int,
    budget: float,
    sizes: tuple[str, ...],
    pareto: bool,
    as_json: bool,
    verbose: bool,
    **given: Any,
) -> int:
    """Find the fastest engine, or mixture of engines, for MODEL: an ONNX file or a shipped model.

    With --objective throughput, find what serves most requests per second while 99 of 100 are served within --p99: how many
    requests to join in a call, how many calls at a time, and the engines for each batch size. Each request is a row of the
    inputs. The exit code is 1 when nothing is within --p99.

    The result is stored for the listed engines, the threads and the shapes: XRTModule(MODEL, engine="auto") uses it without
    measuring, or engine=["ort", "xla", "auto"] after --engines ort,xla. With --sizes the time is that of
    each search. With --max-error plans of lower precision take part whose error, measured on --validate, is
    within the share; --pareto shows error and time of each. Ctrl-C ends the search with the best plan so far, and
    exit code 130. The exit code is 1 when nothing could be measured.
    """
    if given["objective"] == "latency" and len(given["batches"] or ()) == 1:
        given["batch"], given["batches"] = given["batches"][0], None
    function = load_with_sizes(model, given)
    keywords = module_keywords(given)
    if keywords["engine"] != ["auto"]:
        keywords["engine"] = [*keywords["engine"], "auto"]
    check_objective(given["objective"], {**given, "sizes": sizes, "pareto": pareto})
    if given["objective"] == "throughput":
        asked = {**given, "files": files, "as_json": as_json, "source": model}
        keywords.update(read_precision_keywords(given, function))
        return tune_for_throughput(model, function, keywords, budget, seed, asked)
    chosen, examples = _list_examples(function, sizes, files)
    lower = read_precision_keywords(given, function)
    if pareto and not lower:
        raise OptionError("--pareto shows errors of plans of lower precision; pass --max-error and --validate")
    if given["page"] is not None:
        check_writable(Path(given["page"]))
    began = time.time() - COARSE
    found: list[TuningResult] = []
    facts: list[dict[str, Any]] = []
    with XRTModule(function, **keywords, **lower, budget=budget) as module:
        for number, one in enumerate(examples, 1):
            part = f"size {number} of {len(examples)}, " if len(examples) > 1 else ""
            with format_result(budget, part) as report:
                tuned = module.tune(**all_inputs(files, set_dims(function, one), seed), progress=report)
            found.append(tuned)
            facts.append({"model": model, "threads": module.threads, **({"sizes": one} if one else {}), **tuned.to_dict()})
            if one and not as_json:
                out.print(f"for {format_sizes(one)}:", markup=False)
            if not as_json:
                _show(tuned, module.threads, verbose=verbose)
            if pareto and not as_json and tuned.precision is not None:
                show_pareto(tuned.precision)
            if tuned.how == "interrupted":
                break
    if given["page"] is not None:
        sized = (format_sizes(one) if one else "" for one in examples)
        _write_page(dict(zip(sized, found, strict=False)), model, Path(given["page"]))
    if as_json:
        out.print_json(json.dumps(facts if chosen else facts[0]))
    elif any(tuned.how == "measured" for tuned in found):
        spelled = {**keywords, "threads": module.threads}
        _tell_stored(_spell_call(model, {**spelled, "max_error": given["max_error"]} if lower else spelled), began, chosen)
    return max({"interrupted": INTERRUPTED, "priority": 1}.get(tuned.how, 0) for tuned in found)


def _write_page(results: Mapping[str, TuningResult], model: str, file: Path) -> None:
    from xrt.placement.report import render_tuning_page  # for those alone who ask

    page = render_tuning_page(results, model).encode()
    replace_file(file, lambda stream: stream.write(page))


def _tell_stored(call: str, began: float, chosen: Mapping[str, Any]) -> None:
    """Say how a module uses what was found, if that is stored."""
    disk = default_cache().disk
    if not isinstance(disk, DiskTier):
        return
    is_stored = any(file.stat().st_mtime >= began for file in (disk.store.root / "decisions").glob("*.json"))
    out.print(
        f"stored: {call} uses it for {'these sizes' if chosen else 'these shapes'}, whatever its budget"
        if is_stored
        else f"not stored in {disk.store.root}; `xrt lock` writes a placement to a file",
        markup=False,
    )


def _list_examples(
    function: Function, given: tuple[str, ...], files: tuple[str, ...]
) -> tuple[Mapping[str, tuple[int, ...]], list[dict[str, int]]]:
    """Return the sizes of each name, and their combinations to search at: one without sizes where none is given.

    Raises OptionError for a size of what is no symbolic dim of the inputs, and for a dim that is left open.
    """
    chosen, dims = parse_sizes(parse_several(given), "--sizes"), list_dims(function)
    for name in chosen:
        if name not in dims:
            raise OptionError(f"--sizes names {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, dims)}")
    examples = [dict(zip(chosen, one, strict=True)) for one in product(*chosen.values())]
    for one in examples:
        sized = set_dims(function, one)
        check_sizes(set_shapes(sized, from_files(files, sized)))
    return chosen, examples


def parse_several(given: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the sizes by name from texts such as ``s=16,128``; raises OptionError for another form."""
    found: dict[str, list[int]] = {}
    for text in given:
        name, equals, several = text.partition("=")
        numbers = several.split(",")
        if not equals or not all(one.isdecimal() and len(one) <= DIGITS for one in numbers):
            raise OptionError(f"--sizes takes NAME=SIZE,SIZE,..., such as s=16,128,512; got {text!r}")
        found.setdefault(name, []).extend(map(int, numbers))
    return found


def _spell_call(model: str, keywords: dict[str, Any]) -> str:
    """Return the call of XRTModule that has these keywords, without those that are defaults.

    A bundle or a shipped model is a MODEL: XRTModule takes no path or name of one.
    """
    named = repr(model) if os.path.lexists(model) and not is_bundle(model) else "MODEL"
    engines, device = keywords["engine"], keywords["device"]
    given = keywords | {"engine": engines[0] if len(engines) == 1 else engines, "device": "" if device == "cpu" else device}
    return f"XRTModule({', '.join([named, *(f'{name}={value!r}' for name, value in sorted(given.items()) if value)])})"


# ---------------------------------------------------------------------- while it goes on


@contextmanager
def format_result(budget: float, part: str = "") -> Iterator[ProgressCallback]:
    """Show how far it is, after the part of the work: a bar on a terminal, and a line now and then elsewhere."""
    if not err.is_terminal:
        yield _Lines(part)
        return
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=budget)
        yield lambda progress: bar.update(task, completed=min(progress.elapsed, budget), description=f"{part}{_line(progress)}")


class _Lines:
    """Writes a line when there is another best, and otherwise not too often."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._last = -PAUSE
        self._best = ""

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.best != self._best or now - self._last >= PAUSE:
            self._last, self._best = now, progress.best
            click.echo(f"{self._part}{_line(progress)}", err=True)


def _line(progress: Progress) -> str:
    return f"{progress.elapsed:.1f} of {progress.budget:g} s: {progress.text}"


# ---------------------------------------------------------------------- in the end


def _show(tuned: TuningResult, threads: int, *, verbose: bool) -> None:
    head, *_ = str(tuned).splitlines()
    rows, details = _list_rows(tuned), [_details(one) for one in tuned.race.contenders]
    if rows and out.is_terminal:
        show_times("plan", rows)
        if verbose:
            show_table(("plan", *DETAILS), [(row.name, *more) for row, more in zip(rows, details, strict=True)], numbers=NUMBERS)
    elif rows:
        times = [(row.name, "" if row.seconds is None else f"{1e3 * row.seconds:.4g}", row.ratio, row.verdict) for row in rows]
        show_table(COLUMNS, [(*row, *more) for row, more in zip(times, details, strict=True)])
    out.print(f"{head} ({threads} thread{'s' * (threads != 1)}), in {tuned.spent:.1f} of {tuned.budget:g} s", markup=False)
    if verbose:
        known = f"{format_count(tuned.measurements, 'measurement')} of regions, {format_count(tuned.race.rounds, 'round')}"
        out.print(known, markup=False)
    for remark in tuned.remarks if verbose else tuned.short_remarks:
        out.print(remark, markup=False)
    for line in describe_precision(tuned.precision) if tuned.precision is not None else ():
        out.print(line, markup=False)


def _list_rows(tuned: TuningResult) -> list[TimedRow]:
    """Return the plans with their times and the ratios of these to the chosen plan's."""
    contenders = tuned.race.contenders
    chosen = next((one.seconds for one in contenders if one.verdict == "won"), None)
    ratios = ["" if one.seconds is None or not chosen else f"{one.seconds / chosen:.2f}" for one in contenders]
    return [TimedRow(one.title, one.seconds, text, VERDICTS[one.verdict]) for one, text in zip(contenders, ratios, strict=True)]


def _details(one: CandidateResult) -> tuple[str, str, str]:
    known = one.ratio is not None and one.ratio_low is not None and one.ratio_high is not None
    return str(len(one.plan.launches)), f"{one.ratio:.3f} ({one.ratio_low:.3f}-{one.ratio_high:.3f})" if known else "", one.note
