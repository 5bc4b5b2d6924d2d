"""``xrt tune --objective throughput``: the configuration that serves most requests per second, as a table and a lockfile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.bench.targets import DIGITS
from xrt.cli.inputs import all_inputs
from xrt.cli.options import check_writable, parse_seconds
from xrt.cli.screen import WorkStatus, human_bytes, out, show_table
from xrt.errors import OptionError
from xrt.formats.output import replace_file
from xrt.formats.placement_file import write_placement
from xrt.module import XRTModule
from xrt.module.lockfile import lock_module
from xrt.module.tuning import tune_throughput
from xrt.placement.throughput.result import COLUMNS, format_latency, format_rate

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.placement.throughput.result import ServingCandidate, ThroughputResult

__all__ = ["add_throughput_options", "check_objective", "tune_for_throughput"]

GATE = 5.0
"""Seconds of the comparison of the locked plan with another one, for `xrt check`."""
ONLY = ("p99", "batches", "instances", "batch_dim", "target")
"""Options of this objective alone."""
NUMBERS = ("batch", "instances", "threads", "in flight", "requests/s", "p50", "p99", "memory")


def parse_numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Return the integers of a text such as ``1,2,4``; raises OptionError for another form."""
    if text is None:
        return None
    parts = [one.strip() for one in text.split(",")]
    if not all(one.isdecimal() and len(one) <= DIGITS and int(one) for one in parts):
        raise OptionError(f"{option.opts[0]} takes positive integers, such as 1,2,4; got {text!r}")
    return tuple(map(int, parts))


_OPTIONS = (
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


def add_throughput_options(command: Any) -> Any:
    """Add the objective, and the options that belong to throughput."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_objective(objective: str, given: Mapping[str, Any]) -> None:
    """Raise OptionError for an option of the other objective."""
    if objective == "latency" and (name := next((one for one in ONLY if given.get(one) is not None), None)):
        option = {"batches": "batch", "batch_dim": "batch-dim", "target": "output"}.get(name, name)
        option = "batch with several sizes" if name == "batches" else option
        raise OptionError(f"--{option} is of throughput; pass --objective throughput too, or leave it out")
    if objective == "throughput" and given.get("pareto"):
        raise OptionError("--pareto is of latency: it shows plans of one size; leave it out with --objective throughput")
    if objective == "throughput" and given.get("sizes"):
        raise OptionError("--sizes is of latency; with --objective throughput, --batch gives the sizes of the batch dim")


def tune_for_throughput(
    model: str, function: Function, keywords: Mapping[str, Any], budget: float, seed: int, asked: Mapping[str, Any]
) -> int:
    """Tune, print the table, and write the files that were asked for; return the exit code."""
    for name in ("target", "page"):
        if asked[name]:
            check_writable(Path(asked[name]))
    terms = {name: asked[name] for name in ("p99", "batches", "instances", "batch_dim") if asked[name] is not None}
    values = all_inputs(asked["files"], function, seed) if asked["files"] else {}
    with XRTModule(function, **keywords) as module:
        locks: list[Any] = []
        gate = GATE if asked["target"] else None
        source = {"source": asked["source"], "seed": str(seed), "dims": ",".join(asked["dims"])}
        with WorkStatus("tuning for throughput") as status:
            found = tune_throughput(
                module,
                named=values,
                seed=seed,
                budget=budget,
                progress=False,
                tell=status.update,
                use=lambda one, given: locks.append(lock_module(one, given, source, gate)) if gate else None,
                **terms,
            )
        if asked["as_json"]:
            out.print_json(json.dumps({"model": model, "threads": module.threads, **found.to_dict()}))
        else:
            _show(found)
        if asked["page"]:
            _write_page(Path(asked["page"]), found, model)
        if locks and (record := found.to_record()) is not None:
            write_placement(locks[0].replace(serving=record), asked["target"])
            if not asked["as_json"]:
                out.print(f"{asked['target']}: written; XRTModule(MODEL, engine='auto', lock=...) uses it", markup=False)
    return 130 if found.is_interrupted else 0 if found.configuration else 1


def _write_page(path: Path, found: ThroughputResult, model: str) -> None:
    from xrt.placement.throughput.result import render_throughput_page

    replace_file(path, lambda file: file.write(render_throughput_page(found, model).encode()))


def _show(found: ThroughputResult) -> None:
    show_table(COLUMNS, [_cells(one) for one in found.candidates], numbers=NUMBERS, whole=("verdict",))
    points = len(found.candidates)
    out.print(f"{found.headline}\n{points} points, {found.spent:.1f} of {found.budget:g} s", markup=False)
    for note in found.notes:
        out.print(note, markup=False)


def _cells(one: ServingCandidate) -> tuple[str, ...]:
    load = one.load
    known = (format_rate(load.rate), format_latency(load.p50), format_latency(load.p99)) if load else ("", "", "")
    memory = human_bytes(one.memory) if one.memory is not None else ""
    place = (str(one.batch), str(one.split.instances), str(one.split.threads), str(one.concurrency))
    return one.verdict, *place, one.plan, *known, memory, one.note
