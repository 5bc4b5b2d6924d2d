"""``xrt lock``: a placement by measurement as a file for version control."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from xrt.cli.inputs import all_inputs, from_files, list_input_files, set_shapes
from xrt.cli.options import (
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
    set_dims,
    settle_batch,
)
from xrt.cli.precision import add_precision_options, read_precision_keywords
from xrt.cli.screen import WorkStatus, complain, out
from xrt.cli.tune import INTERRUPTED, format_result
from xrt.formats.placement_file import Baseline, write_placement
from xrt.module import XRTModule
from xrt.module.lockfile import lock_module

__all__ = ["command"]

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
