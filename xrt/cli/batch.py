"""``xrt batch``: a model over files of rows, on this machine or on a cluster of Ray."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.cli.options import DEFAULT_ENGINE, ENGINE_NAMES, check_folder
from xrt.cli.screen import out, progress
from xrt.engines import split_specs
from xrt.errors import InputError, OptionError
from xrt.formats.bundle import is_bundle

if TYPE_CHECKING:
    from xrt.integrations.batch import BatchJob, JobReport

__all__ = ["command"]


def _parse_columns(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return columns by input from texts such as ``ids=tokens``; raises OptionError for another form."""
    pairs = [text.partition("=") for text in given]
    found = {name: column for name, _, column in pairs}
    if len(found) < len(pairs) or not all((*found, *found.values())):
        raise OptionError(f"--column takes INPUT=COLUMN, each input once, such as ids=tokens; got {' '.join(given)!r}")
    return found


@click.command("batch")
@click.argument("model", type=click.Path(dir_okay=False))
@click.argument("rows", nargs=-1, required=True, metavar="ROWS...")
@click.option("-o", "--output", "target", required=True, type=click.Path(file_okay=False), help="Folder of the results")
@click.option(
    *ENGINE_NAMES,
    default="",
    metavar="ENGINES",
    show_default=DEFAULT_ENGINE,
    help="Engines of an ONNX file, first choice first; a bundle has its own",
)
@click.option("--column", "columns", multiple=True, callback=_parse_columns, metavar="INPUT=COLUMN", help="Column of an input")
@click.option("--output-name", "outputs", multiple=True, metavar="NAME", help="Output to keep [default: all]; repeatable")
@click.option(
    "--keep-column",
    "keep",
    multiple=True,
    metavar="COLUMN",
    help="Column to pass on [default: all that are no input]; repeatable",
)
@click.option(
    "--on-error",
    type=click.Choice(("raise", "column")),
    default="raise",
    show_default=True,
    help="A row that cannot be run: stop, or a reason in the column 'error'",
)
@click.option("--batch", type=click.IntRange(1), help="Rows of a call [default: what the model is tuned for, or 32]")
@click.option(
    "--part-rows", type=click.IntRange(1), help="Rows of a file of results [default: 1/64 of all, from 256 rows to 32 MB]"
)
@click.option("--workers", type=click.IntRange(1), help="Parts at a time [default: one for each processor]")
@click.option("--address", metavar="ADDRESS", help="Run on this cluster of Ray: auto, or HOST:PORT")
@click.option("--cpus", type=click.IntRange(1), help="With --address: processors, and threads, of each worker [default: 1]")
def command(model: str, rows: tuple[str, ...], target: str, **given: Any) -> int:
    """Run MODEL, a bundle or an ONNX file, on ROWS: files of Parquet, CSV, JSON lines or Arrow, and folders of them.

    The results have the rows in their order. The same command continues a job that was stopped. The exit code is 1 when rows
    have errors.
    """
    check_folder(Path(target))
    if not Path(model).is_file():
        raise InputError(f"there is no model at {model}: no such file")
    if given["cpus"] and not given["address"]:
        raise OptionError("--cpus is for the workers of a cluster; pass it with --address, or choose --workers")
    job, run = _make_job(model, given), _choose_runner(given)
    with progress() as bar:
        task = bar.add_task("rows", total=None)
        report = run(job, rows, target, workers=given["workers"], progress=partial(_show, bar, task))
    _print(report, target, has_default=not given["engine"] and not is_bundle(model))
    return int(bool(report.errors))


def _make_job(model: str, given: dict[str, Any]) -> BatchJob:
    try:
        from xrt.integrations.batch import BatchJob
    except ImportError as error:
        raise OptionError(
            f"xrt batch reads rows with pyarrow, which cannot be imported ({error}): pip install 'xrt-engine[batch]'"
        ) from error

    return BatchJob(
        str(Path(model).absolute()),
        tuple(split_specs(given["engine"])) if given["engine"] else (),
        given["columns"],
        given["outputs"] or None,
        given["keep"] or None,
        given["on_error"],
        given["part_rows"],
        given["batch"],
    )


def _choose_runner(given: dict[str, Any]) -> Any:
    if given["address"] is None:
        from xrt.integrations.batch import run_job

        return run_job
    from xrt.integrations.ray.cluster_job import run_cluster_job

    return partial(run_cluster_job, address=given["address"], num_cpus=given["cpus"] or 1)


def _show(bar: Any, task: Any, report: JobReport) -> None:
    errors = f", {report.errors} with errors" if report.errors else ""
    bar.update(task, completed=report.written + report.present, total=report.rows, description=f"rows{errors}")


def _print(report: JobReport, target: str, *, has_default: bool) -> None:
    there = f", {report.present} were there" if report.present else ""
    errors = f"; {report.errors} rows have errors" if report.errors else ""
    engine = f", on {report.engine} (default engine)" if has_default and report.engine else ""
    parts = f"{report.parts} part{'s' * (report.parts != 1)}"
    out.print(f"{target}: {report.written} of {report.rows} rows written in {parts}{there}{errors}{engine}", markup=False)
