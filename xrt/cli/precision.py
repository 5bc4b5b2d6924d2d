"""Options of the commands that search for plans of lower precision: the error budget, the examples, and a table of the errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xrt.cli.batches import read_batches
from xrt.cli.screen import out, show_table
from xrt.errors import OptionError
from xrt.placement.precision_report import format_error, list_pareto_plans
from xrt.precision.budget import ErrorBudget

if TYPE_CHECKING:
    from xrt.formats.precision_record import PrecisionRecord
    from xrt.graph import Function

__all__ = ["add_precision_options", "parse_error", "read_precision_keywords", "show_pareto"]

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_error(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return a share from a text such as ``1%`` or ``0.01``; raises OptionError for another form."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%|)", text.strip())
    if match is None or not 0 < float(match[1]) < math.inf:
        raise OptionError(f"--max-error takes a share such as 1% or 0.01; got {text!r}")
    return float(match[1]) / (100 if match[2] else 1)


_OPTIONS = (
    click.option(
        "--max-error", callback=parse_error, metavar="SHARE", help="Allow lower precision up to this error of outputs: 1%, 0.01"
    ),
    click.option(
        "--measure",
        type=click.Choice(["relative", "cosine", "top1"]),
        default="relative",
        show_default=True,
        help="Measure of that error: of the norm, of the angle, or the share of rows with another largest element",
    ),
    click.option(
        "--calibrate",
        type=click.Path(),
        help="Examples to measure ranges on, for int8: FILE.npz, FILE.npy, or a folder of such files",
    ),
    click.option(
        "--validate",
        type=click.Path(),
        help="Other examples to measure the error on [default: a fifth of --calibrate]",
    ),
)


def add_precision_options(command: Command) -> Command:
    """Add the options of an error budget: ``max_error``, ``measure``, ``calibrate`` and ``validate``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_precision_keywords(given: Mapping[str, Any], function: Function) -> dict[str, Any]:
    """Return XRTModule's keywords from what `add_precision_options` collected; empty without a budget.

    Raises OptionError for examples without a budget.
    """
    if given.get("max_error") is None:
        for name in ("calibrate", "validate"):
            if given.get(name) is not None:
                raise OptionError(f"--{name} has examples for an error budget; pass --max-error too, such as --max-error 1%")
        return {}
    found: dict[str, Any] = {"max_error": ErrorBudget(given["max_error"], given["measure"])}
    for name in ("calibrate", "validate"):
        if given[name] is not None:
            found[name] = read_batches(Path(given[name]), function)
    if len(found) == 1:
        raise OptionError("--max-error is kept by measuring the outputs on examples; pass --validate, and --calibrate for int8")
    return found


# ---------------------------------------------------------------------- error against time


def show_pareto(record: PrecisionRecord) -> None:
    """Print error and time of the plans, with a bar for the time; the best of each error are marked."""
    rows = list_pareto_plans(record)
    slowest = max((one.seconds or 0.0 for one, _ in rows), default=0.0) or 1.0
    cells = [
        (
            "*" if is_best else "",
            one.precision,
            one.plan,
            str(one.kept or ""),
            format_error(one.error, record.measure) if one.precision != "fp32" else "0",
            f"{1e3 * (one.seconds or 0.0):.4g}",
            "#" * max(1, round(24 * (one.seconds or 0.0) / slowest)),
        )
        for one, is_best in rows
    ]
    show_table(("best", "precision", "plan", "in fp32", "error", "ms", "time"), cells, numbers=("in fp32", "error", "ms"))
    over = [one for one in record.plans if one.outcome == "over"]
    for one in sorted(over, key=lambda one: one.error or math.inf):
        error = format_error(one.high if one.high is not None else one.error, record.measure)
        out.print(f"over the budget, not timed: {one.precision} on {one.plan}, up to {error}", markup=False)
