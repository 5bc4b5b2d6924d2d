"""``xrt run``: run a model once on files or seeded random inputs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.status import Status

from xrt.cli.bundles import open_bundle
from xrt.cli.inputs import all_inputs
from xrt.cli.options import (
    check_writable,
    input_options,
    isolation_options,
    load_with_sizes,
    module_keywords,
    module_options,
    parse_check,
)
from xrt.cli.screen import WorkStatus, out, show_table
from xrt.comparison import compare, tolerance_for
from xrt.engines import RunOptions
from xrt.errors import EngineError, InputError, PlanError
from xrt.formats.bundle import is_bundle
from xrt.formats.output import replace_file
from xrt.measure.timing import seconds_per_call, time_call
from xrt.module import XRTModule
from xrt.module.options import REFERENCE
from xrt.placement.result import describe_plan
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["command"]


@click.command("run")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), help="Save the outputs as .npz")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1), help="Number of runs; the median time is shown")
@click.option("--trace", type=click.Path(dir_okay=False), help="Save a timeline of as many more runs, for Perfetto")
@click.option("--dump", "dump_subgraph_dir", type=click.Path(file_okay=False), help="Write the graph per stage (text, ONNX, DOT)")
@click.option("--check", callback=parse_check, help="Compare calls with the reference: first, nan, or a share of them: 0.01")
@click.option("--verify", "verified", is_flag=True, help="Compare the outputs with the reference engine")
def command(
    model: str,
    files: tuple[str, ...],
    seed: int,
    target: str | None,
    repeat: int,
    trace: str | None,
    verified: bool,
    **given: Any,
) -> int:
    """Run MODEL: an ONNX file, a bundle or a shipped model (squeezenet, 'bert{layers=2}').

    The exit code is 1 when --verify finds a difference.
    """
    for path in filter(None, (target, trace)):
        check_writable(Path(path))
    status = WorkStatus("compiling")
    function, module = _opened(model, given, status)
    values = all_inputs(files, function, seed)
    with module:
        with status:
            results, first = time_call(lambda: _as_tuple(module(**values)))
        seconds = [seconds_per_call(partial(module, **values)) for _ in range(repeat)]
        plan = module.plan
        if trace is not None:
            with status:
                _trace(module, values, repeat, trace, status)
    outputs = dict(zip((v.name for v in function.outputs), results, strict=True))
    is_default = given["engine"] is None and not is_bundle(model)
    title = f"{describe_plan(plan)}{' (default engine)' * is_default}"
    what = f"{title}: {_counted(len(plan.launches), 'region')} on {_counted(module.threads, 'thread')}"
    _report(outputs, what, first, statistics.median(seconds))
    if trace is not None:
        out.print(
            f"{trace}: a timeline of {_counted(repeat, 'call')}; open it in ui.perfetto.dev or chrome://tracing",
            markup=False,
            soft_wrap=True,
        )
    if target is not None:
        _save(outputs, Path(target))
    return _verify(function, values, results) if verified else 0


def _opened(model: str, given: dict[str, Any], status: Status) -> tuple[Function, XRTModule]:
    if is_bundle(model):
        return open_bundle(model, click.get_current_context())
    function = load_with_sizes(model, given)
    progress = lambda done, count: status.update(f"compiling {done}/{count}")  # noqa: E731  # called once per region
    return function, XRTModule(function, **module_keywords(given), progress=progress)


def _trace(module: XRTModule, values: Mapping[str, Any], calls: int, target: str, status: Status) -> None:
    """Make calls that are recorded, after those that are timed: recording takes time, and on a device waits for each region."""
    for number in range(calls):
        status.update(f"recording call {number + 1} of {calls}")
        module(**values, options=RunOptions(profile=True))
    module.profile().to_trace(target)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(to_host(result) for result in (results if isinstance(results, tuple) else (results,)))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _report(outputs: Mapping[str, Any], what: str, first: float, median: float) -> None:
    out.print(f"{what}; first call {first:.3f} s, then {1e3 * median:.3f} ms", markup=False)
    show_table(("output", "type", "smallest", "mean", "largest"), [(name, *_summary(value)) for name, value in outputs.items()])


def _summary(value: Any) -> tuple[str, str, str, str]:
    if not isinstance(value, np.ndarray):
        return (f"{type(value).__name__} of {len(value)}" if isinstance(value, list) else str(value), "", "", "")
    kind = f"{value.dtype}{list(value.shape)}"
    if value.size == 0 or value.dtype.kind not in "fiub":
        return (kind, "", "", "")
    return (kind, f"{value.min():.6g}", f"{value.mean():.6g}", f"{value.max():.6g}")


def _save(outputs: Mapping[str, Any], target: Path) -> None:
    """Write all outputs or none."""
    arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype != object}
    if len(arrays) != len(outputs):
        raise InputError(f"only tensors of numbers can be saved; not: {', '.join(sorted(set(outputs) - set(arrays)))}")
    replace_file(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]  # the stub takes the names for its own option


def _why_no_reference(function: Function, error: PlanError | EngineError) -> str:
    """Return why the reference engine does not run the model, and what else can be compared with."""
    if not isinstance(error, PlanError) or not error.nodes:
        return f"there is no reference, {error}"
    operators = ", ".join(sorted({function.node(name).op for name in error.nodes if name in {n.name for n in function.nodes}}))
    return (
        f"the reference engine does not take {operators or f'{len(error.nodes)} nodes'}. Write what such an operator computes "
        "into the model, as a function of it, or compare two engines by what each saves: xrt run MODEL -e ENGINE -o FILE"
    )


def _verify(function: Function, values: Mapping[str, Any], results: Sequence[Any]) -> int:
    try:
        with WorkStatus("running the reference"):
            expected = _as_tuple(XRTModule(function, engine=REFERENCE, strict=True)(**values))
    except (PlanError, EngineError) as error:
        out.print(f"not verified: {_why_no_reference(function, error)}", markup=False)
        return 0
    differs = 0
    for value, mine, reference in zip(function.outputs, results, expected, strict=True):
        tolerance = tolerance_for(reference.dtype, "network") if isinstance(reference, np.ndarray) else None
        found = compare(mine, reference, tolerance, name=value.name)
        agrees = f"{value.name} agrees with the reference; largest difference {found.absolute:.3g}"
        out.print(found.message or agrees, markup=False)
        differs |= not found
    return int(differs)
