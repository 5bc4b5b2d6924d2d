"""``xrt bench``, ``tune``, ``lock`` and ``check``: compare engines, and find, store and test the fastest placement."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt import models
from xrt.bench import AUTO, BenchCandidate, BenchOptions, BenchReport, BenchTarget, Group, ReportRow, compare_engines, page
from xrt.bench.targets import from_files, read_input_files, set_dims, set_shapes
from xrt.cache import DiskTier, default_cache
from xrt.cli import inputs, options
from xrt.cli.screen import complain, format_ms, out, print_facts, print_json, print_lines, show_status, show_table, show_times
from xrt.engines import ExecutionOptions, split_specs
from xrt.engines.contract import registry
from xrt.engines.contract.registry import probe_all, why_forbidden
from xrt.errors import EngineError, InputError, LockError, ModelError, OptionError, PlanError, did_you_mean
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.bundle import is_bundle
from xrt.formats.placement_file import VERDICTS, Baseline, PlacementFile, write_placement
from xrt.graph import FrozenDict
from xrt.graph.device_names import check_device
from xrt.graph.types import infer_type
from xrt.html.views import format_bytes, format_count
from xrt.models import sample_inputs
from xrt.module import XRTModule, validate_budget
from xrt.module.lockfile import check_module, lock_module
from xrt.module.tuning import tune_throughput
from xrt.passes import specialize
from xrt.placement.records import DEVICE_OF, read_lock, read_shapes
from xrt.placement.report import describe_precision, format_error, list_pareto_plans, render_tuning_page
from xrt.placement.throughput import COLUMNS, NUMERIC_COLUMNS as POINT_NUMBERS, list_cells, render_throughput_page
from xrt.runtime import get_default_budget

if TYPE_CHECKING:
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.graph import Function
    from xrt.placement import TuningResult
    from xrt.placement.race import RegressionResult


DETAILS = ("regions", "note")
"""Columns that are shown if the output is not a terminal, or with -v."""
INTERRUPTED, UNDECIDED = 130, 3  # exit codes
FILE_TIME_STEP = 2.0
"""A file system may round the time of a file down by this many seconds."""
COMPARISON_SECONDS = 5.0
"""Time of the comparison with another plan, whose ratio `xrt tune --objective throughput` stores in the lockfile."""


@click.command("tune")
@options.add_tuning_options
@options.add_choice(
    "--objective", ["latency", "throughput"], "Minimize the time of a call, or maximize requests per second within --p99"
)
@click.option(
    "--p99", type=options.TIME, help="With throughput: limit on the 99th percentile of the latency: 20ms, 1s [default: no limit]"
)
@click.option(
    "--batch",
    "batches",
    type=options.NUMBERS,
    help="Size of the first axis of the inputs; with throughput the batch sizes to measure: 1,2,4 [default: 1,2,4,8,16,32]",
)
@click.option(
    "--instances",
    type=options.NUMBERS,
    help="With throughput: numbers of concurrent calls to measure, which share the threads "
    "[default: 1,2,4,... up to the threads]",
)
@click.option(
    "--batch-dim",
    metavar="NAME",
    help="With throughput: the symbolic dim that counts requests [default: the first of all inputs and outputs]",
)
@click.option("-o", "--output", "target", type=options.TARGET, help="With throughput: write the result to this lockfile")
@options.add_html
@options.add_json
@click.option("-v", "--verbose", is_flag=True, help="Also show intervals, regions, notes, errors, and what was not measured")
def tune_command(model: str, **params: Any) -> int:
    """Find the fastest engine, or mixture of engines, for MODEL: an ONNX file or a shipped model.

    With --objective throughput, find the configuration that serves most requests per second, of which 99 % finish within
    --p99: batch size, concurrent calls, and the engines for each batch size. Each request is a row of the inputs. The exit code
    is 1 if no configuration meets --p99.

    The result is stored for these engines, threads and shapes: XRTModule(MODEL, engine="auto") uses it without measuring, or
    engine=["ort", "xla", "auto"] after --engines ort,xla. With --max-error, plans of reduced precision compete if their error,
    measured on --validate, is within the limit. Ctrl-C ends the search with the best plan so far, and exit code 130. The exit
    code is 1 if nothing could be measured.
    """
    if params["objective"] == "throughput":
        return _tune_throughput(model, params)
    if params["batches"] is not None and len(params["batches"]) == 1:
        (params["batch"],) = params["batches"]
        params["batches"] = None
    # Options of the other objective are an error rather than ignored.
    flags = {"batches": "batch with several sizes", "batch_dim": "batch-dim", "target": "output"}
    for name in ("p99", "batches", "instances", "batch_dim", "target"):
        if params[name] is not None:
            flag = flags.get(name, name)
            raise OptionError(f"--{flag} is for throughput; pass --objective throughput too, or leave it out")
    keywords = _read_keywords(params)
    function, values = _load(model, params)
    lowering = inputs.precision_keywords(params, function)
    began = time.time() - FILE_TIME_STEP
    with XRTModule(function, **keywords, **lowering) as module:
        tuned, threads = module.tune(**values), module.threads
    options.write_page(params["html"], lambda: render_tuning_page(tuned, model))
    if params["as_json"]:
        print_json({"model": model, "threads": threads, **tuned.to_dict()})
    else:
        _show_result(tuned, threads, verbose=params["verbose"])
        if tuned.how == "measured":
            keywords["threads"] = threads
            if lowering:
                keywords["max_error"] = params["max_error"]
            _show_stored(keywords, began)
    return {"interrupted": INTERRUPTED, "priority": 1}.get(tuned.how, 0)


def _read_keywords(params: dict[str, Any]) -> dict[str, Any]:
    keywords = options.module_keywords({**params, "engine": f"{params['engine']},auto"})
    return {**keywords, "engine": list(dict.fromkeys(keywords["engine"]))}


def _load(model: str, params: dict[str, Any]) -> tuple[Function, dict[str, Any]]:
    """Load a model; return it with a value for each input by name, at the sizes of ``--dim``, to measure with.

    The dims of the returned Function remain symbolic, because the chosen placement is used for all sizes.
    """
    function = inputs.load_with_options(model)
    inputs.replace_batch_by_dim(function, params)
    sized = set_dims(function, options.parse_dims(params["dims"]))
    options.check_sizes(set_shapes(sized, from_files(params["files"], sized)))
    return function, inputs.all_inputs(params["files"], sized, params["seed"])


def _show_result(tuned: TuningResult, threads: int, *, verbose: bool) -> None:
    """Print the compared plans as a table, then the chosen plan, remarks, and its precision if there is an error budget."""
    record, rows = tuned.record, []
    for candidate in record.candidates:
        ends = candidate.ratio_interval
        ratio = f"{ends.median:.3f} ({ends.low:.3f}-{ends.high:.3f})" if ends else ""
        regions = str(len(candidate.plan.launches))
        ms = format_ms(candidate.seconds)
        rows.append((candidate.title, ms, ratio, VERDICTS[candidate.verdict], regions, candidate.note))
    show_times("plan", DETAILS, rows, verbose=DETAILS if verbose else ())
    head, *_ = str(tuned).splitlines()
    print_lines("ratio: to the best single engine, with its 95 % interval")
    print_lines(f"{head} ({format_count(threads, 'thread')}), in {record.spent:.1f} of {record.budget:g} s")
    if verbose:
        print_lines(f"{format_count(tuned.measurements, 'measurement')} of regions, {format_count(record.rounds, 'round')}")
    print_lines(*(tuned.remarks if verbose else tuned.short_remarks))
    if record.precision is not None:
        print_lines(*describe_precision(record.precision))
        if verbose:
            _show_errors(record.precision)


def _show_errors(record: PrecisionRecord) -> None:
    """Print error and time of the measured plans. A plan is marked as best if all faster plans have a larger error."""
    rows = [
        (
            "*" if is_best else "",
            candidate.precision,
            candidate.plan,
            str(candidate.exact_count or ""),
            format_error(candidate.error, record.measure) if candidate.precision != "fp32" else "0",
            format_ms(candidate.seconds),
        )
        for candidate, is_best in list_pareto_plans(record)
    ]
    show_table(("best", "precision", "plan", "in fp32", "error", "ms"), rows, numbers=("in fp32", "error", "ms"))


def _show_stored(keywords: Mapping[str, Any], began: float) -> None:
    """Print the call that creates a module with the stored result, or that no result was stored since the time ``began``."""
    disk = default_cache().disk
    if not isinstance(disk, DiskTier):
        return
    arguments = {name: value for name, value in keywords.items() if name != "budget"}
    if len(arguments["engine"]) == 1:
        (arguments["engine"],) = arguments["engine"]
    if arguments["device"] == "cpu":  # the default
        del arguments["device"]
    call = ", ".join(f"{name}={value!r}" for name, value in sorted(arguments.items()) if value)
    is_stored = any(file.stat().st_mtime >= began for file in (disk.store.root / "decisions").glob("*.json"))
    stored = f"stored: XRTModule(MODEL, {call}) uses it for these shapes, whatever its budget"
    print_lines(stored if is_stored else f"not stored in {disk.store.root}; `xrt lock` writes a placement to a file")


def _tune_throughput(model: str, params: dict[str, Any]) -> int:
    keywords = _read_keywords(params)
    budget, target = keywords.pop("budget"), params["target"]
    function = inputs.load_with_sizes(model, params)
    values = inputs.all_inputs(params["files"], function, params["seed"]) if params["files"] else {}
    keywords |= inputs.precision_keywords(params, function)
    arguments = {name: params[name] for name in ("p99", "batches", "instances", "batch_dim") if params[name] is not None}
    source = {"source": model, "seed": str(params["seed"])}
    # The placement is locked while its module is open; the file needs the serving record too, which follows at the end.
    locks: list[PlacementFile] = []

    def lock_placement(module: XRTModule, example: Sequence[Any]) -> None:
        if target:
            locks.append(lock_module(module, example, source, COMPARISON_SECONDS))

    with XRTModule(function, **keywords) as module, show_status("tuning for throughput") as status:
        arguments |= {"seed": params["seed"], "budget": budget, "use": lock_placement}
        result = tune_throughput(module, kwargs=values, progress=lambda state: status.update(state.text), **arguments)
        threads = module.threads
    if params["as_json"]:
        print_json({"model": model, "threads": threads, **result.to_dict()})
    else:
        cells = [list_cells(candidate) for candidate in result.candidates]
        show_table(COLUMNS, cells, numbers=POINT_NUMBERS, whole=("verdict",))
        print_lines(result.headline, result.summary, *result.notes)
    options.write_page(params["html"], lambda: render_throughput_page(result, model))
    record = result.to_record() if locks else None
    if record is not None:
        (lock,) = locks
        write_placement(lock.replace(serving=record), target)
        if not params["as_json"]:
            print_lines(f"{target}: written; XRTModule(MODEL, engine='auto', lock=...) uses it")
    if result.is_interrupted:
        return INTERRUPTED
    return 0 if result.configuration else 1


MAX_QUIET_WIDTH = 0.1
"""If the interval of the ratio is wider than this share of the ratio, `xrt lock` reports that the machine is noisy."""


@click.command("lock")
@options.add_tuning_options
@options.add_batch
@click.option("-o", "--output", "target", type=options.TARGET, help="The lockfile [default: MODEL.lock here]")
@options.add_time("--gate", "10s", "Time of the comparison with the best other plan")
@click.option("--retune", is_flag=True, help="Search even if a decision is stored")
def lock_command(model: str, target: Path | None, gate: float, retune: bool, **params: Any) -> int:
    """Write the placement of MODEL, with reasons, machine and versions, as a file for version control.

    XRTModule(MODEL, engine="auto", lock=FILE) uses the plan without measuring. `xrt check FILE` tests whether the plan is still
    as fast, compared with another plan, on the same inputs: the lockfile has their shapes, and the seed or the files of their
    values. The placement is measured as by `xrt tune`, unless a measurement is stored. The plan serves
    all sizes of symbolic dims; it is measured at those of --dim.
    """
    path = options.choose_target(target, model, ".lock")
    function, values = _load(model, params)
    files = read_input_files(params["files"], function)
    with XRTModule(function, **_read_keywords(params), **inputs.precision_keywords(params, function)) as module:
        if retune:
            module.tune(**values)
        else:
            module.plan_for(**values)
        tuned = module.tuned
        if tuned is not None and tuned.how == "interrupted":
            unchanged = f"; {path} is as it was" if path.exists() else ""
            complain("interrupted", f"nothing is locked{unchanged}")
            return INTERRUPTED
        # Files are named relative to the lock, a shipped model by its name.
        relate = partial(os.path.relpath, start=path.absolute().parent)
        source = {"source": relate(model) if os.path.lexists(model) else model, "seed": str(params["seed"])}
        source |= {name: relate(params[name]) for name in ("calibrate", "validate") if params[name] is not None}
        input_files = {name: relate(file) for name, (file, _) in files.items()}
        with show_status("comparing the plan with another"):
            lock = lock_module(module, [values[value.name] for value in function.inputs], source, gate, input_files)
    write_placement(lock, path)
    print_lines(str(tuned), f"{path}: {_describe_baseline(lock.baseline)}")
    return 0


def _describe_baseline(baseline: Baseline | None) -> str:
    if baseline is None:
        return "locked; no other plan could run, so a check has no time to compare with"
    ratio, low, high = baseline.ratio, baseline.low, baseline.high
    text = f"locked at {ratio:.3f} ({low:.3f} to {high:.3f}) of the time of {baseline.plan}, {baseline.rounds} rounds"
    if baseline.doubt > MAX_QUIET_WIDTH:
        text += f"; the machine is noisy, so a check can detect only changes of about {baseline.doubt:.0%}: lock on a quiet one"
    return text


@click.command("check")
@click.argument("lock", type=click.Path(dir_okay=False))
@options.option("--max-regress", "limit", default="5%", type=options.SHARE, help="Largest growth of the ratio: 5%, 0.05")
@options.add_choice("--undecided", ["pass", "fail"], "Result of a check that the noise leaves undecided: exit code 0, or 3")
@options.add_time("--budget", "30s", "Time of the comparison")
@click.option("--model", metavar="MODEL", help="The model [default: the path in the lockfile]")
@options.add_engines("Engines of the lockfile whose options may name files or code", None)
@click.option(
    "--validate",
    type=click.Path(),
    help="The examples on which the error of a plan of reduced precision was measured [default: the path in the lockfile]",
)
@options.add_json
def check_command(lock: str, undecided: str, as_json: bool, **params: Any) -> int:
    """Compare the plan of LOCK with its competitor: both run in turns, and the ratio is compared with the lockfile's.

    The exit code is 1 if the plan is certainly slower by more than --max-regress, cannot run, computes wrong results,
    or has an error over the budget of the lockfile; otherwise 0. If the noise is too large for a decision, the exit code is 0,
    or 3 with --undecided=fail.
    """
    _check_is_lock(lock)
    record = read_lock(lock)
    try:
        result, differences = _run_check(record, Path(lock), **params)
    except (LockError, EngineError, PlanError) as error:
        reason = " ".join(str(error).split())  # in one line: a PlanError has a line for each node
        print_facts(as_json, {"state": "cannot run", "reason": reason}, f"cannot run: {reason}")
        return 1
    if as_json:
        print_json({**result.to_dict(), "differs": list(differences)})
    else:
        print_lines(*(f"not where it was locked: {line}" for line in differences), str(result))
        if result.state == "undecided":
            passes = "it passes; --undecided=fail makes it fail" if undecided == "pass" else "it fails, as --undecided=fail asks"
            print_lines(f"{passes}. Give it more --budget, or a quieter machine")
    if result.state == "undecided" and undecided == "fail":
        return UNDECIDED
    return 1 if result.state == "regressed" else 0


def _check_is_lock(path: str) -> None:
    """Raise OptionError for a model or an empty file. The error of `read_lock` would suggest to overwrite it with a lock."""
    if Path(path).is_file() and not Path(path).stat().st_size:
        raise OptionError(f"{path} is an empty file, and `xrt check` takes a lockfile; `xrt lock MODEL -o FILE.lock` writes one")
    if Path(path).suffix == ".onnx" or is_bundle(path) or (not os.path.lexists(path) and path in models.names()):
        raise OptionError(f"{path} is a model, and `xrt check` takes a lockfile; `xrt lock {path}` writes one")


def _run_check(
    lock: PlacementFile, path: Path, *, model: str | None, engine: str | None, limit: float, budget: float, validate: str | None
) -> tuple[RegressionResult, tuple[str, ...]]:
    """Measure the plan of a lock; also return how the machine and the inputs differ from those recorded in the lock."""
    competitor = lock.baseline.ranges if lock.baseline else ()
    engines = list(dict.fromkeys(run.engine for run in (*lock.plan, *competitor)))
    _check_engine_choice(engines, split_specs(engine) if engine is not None else [])
    folder, source = path.absolute().parent, lock.model.get("source", "")
    if not model and not source:
        raise LockError("the lock does not say where its model is; pass --model")
    with _convert_to_lock_error("model"):
        nearby = folder / source  # paths in a lock are relative to it; the name of a shipped model is no file there
        declared = inputs.load_with_options(model or (str(nearby) if nearby.is_file() else source))
    try:
        function = specialize(declared, read_shapes(lock, declared))
    except InputError:  # another model; later checks report more about it
        function = declared
    examples = _read_validation(lock, folder, declared, validate)
    if not engines:
        raise LockError("the lock has no plan")
    values, unavailable = _read_values(function, lock, folder)
    devices = {name.removeprefix(DEVICE_OF): device for name, device in lock.options.items() if name.startswith(DEVICE_OF)}
    keywords: dict[str, Any] = {
        "precision": lock.options.get("precision", "fp32"),
        "device": lock.options.get("device", "cpu"),
        "devices": {engine: device for engine, device in devices.items() if engine in engines},
        "threads": _read_number(lock.options, "threads", "1"),
    }
    with _convert_to_lock_error("options"):
        # Strict: otherwise a fallback would be measured in place of the plan.
        module = XRTModule(function, engines, strict=True, **keywords)
    with show_status("running the plan"), module:
        arrays = [values[value.name] for value in function.inputs]
        result, differences = check_module(module, lock, arrays, limit, budget, examples)
    return result, (*differences, *unavailable)


def _check_engine_choice(engines: Sequence[str], allowed: Sequence[str]) -> None:
    for spec in allowed:
        if spec not in engines:
            raise OptionError(f"--engines names {spec!r}; the lock has {', '.join(engines)}.{did_you_mean(spec, engines)}")
    for spec in engines:
        if spec not in allowed and (reason := why_forbidden(spec, "lock")):
            raise LockError(f"{reason}; pass --engines {spec!r} if that is what you want")


@contextmanager
def _convert_to_lock_error(part: str) -> Iterator[None]:
    try:
        yield
    except OptionError as error:
        reason = str(error).rstrip(".")
        raise LockError(f"the lock's {part} cannot be used: {reason}; repair it, or write it again with `xrt lock`") from error


def _read_values(function: Function, lock: PlacementFile, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Read the input values of a lock by name. Also return a message for each unavailable input, whose value is random."""
    values = sample_inputs(function, _read_number(lock.model, "seed", "0"))
    unavailable = []
    for name in sorted(lock.values.keys() & values.keys()):
        subject = f"the values of input {name!r}, in {lock.values[name]},"
        file, expected = folder / lock.values[name], lock.inputs.get(name, "")
        try:
            arrays = read_npz(file) if file.suffix == ".npz" else {name: read_npy(file)}
            if name not in arrays:
                raise InputError(f"it has no array {name!r}")
            type_ = str(infer_type(arrays[name]))
        except (InputError, ModelError) as error:
            unavailable.append(f"{subject} are not available: {error}")
            continue
        if type_ == expected:
            values[name] = arrays[name]
        else:
            unavailable.append(f"{subject} were {expected} and are {type_}")
    return values, unavailable


def _read_validation(lock: PlacementFile, folder: Path, function: Function, validate: str | None) -> list[Any] | None:
    """Read the examples on which the error of the plan was measured; None if it was not, or their file is missing."""
    name = "validate" if "validate" in lock.model else "calibrate"
    recorded = folder / lock.model[name] if name in lock.model else None
    file = Path(validate) if validate is not None else recorded
    if lock.search.precision is None or file is None or not file.exists():
        return None
    batches = inputs.read_batches(file, function)
    if validate is not None or name == "validate":
        return batches
    # Without --validate the error was measured on the last fifth of --calibrate.
    count = max(2, len(batches) // 5)
    return batches[-count:]


def _read_number(facts: Mapping[str, str], name: str, default: str) -> int:
    text = facts.get(name, default)
    if not text.isdecimal() or len(text) > 9:
        raise LockError(f"the lock's {name} must be a number; it is {text[:40]!r}")
    return int(text)


COSTS = ("ms from-to", "alone ms", "first ms", "compile s", "peak", "regions", "off by")
"""Columns of costs if the output is not a terminal."""
SHOWN_COSTS = ("ms from-to", "first ms", "compile s", "peak", "off by")
"""Columns that -v shows on a terminal, where they fit 80 columns."""


@click.command("bench")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.add_engines(
    "A candidate: ort, auto, 'ort,tvm,auto', or 'tvm,ort with Conv|MatMul=ort'; repeatable",
    "each ready engine",
    metavar="CANDIDATE",
    multiple=True,
)
@click.option("--threads", type=options.NUMBERS, help=f"Thread counts: 1,2 [default: {options.CORES}]")
@click.option("--batch", type=options.NUMBERS, help="Batch sizes: 1,8 [default: the model's own]")
@options.device_options
@options.add_dims
@options.add_inputs
@options.option("--rounds", default=20, type=click.IntRange(2), help="Turns of each candidate")
@options.add_time("--budget", "20s", "With auto: time of the search")
@options.add_time("--time-limit", "2m", "Time of the start of a candidate, without its search")
@options.add_seed("Seed of weights and inputs")
@options.add_json
@options.add_html
@click.option("-v", "--verbose", is_flag=True, help="Also show intervals, compile times, memory, versions and the machine")
@click.pass_obj
def bench_command(typed: tuple[str, ...], /, models: tuple[str, ...], as_json: bool, verbose: bool, **params: Any) -> int:
    """Compare engines on MODELs: shipped ones (squeezenet, 'bert{layers=2}'), or paths of ONNX files or bundles.

    Each candidate has its own process and the whole model: no other engine replaces it. The exit code is 1 when
    the results of one differ from the reference engine's, 2 when none ran. With --device, a call includes the copies of its
    inputs from the host, and ends when its results are computed.
    """
    dims, budget = options.parse_dims(params["dims"]), params["budget"]
    targets = [BenchTarget.parse(model, size) for model in models for size in params["batch"] or (None,)]  # None: the model's own
    targets = [replace(target, sizes=FrozenDict({**dims, **target.sizes}), files=params["files"]) for target in targets]
    if params["files"] and len(targets) > 1:
        raise OptionError("--input is for one model at one batch size; name one MODEL and at most one --batch, or leave it out")
    # All models and devices are checked before the first measurement, which may take minutes.
    for target in targets:
        function = target.load() if params["files"] else target.check()
        if function is not None:
            options.check_sizes(set_shapes(function, from_files(target.files, function)))
    candidates = _parse_candidates(params["engine"])
    devices = _check_devices(params["device"], params["devices"] or {}, candidates)
    thread_counts = params["threads"] or (get_default_budget(),)
    threads = dict.fromkeys(validate_budget(ExecutionOptions(threads=count)) for count in thread_counts)
    settings = BenchOptions(
        rounds=params["rounds"],
        limit_seconds=params["time_limit"] + budget,
        seed=params["seed"],
        budget_seconds=budget,
        device=params["device"],
        devices=devices,
    )
    with show_status("") as status:

        def finish(group: Group) -> None:
            if not as_json:
                status.stop()  # otherwise it would write into the table
                show_group(group, verbose=verbose)
                status.start()

        report = compare_engines(targets, candidates, list(threads), settings, status.update, finish)
    options.write_page(params["html"], lambda: page(replace(report, command=shlex.join(["xrt", *typed]))))
    if as_json:
        print_json(report.to_dict())
    else:
        print_lines(*_list_footer(report, verbose=verbose))
    if not any(row.median_seconds for group in report.groups for row in group.rows):
        return 2
    return 0 if report.agrees else 1


def _check_devices(default_device: str, devices: Mapping[str, str], candidates: Sequence[BenchCandidate]) -> FrozenDict[str, str]:
    """Raise an error for an invalid device, and for an engine of ``--devices`` that no candidate has; return ``devices``."""
    for device in (default_device, *devices.values()):
        check_device(device)
    selected = {name for candidate in candidates for name in candidate.select_devices(devices)}
    if missing := next((name for name in devices if name not in selected), None):
        raise OptionError(f"--devices names {missing!r}, which no candidate has: {'; '.join(map(str, candidates))}")
    return FrozenDict(devices)


def _parse_candidates(texts: tuple[str, ...]) -> list[BenchCandidate]:
    if not texts:
        return [BenchCandidate((status.name,)) for status in probe_all() if status.state == "ready"]
    # Unknown names are reported now; otherwise they would be failed candidates at the end of a long run.
    candidates = list(dict.fromkeys(BenchCandidate.parse(text) for text in texts))
    for name in dict.fromkeys(name for candidate in candidates for name in candidate.names if name != AUTO):
        registry.find_entry(name)  # raises UnknownEngine
    return candidates


def show_group(group: Group, *, verbose: bool) -> None:
    """Print the table of a group. On a terminal, which has no column for remarks, lines with the remarks follow."""
    print_lines(group.title)
    rounds = max((len(row.rounds) for row in group.rows), default=0)
    rows, notes = [], []
    for row in group.rows:
        remarks = list(_list_notes(row, rounds))
        notes += [f" {row.candidate}: {remark}" for remark in remarks]
        ratio = "" if row.ratio is None else f"{row.ratio.median:.2f}"
        if row.ratio is not None and row.verdict != "fastest":
            ratio += f" ({row.ratio.low:.2f}-{row.ratio.high:.2f})"
        ms = format_ms(row.median_seconds)
        rows.append((str(row.candidate), ms, ratio, row.verdict, *_list_costs(row), "; ".join(remarks)))
    show_times("engine", (*COSTS, "note"), rows, verbose=SHOWN_COSTS if verbose else ())
    if out.is_terminal:
        print_lines(*notes)
        if any(row.verdict == "too noisy" for row in group.rows):
            print_lines("too noisy to rank: measure again on an idle machine, or with more --rounds")


def _list_costs(row: ReportRow) -> tuple[str, ...]:
    start = row.start
    if start is None or row.median_seconds is None:
        return ("",) * len(COSTS)
    difference = None if row.agreement is None else row.agreement.absolute
    return (
        f"{1e3 * row.interval.low:.4g}-{1e3 * row.interval.high:.4g}" if row.interval else "",
        f"{1e3 * start.alone_seconds:.4g}",
        f"{1e3 * start.first_seconds:.4g}",
        f"{start.compile_seconds:.2f}",
        format_bytes(start.peak_bytes),
        str(len(start.regions)),
        "" if difference is None else f"{difference:.1e}",
    )


def _list_notes(row: ReportRow, rounds: int) -> Iterator[str]:
    """Yield remarks on one candidate: why it failed, how auto chose its plan, and whether it ran fewer than ``rounds``."""
    if row.reason:
        # A reason of many lines is a heading and a list: show the heading, the first item, and the number of other items.
        first, *items = (line.strip() for line in row.reason.splitlines())
        more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
        yield " ".join([first, *items[:1]]) + more
    if row.start is not None and row.start.placement:
        yield row.start.placement[0]
    if row.start is not None and not row.start.steady:
        yield f"not steady after {row.start.warm_calls} calls"
    if row.rounds and len(row.rounds) < rounds:
        yield f"{len(row.rounds)} of {rounds} rounds, which used up its time"


def _list_footer(report: BenchReport, *, verbose: bool) -> Iterator[str]:
    rounds = max((len(row.rounds) for group in report.groups for row in group.rows), default=0)
    yield f"ms: median of {rounds} rounds in turn; ratio: to the fastest, with its 95 % interval"
    if verbose:
        yield "; ".join(f"{engine}: {version}" for engine, version in report.versions.items())
        yield ", ".join(f"{name} {value}" for name, value in report.machine.items())
