"""``xrt tune``, ``lock`` and ``check``: the fastest placement by measurement, as a file for version control."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress as Bar, SpinnerColumn, TextColumn

from xrt import models
from xrt.bench.targets import DIGITS
from xrt.cache import DiskTier, default_cache
from xrt.cli.inputs import all_inputs, from_files, list_input_files, read_batches, set_shapes
from xrt.cli.options import (
    ENGINE_NAMES,
    add_all,
    add_batch,
    add_json,
    add_tuning_options,
    check_sizes,
    check_writable,
    list_dims,
    load_with_options,
    load_with_sizes,
    module_keywords,
    parse_dims,
    parse_numbers,
    parse_seconds,
    read_locked_dims,
    set_dims,
    settle_batch,
)
from xrt.cli.quantize import add_precision_options, read_precision_keywords, show_pareto
from xrt.cli.screen import TimedRow, WorkStatus, complain, err, human_bytes, out, show_table, show_times
from xrt.engines import split_specs
from xrt.engines.contract.registry import why_not_chosen
from xrt.errors import EngineError, InputError, LockError, ModelError, OptionError, PlanError, RunFailed, XRTError, did_you_mean
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.bundle import is_bundle
from xrt.formats.output import replace_file
from xrt.formats.placement_file import Baseline, PlacementFile, write_placement
from xrt.models import sample_inputs
from xrt.module import XRTModule
from xrt.module.lockfile import check_module, check_module_load, lock_module
from xrt.module.tuning import tune_throughput
from xrt.passes import specialize
from xrt.placement.records import DEVICE_OF, read_lock, read_shapes
from xrt.placement.report import describe_precision
from xrt.placement.result import VERDICTS, format_count
from xrt.placement.sizes import format_sizes, parse_sizes
from xrt.placement.throughput import COLUMNS as POINT_COLUMNS, format_latency, format_rate, render_throughput_page
from xrt.processes.client import WorkerFailure, WorkerProcess, WorkerTimedOut
from xrt.processes.ipc import Message
from xrt.processes.server import Request, serve
from xrt.runtime.inputs import infer_type

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.placement import CandidateResult, Progress, ProgressCallback, TuningResult
    from xrt.placement.regression_check import RegressionResult
    from xrt.placement.throughput import LoadCheckResult, ServingCandidate, ThroughputResult

__all__ = ["check_command", "command", "lock_command"]

DETAILS = ("regions", "to the best engine", "note")
COLUMNS = ("plan", "ms", "ratio", "verdict", *DETAILS)
"""Of a pipe; a terminal shows the details with -v."""
NUMBERS = ("regions", "to the best engine")
INTERRUPTED = 130
COARSE = 2.0
"""Seconds by which the times of files may be too early, as a file system rounds them."""
PAUSE = 1.0
"""Seconds between two lines of progress off a terminal."""


GATE = 5.0
"""Seconds of the comparison of the locked plan with another one, for `xrt check`."""
ONLY = ("p99", "batches", "instances", "batch_dim", "target")
"""Options of this objective alone."""
POINT_NUMBERS = ("batch", "instances", "threads", "in flight", "requests/s", "p50", "p99", "memory")
add_search_budget = click.option(
    "--budget", default="60s", show_default=True, callback=parse_seconds, metavar="TIME", help="Time of the search: 60s, 2m"
)
add_throughput_options = add_all(
    click.option(
        "--objective",
        default="latency",
        show_default=True,
        type=click.Choice(["latency", "throughput"]),
        help="What is best: the fastest call, or most requests per second within --p99",
    ),
    click.option(
        "--p99",
        callback=parse_seconds,
        metavar="TIME",
        help="With throughput: time within which 99 of 100 requests are served: 20ms, 1s [default: no limit]",
    ),
    click.option(
        "--batch",
        "batches",
        callback=parse_numbers,
        metavar="SIZES",
        help="Size of the first axis of the inputs; with throughput requests of a call, to be measured: 1,2,4 "
        "[default: 1,2,4,8,16,32]",
    ),
    click.option(
        "--instances",
        callback=parse_numbers,
        metavar="NUMBERS",
        help="With throughput: calls at a time, to be measured; they divide the threads [default: 1,2,4,... up to the threads]",
    ),
    click.option(
        "--batch-dim",
        metavar="NAME",
        help="With throughput: the symbolic dim that counts requests [default: the first of all inputs and outputs]",
    ),
    click.option(
        "-o", "--output", "target", type=click.Path(dir_okay=False), help="With throughput: write the result to this lockfile"
    ),
    click.option("--html", "page", type=click.Path(dir_okay=False), help="Also write a page to this file"),
)
"""Adds the objective, and the options that belong to throughput."""


@click.command("tune")
@click.argument("model")
@add_tuning_options
@add_search_budget
@click.option(
    "--sizes",
    multiple=True,
    metavar="NAME=SIZE,...",
    help="Search at each of these sizes of a symbolic dim, which stays symbolic: s=16,128,512",
)
@add_precision_options
@click.option("--pareto", is_flag=True, help="Show error against time of the plans that were measured")
@add_throughput_options
@add_json
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
    **params: Any,
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
    if params["objective"] == "latency" and len(params["batches"] or ()) == 1:
        params["batch"], params["batches"] = params["batches"][0], None
    function = load_with_sizes(model, params)
    keywords = module_keywords(params)
    if keywords["engine"] != ["auto"]:
        keywords["engine"] = [*keywords["engine"], "auto"]
    check_objective(params["objective"], {**params, "sizes": sizes, "pareto": pareto})
    if params["objective"] == "throughput":
        request = {**params, "files": files, "as_json": as_json, "source": model}
        keywords.update(read_precision_keywords(params, function))
        return tune_for_throughput(model, function, keywords, budget, seed, request)
    chosen, examples = _list_examples(function, sizes, files)
    lower = read_precision_keywords(params, function)
    if pareto and not lower:
        raise OptionError("--pareto shows errors of plans of lower precision; pass --max-error and --validate")
    if params["page"] is not None:
        check_writable(Path(params["page"]))
    began = time.time() - COARSE
    results: list[TuningResult] = []
    facts: list[dict[str, Any]] = []
    with XRTModule(function, **keywords, **lower, budget=budget) as module:
        for number, one in enumerate(examples, 1):
            part = f"size {number} of {len(examples)}, " if len(examples) > 1 else ""
            with show_search(budget, part) as report:
                tuned = module.tune(**all_inputs(files, set_dims(function, one), seed), progress=report)
            results.append(tuned)
            facts.append({"model": model, "threads": module.threads, **({"sizes": one} if one else {}), **tuned.to_dict()})
            if one and not as_json:
                out.print(f"for {format_sizes(one)}:", markup=False)
            if not as_json:
                _show(tuned, module.threads, verbose=verbose)
            if pareto and not as_json and tuned.precision is not None:
                show_pareto(tuned.precision)
            if tuned.how == "interrupted":
                break
    if params["page"] is not None:
        sized = (format_sizes(one) if one else "" for one in examples)
        _write_page(dict(zip(sized, results, strict=False)), model, Path(params["page"]))
    if as_json:
        out.print_json(json.dumps(facts if chosen else facts[0]))
    elif any(tuned.how == "measured" for tuned in results):
        spelled = {**keywords, "threads": module.threads}
        _tell_stored(_spell_call(model, {**spelled, "max_error": params["max_error"]} if lower else spelled), began, chosen)
    return max({"interrupted": INTERRUPTED, "priority": 1}.get(tuned.how, 0) for tuned in results)


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
    function: Function, texts: tuple[str, ...], files: tuple[str, ...]
) -> tuple[Mapping[str, tuple[int, ...]], list[dict[str, int]]]:
    """Return the sizes of each name, and their combinations to search at: one without sizes where none is given.

    Raises OptionError for a size of what is no symbolic dim of the inputs, and for a dim that is left open.
    """
    chosen, dims = parse_sizes(parse_several(texts), "--sizes"), list_dims(function)
    for name in chosen:
        if name not in dims:
            raise OptionError(f"--sizes names {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, dims)}")
    examples = [dict(zip(chosen, one, strict=True)) for one in product(*chosen.values())]
    for one in examples:
        sized = set_dims(function, one)
        check_sizes(set_shapes(sized, from_files(files, sized)))
    return chosen, examples


def parse_several(texts: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the sizes by name from texts such as ``s=16,128``; raises OptionError for another form."""
    sizes: dict[str, list[int]] = {}
    for text in texts:
        name, equals, several = text.partition("=")
        numbers = several.split(",")
        if not equals or not all(one.isdecimal() and len(one) <= DIGITS for one in numbers):
            raise OptionError(f"--sizes takes NAME=SIZE,SIZE,..., such as s=16,128,512; got {text!r}")
        sizes.setdefault(name, []).extend(map(int, numbers))
    return sizes


def _spell_call(model: str, keywords: dict[str, Any]) -> str:
    """Return the call of XRTModule that has these keywords, without those that are defaults.

    A bundle or a shipped model is a MODEL: XRTModule takes no path or name of one.
    """
    named = repr(model) if os.path.lexists(model) and not is_bundle(model) else "MODEL"
    engines, device = keywords["engine"], keywords["device"]
    arguments = keywords | {"engine": engines[0] if len(engines) == 1 else engines, "device": "" if device == "cpu" else device}
    return f"XRTModule({', '.join([named, *(f'{name}={value!r}' for name, value in sorted(arguments.items()) if value)])})"


# ---------------------------------------------------------------------- while it goes on


@contextmanager
def show_search(budget: float, part: str = "") -> Iterator[ProgressCallback]:
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
        counts = f"{format_count(tuned.measurements, 'measurement')} of regions, {format_count(tuned.race.rounds, 'round')}"
        out.print(counts, markup=False)
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
    has_interval = one.ratio is not None and one.ratio_low is not None and one.ratio_high is not None
    return (
        str(len(one.plan.launches)),
        f"{one.ratio:.3f} ({one.ratio_low:.3f}-{one.ratio_high:.3f})" if has_interval else "",
        one.note,
    )


# ---------------------------------------------------------------------- throughput


def check_objective(objective: str, params: Mapping[str, Any]) -> None:
    """Raise OptionError for an option of the other objective."""
    if objective == "latency" and (name := next((one for one in ONLY if params.get(one) is not None), None)):
        option = {"batches": "batch", "batch_dim": "batch-dim", "target": "output"}.get(name, name)
        option = "batch with several sizes" if name == "batches" else option
        raise OptionError(f"--{option} is of throughput; pass --objective throughput too, or leave it out")
    if objective == "throughput" and params.get("pareto"):
        raise OptionError("--pareto is of latency: it shows plans of one size; leave it out with --objective throughput")
    if objective == "throughput" and params.get("sizes"):
        raise OptionError("--sizes is of latency; with --objective throughput, --batch gives the sizes of the batch dim")


def tune_for_throughput(
    model: str, function: Function, keywords: Mapping[str, Any], budget: float, seed: int, params: Mapping[str, Any]
) -> int:
    """Tune, print the table, write the lockfile and the page; return the exit code."""
    for name in ("target", "page"):
        if params[name]:
            check_writable(Path(params[name]))
    limits = {name: params[name] for name in ("p99", "batches", "instances", "batch_dim") if params[name] is not None}
    values = all_inputs(params["files"], function, seed) if params["files"] else {}
    with XRTModule(function, **keywords) as module:
        locks: list[Any] = []
        gate = GATE if params["target"] else None
        source = {"source": params["source"], "seed": str(seed), "dims": ",".join(params["dims"])}
        with WorkStatus("tuning for throughput") as status:
            result = tune_throughput(
                module,
                named=values,
                seed=seed,
                budget=budget,
                progress=False,
                tell=status.update,
                use=lambda one, given: locks.append(lock_module(one, given, source, gate)) if gate else None,
                **limits,
            )
        if params["as_json"]:
            out.print_json(json.dumps({"model": model, "threads": module.threads, **result.to_dict()}))
        else:
            _show_points(result)
        if params["page"]:
            page = render_throughput_page(result, model).encode()
            replace_file(Path(params["page"]), lambda file: file.write(page))
        if locks and (record := result.to_record()) is not None:
            write_placement(locks[0].replace(serving=record), params["target"])
            if not params["as_json"]:
                out.print(f"{params['target']}: written; XRTModule(MODEL, engine='auto', lock=...) uses it", markup=False)
    return 130 if result.is_interrupted else 0 if result.configuration else 1


def _show_points(result: ThroughputResult) -> None:
    show_table(POINT_COLUMNS, [_cells(one) for one in result.candidates], numbers=POINT_NUMBERS, whole=("verdict",))
    points = len(result.candidates)
    out.print(f"{result.headline}\n{points} points, {result.spent:.1f} of {result.budget:g} s", markup=False)
    for note in result.notes:
        out.print(note, markup=False)


def _cells(one: ServingCandidate) -> tuple[str, ...]:
    load = one.load
    figures = (format_rate(load.rate), format_latency(load.p50), format_latency(load.p99)) if load else ("", "", "")
    memory = human_bytes(one.memory) if one.memory is not None else ""
    place = (str(one.batch), str(one.split.instances), str(one.split.threads), str(one.concurrency))
    return one.verdict, *place, one.plan, *figures, memory, one.note


# ---------------------------------------------------------------------- lockfiles

NOISY = 0.1
"""Part of a ratio that its interval may be wide before the lock is called too vague for a gate."""


@click.command("lock")
@click.argument("model")
@add_tuning_options
@add_batch
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), help="The lockfile [default: MODEL.lock here]")
@add_search_budget
@click.option(
    "--gate",
    "gate",
    default="10s",
    show_default=True,
    callback=parse_seconds,
    metavar="TIME",
    help="Time of the comparison with the best other plan: 10s, 2m",
)
@click.option("--retune", is_flag=True, help="Search even if a decision is stored")
@add_precision_options
def lock_command(
    model: str,
    files: tuple[str, ...],
    seed: int,
    target: str | None,
    budget: float,
    gate: float,
    retune: bool,
    **params: Any,
) -> int:
    """Write the placement of MODEL, with reasons, machine and versions, as a file for version control.

    XRTModule(MODEL, engine="auto", lock=FILE) uses the plan without measuring. `xrt check FILE` tests whether the plan is still
    as fast, compared with another plan, on the same inputs: the lockfile has their shapes, and the seed or the files of their
    values. The placement is measured as by `xrt tune`, unless a measurement is stored. The plan serves
    all sizes of symbolic dims; it is measured at those of --dim.
    """
    path = Path(target) if target else Path(f"{Path(model).stem}.lock")
    check_writable(path)
    function = load_with_options(model)
    settle_batch(function, params)
    sized = set_dims(function, parse_dims(params["dims"]))
    check_sizes(set_shapes(sized, from_files(files, sized)))
    values = all_inputs(files, sized, seed)
    input_files = {name: _relate(file, path) for name, file in list_input_files(files, function).items()}
    keywords = {**module_keywords(params), **read_precision_keywords(params, function)}
    with XRTModule(function, **{**keywords, "engine": [*keywords["engine"], "auto"]}, budget=budget) as module:
        tuned = _find_placement(module, values, budget, retune=retune)
        if tuned.how == "interrupted":
            complain("interrupted", f"nothing is locked; {path} is as it was")
            return INTERRUPTED
        with WorkStatus("comparing the plan with another"):
            # A model file is named relative to the lock, a shipped model by its name.
            name = _relate(model, path) if os.path.lexists(model) else model
            source = {"source": name, "seed": str(seed), "dims": ",".join(params["dims"])}
            source |= {name: _relate(params[name], path) for name in ("calibrate", "validate") if params[name] is not None}
            lock = lock_module(module, [values[value.name] for value in function.inputs], source, gate, input_files)
    write_placement(lock, path)
    out.print(str(tuned), markup=False)
    out.print(f"{path}: {_describe_baseline(lock.baseline)}", markup=False)
    return 0


def _find_placement(module: XRTModule, values: dict[str, Any], budget: float, *, retune: bool) -> Any:
    if not retune:
        module.plan_for(**values)  # which shows by itself how far a search is
        return module.tuned
    with show_search(budget) as report:
        return module.tune(**values, progress=report)


def _relate(file: str | Path, lock: Path) -> str:
    return os.path.relpath(file, lock.absolute().parent)


def _describe_baseline(gate: Baseline | None) -> str:
    if gate is None:
        return "locked; no other plan could run, so a check has nothing to hold its time against"
    text = f"locked at {gate.ratio:.3f} ({gate.low:.3f} to {gate.high:.3f}) of the time of {gate.plan}, {gate.rounds} rounds"
    doubt = (gate.high - gate.low) / gate.ratio
    if doubt <= NOISY:
        return text
    return f"{text}; the machine is noisy, so a check can tell no change of less than about {doubt:.0%}: lock it on a quiet one"


UNDECIDED = 3
"""The exit code of a check that could not be decided, where that is to fail."""


def parse_percent(context: click.Context, option: click.Parameter, text: str) -> float:
    """Return a part from a text such as ``5%``; raises OptionError for another form, a number without ``%`` too."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < 10_000:
        raise OptionError(f"{option.opts[0]} takes a percentage such as 5%; got {text!r}")
    if not percent:
        meant = value if value >= 1 or value == 0 else 100 * value
        raise OptionError(f"{option.opts[0]} takes a percentage such as 5%; got {text!r}. Did you mean {meant:g}%?")
    return value / 100


@click.command("check")
@click.argument("lock", type=click.Path(dir_okay=False))
@click.option(
    "--max-regress",
    "limit",
    default="5%",
    show_default=True,
    callback=parse_percent,
    metavar="PERCENT",
    help="Largest growth of the ratio, and loss of throughput, in per cent",
)
@click.option(
    "--undecided",
    default="pass",
    show_default=True,
    type=click.Choice(["pass", "fail"]),
    help="Result of a check that the noise leaves undecided: exit code 0, or 3",
)
@click.option(
    "--budget",
    default="30s",
    show_default=True,
    callback=parse_seconds,
    metavar="TIME",
    help="Longest time for turns of the plans, and again for loads: 30s, 2m",
)
@click.option("--model", "model", metavar="MODEL", help="The model [default: the path in the lockfile]")
@click.option(
    *ENGINE_NAMES[:-1],
    "named",
    metavar="ENGINES",
    help="Engines of the lockfile whose options may name files or code",
)
@click.option(
    "--validate",
    type=click.Path(),
    help="The examples on which the error of a plan of lower precision was measured [default: the path in the lockfile]",
)
@click.option("--once", is_flag=True, help="Report a regression without a second process")
@click.option(
    "--confirm-limit",
    "patience",
    default="5m",
    show_default=True,
    callback=parse_seconds,
    metavar="TIME",
    help="Time beyond --budget after which the second process counts as hung: 30s, 2m",
)
@add_json
def check_command(
    lock: str,
    limit: float,
    undecided: str,
    budget: float,
    model: str | None,
    named: str | None,
    validate: str | None,
    once: bool,
    patience: float,
    as_json: bool,
) -> int:
    """Compare the plan of LOCK with its competitor: both take turns here, and the ratio is compared with the lockfile's.

    A lock that was tuned for throughput is put under load again, in its configuration: it must serve the rate of the lock, less
    --max-regress.

    The exit code is 1 when the plan or its throughput has become worse by more than --max-regress for certain, the plan cannot
    run, computes wrongly, or has an error over the budget of the lockfile; otherwise 0. Where the noise is too large for a
    decision, the exit code is 0, or 3 with --undecided=fail. A regression must appear in two processes; the exit code is 2 when
    the second one hangs.
    """
    _check_is_lock(lock)
    record = read_lock(lock)
    request: dict[str, Any] = {"lock": lock, "model": model, "named": named, "limit": limit, "budget": budget}
    request["validate"] = validate
    try:
        outcome, load, elsewhere = _check_lock(record, **request)
    except (LockError, EngineError, PlanError) as error:
        return _report_failure(error, as_json=as_json)
    if not once and not all(outcomes := (outcome, *([] if load is None else [load]))):
        outcome, load = _confirm_all(outcomes, request, patience)
    if as_json:
        loads = {} if load is None else {"load": load.to_dict()}
        out.print_json(json.dumps({**outcome.to_dict(), **loads, "differs": list(elsewhere)}))
        return _exit_code(outcome, load, undecided)
    for line in elsewhere:
        out.print(f"not where it was locked: {line}", markup=False)
    for one in (outcome, *([] if load is None else [load])):
        out.print(str(one), markup=False)
    if "undecided" in _list_states(outcome, load):
        passes = "it passes; --undecided=fail makes it fail" if undecided == "pass" else "it fails, as --undecided=fail asks"
        out.print(f"{passes}. Give it more --budget, or a quieter machine", markup=False)
    return _exit_code(outcome, load, undecided)


def _check_is_lock(path: str) -> None:
    """Raise OptionError for what is a model: it would be advised to write a lock over it."""
    if Path(path).is_file() and not Path(path).stat().st_size:
        raise OptionError(f"{path} is an empty file, and `xrt check` takes a lockfile; `xrt lock MODEL -o FILE.lock` writes one")
    is_model = Path(path).suffix == ".onnx" or is_bundle(path) or (not os.path.lexists(path) and path in models.names())
    if is_model:
        raise OptionError(f"{path} is a model, and `xrt check` takes a lockfile; `xrt lock {path}` writes one")


def _list_states(outcome: RegressionResult, load: LoadCheckResult | None) -> list[str]:
    return [outcome.state, *([] if load is None else [load.state])]


def _exit_code(outcome: RegressionResult, load: LoadCheckResult | None, undecided: str) -> int:
    """Return the exit code of a check."""
    states = _list_states(outcome, load)
    if "regressed" in states:
        return 1
    return UNDECIDED if "undecided" in states and undecided == "fail" else 0


def _confirm_all(outcomes: Sequence[Any], request: Mapping[str, Any], patience: float) -> tuple[Any, Any]:
    """Return the outcomes, undecided where another process does not see the regression; raises RunFailed where that hangs.

    Where memory and threads come to lie differs from one process to the next, and with it sometimes the ratio, which is
    steady within each.
    """
    budget = request["budget"]
    worker = WorkerProcess("xrt.cli.tune:serve_confirmation")
    try:
        answer = worker.ask(request, seconds=budget * len(outcomes) + patience)[0]
    except WorkerTimedOut:
        raise RunFailed(
            f"the plan has regressed, and the process that was to confirm it hung: it was not done after {budget:g} s of "
            f"--budget and {patience:g} s more. --confirm-limit gives it longer, --once does without it"
        ) from None
    except WorkerFailure:
        answer = {}  # nothing speaks against it
    finally:
        worker.end()
    states = (answer.get("state"), answer.get("load"))
    several = [_confirm(one, second) for one, second in zip(outcomes, states, strict=False)]
    return several[0], several[1] if len(several) > 1 else None


def _confirm(outcome: Any, second: str | None) -> Any:
    """Return an outcome, undecided where it is a regression that the state of a second process contradicts."""
    if outcome or second not in ("held", "undecided", "alone"):
        return outcome
    return replace(outcome, state="undecided", note=f"one process saw a regression; a second one, asked to confirm it: {second}")


def serve_confirmation(handle: str) -> None:
    """Serve the socket of that number: the state of a check, in the process that confirms."""

    def answer(request: Request) -> Message:
        outcome, load, _ = _check_lock(read_lock(request.message["lock"]), **request.message)
        return {"state": outcome.state, "load": None if load is None else load.state}

    serve(handle, answer)


def _report_failure(error: XRTError, *, as_json: bool) -> int:
    reason = " ".join(str(error).split())
    if as_json:
        out.print_json(json.dumps({"state": "cannot run", "reason": reason}))
    else:
        out.print(f"cannot run: {reason}", markup=False)
    return 1


def _check_named(lock: PlacementFile, named: Sequence[str]) -> None:
    """Raise LockError for an engine of the lock that only who checks may ask for, and has not: a file chooses no code.

    Raises OptionError for one that the lock does not have.
    """
    specs = _list_specs(lock)
    for spec in named:
        if spec not in specs:
            raise OptionError(f"--engines names {spec!r}; the lock has {', '.join(specs)}.{did_you_mean(spec, specs)}")
    for spec in specs:
        if spec not in named and (reason := why_not_chosen(spec, "lock")):
            raise LockError(f"{reason}; pass --engines {spec!r} if that is what you want")


def _list_specs(lock: PlacementFile) -> list[str]:
    return list(dict.fromkeys(run.engine for run in (*lock.plan, *(lock.baseline.ranges if lock.baseline else ()))))


def _check_lock(
    record: PlacementFile,
    lock: str,
    model: str | None,
    named: str | None,
    limit: float,
    budget: float,
    validate: str | None = None,
) -> Any:
    """Return the outcome, that of a load, and a line for each thing that differs from where it was locked.

    ``lock`` is the path of the file; the outcome of a load is None for a lock without one.
    """
    _check_named(record, split_specs(named) if named is not None else [])
    return _run_check(record, Path(lock), model, limit, budget, validate)


def _run_check(lock: PlacementFile, path: Path, model: str | None, limit: float, budget: float, validate: str | None) -> Any:
    with _of_the_lock("model"):
        whole = _load_whole(lock, path, model)
        function = _specialize(whole, lock)
    examples = _read_validation(lock, path, whole, validate)
    engines = _list_specs(lock)
    if not engines:
        raise LockError("the lock has no plan")
    values, stand_ins = _read_values(function, lock, path)
    options: dict[str, Any] = {"precision": lock.options.get("precision", "fp32"), "device": lock.options.get("device", "cpu")}
    options["devices"] = {
        name.removeprefix(DEVICE_OF): device
        for name, device in lock.options.items()
        if name.startswith(DEVICE_OF) and name.removeprefix(DEVICE_OF) in engines
    }
    threads = _read_number(lock.options.get("threads", "1"), "threads")
    with _of_the_lock("options"):
        made = XRTModule(function, engines, strict=True, threads=threads, **options)
    with WorkStatus("running the plan"), made as module:
        arrays = [values[value.name] for value in function.inputs]
        outcome, differs = check_module(module, lock, arrays, limit, budget, examples)
    load = None if lock.serving is None else _repeat_load(whole, lock, arrays, limit, budget, options)
    return outcome, load, (*differs, *stand_ins)


def _repeat_load(
    whole: Function, lock: PlacementFile, values: Sequence[Any], limit: float, budget: float, options: Mapping[str, Any]
) -> LoadCheckResult:
    """Return what comes of the load of a lock that was tuned for throughput."""
    assert lock.serving is not None
    threads, seed = lock.serving.instances * lock.serving.threads, _read_number(lock.model.get("seed", "0"), "seed")
    with _of_the_lock("configuration of serving"):
        made = XRTModule(whole, [*_list_specs(lock), "auto"], strict=True, threads=threads, **options)
    with WorkStatus("repeating the load"), made as module:
        return check_module_load(module, lock, values, limit, budget, seed=seed)


@contextmanager
def _of_the_lock(what: str) -> Iterator[None]:
    """Say of an OptionError that it is about what the lock holds, and what to do."""
    try:
        yield
    except OptionError as error:
        reason = str(error).rstrip(".")
        raise LockError(f"the lock's {what} cannot be used: {reason}; mend it, or write it again with `xrt lock`") from error


def _read_values(function: Function, lock: PlacementFile, path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the values that the lock was made on, and a line for each unavailable one, which a random value replaces."""
    values = sample_inputs(function, _read_number(lock.model.get("seed", "0"), "seed"))
    unavailable = []
    for name in lock.values.keys() & values.keys():
        file = path.absolute().parent / lock.values[name]
        try:
            array = _read_array(file, name)
            is_ = str(infer_type(array))
        except (InputError, ModelError) as error:
            unavailable.append(f"the values of input {name!r}, in {lock.values[name]}, are not to be had: {error}")
            continue
        if is_ == (was := lock.inputs.get(name, "")):
            values[name] = array
        else:
            unavailable.append(f"the values of input {name!r}, in {lock.values[name]}, were {was} and are {is_}")
    return values, sorted(unavailable)


def _read_array(file: Path, name: str) -> Any:
    if file.suffix != ".npz":
        return read_npy(file)
    arrays = read_npz(file)
    if name not in arrays:
        raise InputError(f"it has no array {name!r}")
    return arrays[name]


def _read_validation(lock: PlacementFile, path: Path, function: Function, examples_file: str | None) -> list[Any] | None:
    """Return the examples on which the error of the lock was measured; None where it has none, or they are not there."""
    if lock.precision is None:
        return None
    named = {name: path.absolute().parent / lock.model[name] for name in ("validate", "calibrate") if name in lock.model}
    file = Path(examples_file) if examples_file is not None else next(iter(named.values()), None)
    if file is None or not file.exists():
        return None
    batches = read_batches(file, function)
    is_shared = examples_file is None and "validate" not in named  # the last fifth of the examples of calibration
    return batches[-max(1, len(batches) // 5) :] if is_shared else batches


def _load_whole(lock: PlacementFile, path: Path, model: str | None) -> Function:
    """Return the model that was given, or the one that the lock names: a file in the lock's directory, or a shipped one."""
    source = lock.model.get("source", "")
    nearby = path.absolute().parent / source
    if not model and not source:
        raise LockError("the lock does not say where its model is; pass --model")
    text = model or (str(nearby) if nearby.is_file() else source)
    return set_dims(load_with_options(text), read_locked_dims(lock))


def _specialize(function: Function, lock: PlacementFile) -> Function:
    """Return the model with the shapes of the lock's inputs."""
    try:
        return specialize(function, read_shapes(lock, function))
    except InputError:  # it is another model; later checks report more about it
        return function


def _read_number(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise LockError(f"the lock's {what} must be a number; it is {text[:40]!r}")
    return int(text)
