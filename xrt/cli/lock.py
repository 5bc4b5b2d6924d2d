"""``xrt lock``: a placement by measurement as a file for version control."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt import models
from xrt.cli.inputs import all_inputs, from_files, list_input_files, read_batches, set_shapes
from xrt.cli.options import (
    ENGINE_NAMES,
    add_batch,
    add_tuning_options,
    check_sizes,
    check_writable,
    input_options,
    isolation_options,
    load_with_options,
    module_keywords,
    parse_dims,
    parse_seconds,
    read_locked_dims,
    set_dims,
    settle_batch,
)
from xrt.cli.quantize import add_precision_options, read_precision_keywords
from xrt.cli.screen import WorkStatus, complain, out
from xrt.cli.tune import INTERRUPTED, format_result
from xrt.engines import split_specs
from xrt.engines.contract.registry import why_not_chosen
from xrt.errors import EngineError, InputError, LockError, ModelError, OptionError, PlanError, RunFailed, XRTError, did_you_mean
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.bundle import is_bundle
from xrt.formats.placement_file import Baseline, PlacementFile, write_placement
from xrt.models import sample_inputs
from xrt.module import XRTModule
from xrt.module.lockfile import check_module, check_module_load, lock_module
from xrt.passes import specialize
from xrt.placement.lockfile import DEVICE_OF, read_lock, read_shapes
from xrt.processes.client import WorkerFailure, WorkerProcess, WorkerTimedOut
from xrt.processes.ipc import Message
from xrt.processes.server import Request, serve
from xrt.runtime.inputs import infer_type

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.placement.regression_check import RegressionResult
    from xrt.placement.throughput.load_check import LoadCheckResult

__all__ = ["check_command", "command"]

NOISY = 0.1
"""Part of a ratio that its interval may be wide before the lock is called too vague for a gate."""


@click.command("lock")
@click.argument("model")
@add_tuning_options
@add_batch
@isolation_options
@input_options
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), help="The lockfile [default: MODEL.lock here]")
@click.option(
    "--budget", default="60s", show_default=True, callback=parse_seconds, metavar="TIME", help="Time of the search: 60s, 2m"
)
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
def command(
    model: str,
    files: tuple[str, ...],
    seed: int,
    target: str | None,
    budget: float,
    gate: float,
    retune: bool,
    **given: Any,
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
    settle_batch(function, given)
    sized = set_dims(function, parse_dims(given["dims"]))
    check_sizes(set_shapes(sized, from_files(files, sized)))
    values = all_inputs(files, sized, seed)
    given_by = {name: _relate(file, path) for name, file in list_input_files(files, function).items()}
    keywords = {**module_keywords(given), **read_precision_keywords(given, function)}
    with XRTModule(function, **{**keywords, "engine": [*keywords["engine"], "auto"]}, budget=budget) as module:
        tuned = _tuned(module, values, budget, retune=retune)
        if tuned.how == "interrupted":
            complain("interrupted", f"nothing is locked; {path} is as it was")
            return INTERRUPTED
        with WorkStatus("holding the plan against another"):
            source = {"source": _source(model, path), "seed": str(seed), "dims": ",".join(given["dims"])}
            source |= {name: _relate(given[name], path) for name in ("calibrate", "validate") if given[name] is not None}
            lock = lock_module(module, [values[value.name] for value in function.inputs], source, gate, given_by)
    write_placement(lock, path)
    out.print(str(tuned), markup=False)
    out.print(f"{path}: {_describe_baseline(lock.baseline)}", markup=False)
    return 0


def _tuned(module: XRTModule, values: dict[str, Any], budget: float, *, retune: bool) -> Any:
    if not retune:
        module.plan_for(**values)  # which shows by itself how far a search is
        return module.tuned
    with format_result(budget) as report:
        return module.tune(**values, progress=report)


def _source(model: str, lock: Path) -> str:
    """Return how the lock calls its model: a file as it is found from the lock's folder, anything else as it was given."""
    return _relate(model, lock) if os.path.lexists(model) else model


def _relate(file: str | Path, lock: Path) -> str:
    return os.path.relpath(file, lock.absolute().parent)


def _describe_baseline(gate: Baseline | None) -> str:
    if gate is None:
        return "locked; no other plan could run, so a check has nothing to hold its time against"
    said = f"locked at {gate.ratio:.3f} ({gate.low:.3f} to {gate.high:.3f}) of the time of {gate.plan}, {gate.rounds} rounds"
    doubt = (gate.high - gate.low) / gate.ratio
    if doubt <= NOISY:
        return said
    return f"{said}; the machine is noisy, so a check can tell no change of less than about {doubt:.0%}: lock it on a quiet one"


UNDECIDED = 3
"""The exit code of a check that could not be decided, where that is to fail."""


def parse_percent(context: click.Context, option: click.Parameter, text: str) -> float:
    """Return a part from a text such as ``5%``; raises OptionError for another form, a number without ``%`` too."""
    number, percent, rest = text.strip().partition("%")
    try:
        found = float(number)
    except ValueError:
        found = -1.0
    if rest or not 0 <= found < 10_000:
        raise OptionError(f"{option.opts[0]} takes a percentage such as 5%; got {text!r}")
    if not percent:
        meant = found if found >= 1 or found == 0 else 100 * found
        raise OptionError(f"{option.opts[0]} takes a percentage such as 5%; got {text!r}. Did you mean {meant:g}%?")
    return found / 100


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
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
    held = read_lock(lock)
    asked: dict[str, Any] = {"lock": lock, "model": model, "named": named, "limit": limit, "budget": budget}
    asked["validate"] = validate
    try:
        outcome, load, elsewhere = _check(held, **asked)
    except (LockError, EngineError, PlanError) as error:
        return _failed(error, as_json=as_json)
    if not once and not all(found := (outcome, *([] if load is None else [load]))):
        outcome, load = _confirmed(found, asked, patience)
    if as_json:
        loads = {} if load is None else {"load": load.to_dict()}
        out.print_json(json.dumps({**outcome.to_dict(), **loads, "differs": list(elsewhere)}))
        return _code(outcome, load, undecided)
    for line in elsewhere:
        out.print(f"not where it was locked: {line}", markup=False)
    for one in (outcome, *([] if load is None else [load])):
        out.print(str(one), markup=False)
    if "undecided" in _list_states(outcome, load):
        passes = "it passes; --undecided=fail makes it fail" if undecided == "pass" else "it fails, as --undecided=fail asks"
        out.print(f"{passes}. Give it more --budget, or a quieter machine", markup=False)
    return _code(outcome, load, undecided)


def _check_is_lock(path: str) -> None:
    """Raise OptionError for what is a model: it would be advised to write a lock over it."""
    if Path(path).is_file() and not Path(path).stat().st_size:
        raise OptionError(f"{path} is an empty file, and `xrt check` takes a lockfile; `xrt lock MODEL -o FILE.lock` writes one")
    is_model = Path(path).suffix == ".onnx" or is_bundle(path) or (not os.path.lexists(path) and path in models.names())
    if is_model:
        raise OptionError(f"{path} is a model, and `xrt check` takes a lockfile; `xrt lock {path}` writes one")


def _list_states(outcome: RegressionResult, load: LoadCheckResult | None) -> list[str]:
    return [outcome.state, *([] if load is None else [load.state])]


def _code(outcome: RegressionResult, load: LoadCheckResult | None, undecided: str) -> int:
    """Return the exit code of a check."""
    states = _list_states(outcome, load)
    if "regressed" in states:
        return 1
    return UNDECIDED if "undecided" in states and undecided == "fail" else 0


def _confirmed(found: Sequence[Any], asked: Mapping[str, Any], patience: float) -> tuple[Any, Any]:
    """Return the outcomes, undecided where another process does not see the regression; raises RunFailed where that hangs.

    Where memory and threads come to lie differs from one process to the next, and with it sometimes the ratio, which is
    steady within each.
    """
    budget = asked["budget"]
    worker = WorkerProcess("xrt.cli.lock:serve_confirmation")
    try:
        answer = worker.ask(asked, seconds=budget * len(found) + patience)[0]
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
    several = [_confirm(one, second) for one, second in zip(found, states, strict=False)]
    return several[0], several[1] if len(several) > 1 else None


def _confirm(outcome: Any, second: str | None) -> Any:
    """Return an outcome, undecided where it is a regression that the state of a second process contradicts."""
    if outcome or second not in ("held", "undecided", "alone"):
        return outcome
    return replace(outcome, state="undecided", note=f"one process saw a regression; a second one, asked to confirm it: {second}")


def serve_confirmation(handle: str) -> None:
    """Serve the socket of that number: the state of a check, in the process that confirms."""

    def answer(request: Request) -> Message:
        outcome, load, _ = _check(read_lock(request.message["lock"]), **request.message)
        return {"state": outcome.state, "load": None if load is None else load.state}

    serve(handle, answer)


def _failed(error: XRTError, *, as_json: bool) -> int:
    said = " ".join(str(error).split())
    if as_json:
        out.print_json(json.dumps({"state": "cannot run", "reason": said}))
    else:
        out.print(f"cannot run: {said}", markup=False)
    return 1


def _check_named(lock: PlacementFile, named: Sequence[str]) -> None:
    """Raise LockError for an engine of the lock that only who checks may ask for, and has not: a file chooses no code.

    Raises OptionError for one that the lock does not have.
    """
    specs = _specs(lock)
    for spec in named:
        if spec not in specs:
            raise OptionError(f"--engines names {spec!r}; the lock has {', '.join(specs)}.{did_you_mean(spec, specs)}")
    for spec in specs:
        if spec not in named and (reason := why_not_chosen(spec, "lock")):
            raise LockError(f"{reason}; pass --engines {spec!r} if that is what you want")


def _specs(lock: PlacementFile) -> list[str]:
    return list(dict.fromkeys(run.engine for run in (*lock.plan, *(lock.baseline.ranges if lock.baseline else ()))))


def _check(
    held: PlacementFile,
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
    _check_named(held, split_specs(named) if named is not None else [])
    return _checked(held, Path(lock), model, limit, budget, validate)


def _checked(lock: PlacementFile, path: Path, model: str | None, limit: float, budget: float, validate: str | None) -> Any:
    with _of_the_lock("model"):
        whole = _load_whole(lock, path, model)
        function = _specialize(whole, lock)
    examples = _read_validation(lock, path, whole, validate)
    engines = _specs(lock)
    if not engines:
        raise LockError("the lock has no plan")
    values, stand_ins = _values(function, lock, path)
    options: dict[str, Any] = {"precision": lock.options.get("precision", "fp32"), "device": lock.options.get("device", "cpu")}
    options["devices"] = {
        name.removeprefix(DEVICE_OF): device
        for name, device in lock.options.items()
        if name.startswith(DEVICE_OF) and name.removeprefix(DEVICE_OF) in engines
    }
    threads = _number(lock.options.get("threads", "1"), "threads")
    with _of_the_lock("options"):
        made = XRTModule(function, engines, strict=True, threads=threads, **options)
    with WorkStatus("running the plan"), made as module:
        given = [values[value.name] for value in function.inputs]
        outcome, differs = check_module(module, lock, given, limit, budget, examples)
    load = None if lock.serving is None else _repeat_load(whole, lock, given, limit, budget, options)
    return outcome, load, (*differs, *stand_ins)


def _repeat_load(
    whole: Function, lock: PlacementFile, values: Sequence[Any], limit: float, budget: float, options: Mapping[str, Any]
) -> LoadCheckResult:
    """Return what comes of the load of a lock that was tuned for throughput."""
    assert lock.serving is not None
    threads, seed = lock.serving.instances * lock.serving.threads, _number(lock.model.get("seed", "0"), "seed")
    with _of_the_lock("configuration of serving"):
        made = XRTModule(whole, [*_specs(lock), "auto"], strict=True, threads=threads, **options)
    with WorkStatus("repeating the load"), made as module:
        return check_module_load(module, lock, values, limit, budget, seed=seed)


@contextmanager
def _of_the_lock(what: str) -> Iterator[None]:
    """Say of an OptionError that it is about what the lock holds, and what to do."""
    try:
        yield
    except OptionError as error:
        said = str(error).rstrip(".")
        raise LockError(f"the lock's {what} cannot be used: {said}; mend it, or write it again with `xrt lock`") from error


def _values(function: Function, lock: PlacementFile, path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the values that the lock was made on, and a line for each unavailable one, which a random value replaces."""
    values = sample_inputs(function, _number(lock.model.get("seed", "0"), "seed"))
    unavailable = []
    for name in lock.values.keys() & values.keys():
        file = path.absolute().parent / lock.values[name]
        try:
            found = _array(file, name)
            is_ = str(infer_type(found))
        except (InputError, ModelError) as error:
            unavailable.append(f"the values of input {name!r}, in {lock.values[name]}, are not to be had: {error}")
            continue
        if is_ == (was := lock.inputs.get(name, "")):
            values[name] = found
        else:
            unavailable.append(f"the values of input {name!r}, in {lock.values[name]}, were {was} and are {is_}")
    return values, sorted(unavailable)


def _array(file: Path, name: str) -> Any:
    if file.suffix != ".npz":
        return read_npy(file)
    arrays = read_npz(file)
    if name not in arrays:
        raise InputError(f"it has no array {name!r}")
    return arrays[name]


def _read_validation(lock: PlacementFile, path: Path, function: Function, given: str | None) -> list[Any] | None:
    """Return the examples on which the error of the lock was measured; None where it has none, or they are not there."""
    if lock.precision is None:
        return None
    named = {name: path.absolute().parent / lock.model[name] for name in ("validate", "calibrate") if name in lock.model}
    file = Path(given) if given is not None else next(iter(named.values()), None)
    if file is None or not file.exists():
        return None
    batches = read_batches(file, function)
    is_shared = given is None and "validate" not in named  # the last fifth of the examples of calibration
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


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise LockError(f"the lock's {what} must be a number; it is {text[:40]!r}")
    return int(text)
