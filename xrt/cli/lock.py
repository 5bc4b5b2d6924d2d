"""``xrt lock``: a placement by measurement as a file for version control."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from xrt.cli.explain import with_dims
from xrt.cli.inputs import all_inputs, files_of
from xrt.cli.options import check_writable, dims_of, input_options, loaded, module_keywords, seconds_of, tuning_options
from xrt.cli.screen import complain, err, out
from xrt.cli.tune import INTERRUPTED, shown
from xrt.formats.lock import Gate, write_lock
from xrt.module import XRTModule
from xrt.module.locked import lock_module

__all__ = ["command"]

NOISY = 0.1
"""Part of a ratio that its interval may be wide before the lock is called too vague for a gate."""


@click.command("lock")
@click.argument("model")
@tuning_options
@input_options
@click.option("--output", "-o", "target", type=click.Path(dir_okay=False), help="The lock [default: MODEL.lock here]")
@click.option("--budget", default="60s", show_default=True, callback=seconds_of, help="How long to search: 60s, 2m")
@click.option(
    "--gate",
    "gate",
    default="10s",
    show_default=True,
    callback=seconds_of,
    help="How long the plan then takes turns with another",
)
@click.option("--anew", is_flag=True, help="Search, even where an earlier search has decided")
def command(
    model: str, files: tuple[str, ...], seed: int, target: str | None, budget: float, gate: float, anew: bool, **given: Any
) -> int:
    """Write where the nodes of MODEL go, why, and on which machine and versions, as a file for version control.

    XRTModule(MODEL, engine="auto", lock=FILE) takes the plan without measuring; `xrt check FILE` tells whether it is still as
    quick, beside another plan, as it was, on the same inputs: their shapes, and the seed or the files of their values, are in the
    lock. The placement is measured as by `xrt tune`, unless that has been done.
    """
    path = Path(target) if target else Path(f"{Path(model).stem}.lock")
    check_writable(path)
    function = with_dims(loaded(model), dims_of(given["dims"]))
    values = all_inputs(files, function, seed)
    given_by = {name: _beside(file, path) for name, file in files_of(files, function).items()}
    keywords = module_keywords(given)
    with XRTModule(function, **{**keywords, "engine": [*keywords["engine"], "auto"]}, budget=budget) as module:
        tuned = _tuned(module, values, budget, anew=anew)
        if tuned.how == "interrupted":
            complain("interrupted", f"nothing is locked; {path} is as it was")
            return INTERRUPTED
        with err.status("holding the plan against another"):
            source = {"source": _source(model, path), "seed": str(seed), "dims": ",".join(given["dims"])}
            lock = lock_module(module, [values[value.name] for value in function.inputs], source, gate, given_by)
    write_lock(lock, path)
    out.print(str(tuned), markup=False)
    out.print(f"{path}: {_told(lock.gate)}", markup=False)
    return 0


def _tuned(module: XRTModule, values: dict[str, Any], budget: float, *, anew: bool) -> Any:
    with shown(budget) as told:
        if anew:
            return module.tune(**values, progress=told)
        module.plan_for(**values)
    return module.tuned


def _source(model: str, lock: Path) -> str:
    """Return how the lock calls its model: a file as it is found from the lock's folder, anything else as it was given."""
    return _beside(model, lock) if os.path.lexists(model) else model


def _beside(file: str | Path, lock: Path) -> str:
    return os.path.relpath(file, lock.absolute().parent)


def _told(gate: Gate | None) -> str:
    if gate is None:
        return "locked; no other plan could run, so a check has nothing to hold its time against"
    told = f"locked at {gate.ratio:.3f} ({gate.low:.3f} to {gate.high:.3f}) of the time of {gate.plan}, {gate.rounds} rounds"
    doubt = (gate.high - gate.low) / gate.ratio
    if doubt <= NOISY:
        return told
    return f"{told}; the machine is noisy, so a check can tell no change of less than about {doubt:.0%}: lock it on a quiet one"
