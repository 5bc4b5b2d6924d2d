"""``xrt serve``, ``export-triton`` and ``batch``: serve models over HTTP and gRPC or in Triton, or run them on files of rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.cli import options
from xrt.cli.screen import complain, out, print_lines, show_status
from xrt.engines import ExecutionOptions, split_specs
from xrt.engines.contract.registry import why_forbidden
from xrt.errors import InputError, OptionError
from xrt.formats.bundle import is_bundle
from xrt.html.views import format_count
from xrt.logging import LOG_VARIABLE, log_to_stderr
from xrt.serve.served_model import ServingOptions

if TYPE_CHECKING:
    from xrt.integrations.batch import JobReport
    from xrt.serve.application import Addresses


def parse_models(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse ``PATH``, ``NAME=PATH`` and ``NAME:VERSION=PATH`` to paths by name and version.

    >>> parse_models(["bert.xrt", "text:2=new.xrt"])
    {'bert': {'1': 'bert.xrt'}, 'text': {'2': 'new.xrt'}}
    """
    paths: dict[str, dict[str, str]] = {}
    for text in texts:
        label, _, path = text.rpartition("=")
        name, _, version = label.partition(":")
        if "=" in text and (not name or not path or label.endswith(":")):
            raise OptionError(f"a model is PATH, NAME=PATH or NAME:VERSION=PATH; got {text!r}")
        name = name or Path(path).stem
        version = version or "1"
        versions = paths.setdefault(name, {})
        if version in versions:
            raise OptionError(f"model {name!r} is given twice; give each its own name, or a version: {name}:2={path}")
        versions[version] = path
    return paths


def _parse_batch(context: click.Context, parameter: click.Parameter, sizes: tuple[int, ...] | None) -> int | list[int] | None:
    if sizes is None:
        return None
    return list(sizes) if len(sizes) > 1 else sizes[0]


_add_batching = options.add_all(
    options.derive(ServingOptions, "instances", default_text="as tuned, or 1"),
    options.derive(
        ServingOptions, "batch", type=options.NUMBERS, callback=_parse_batch, example="8; 1,2,4,8", default_text="as tuned"
    ),
    options.derive(ServingOptions, "max_wait", type=options.WAIT, example="2ms"),
)


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@options.add_engines("Engines for ONNX files, first choice first; a bundle has its own")
@options.option("--host", default="127.0.0.1", help="Address to listen on; by default only this machine can connect")
@options.option("--port", default=8000, type=click.IntRange(0, 65535), help="Port of HTTP; 0: a free one")
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="Port of gRPC; 0: a free one  [default: no gRPC]")
@options.derive(ExecutionOptions, "threads", default_text=options.CORES, help="Thread budget of each model")
@_add_batching
@options.derive(ServingOptions, "max_queue")
@options.derive(ServingOptions, "max_request_bytes", "--max-request", "max_request_bytes")
@options.derive(ServingOptions, "body_timeout")
@options.derive(ServingOptions, "max_sessions")
@options.derive(ServingOptions, "session_idle")
@options.derive(ServingOptions, "explicit_sessions")
@options.derive(ServingOptions, "model_control", "--model-control/--no-model-control", "model_control", default=None)
@options.option("--drain", default="30s", type=options.WAIT, help="Time for the requests under way when the server ends")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    help="Least level of what is logged on standard error  [default: warning]",
)
@click.option("--access-log", is_flag=True, help="Log each request, with its status and time")
@options.isolation_options
def serve_command(models: tuple[str, ...], **params: Any) -> int:
    """Serve models by the Open Inference Protocol v2, until Ctrl-C or SIGTERM; SIGHUP loads them again.

    Each MODEL is a bundle or an ONNX file under its file's name, NAME=MODEL, or NAME:VERSION=MODEL.
    """
    # Imported here, because export-triton and batch work without the server's libraries.
    from xrt.serve.application import Application, run_server
    from xrt.serve.metrics import ACCESS_LOGGER

    # XRT_LOG was applied when xrt was imported; only an option overrides it.
    if params["log_level"] is not None or not os.environ.get(LOG_VARIABLE):
        log_to_stderr(params["log_level"] or "warning")
    if params["access_log"]:
        logging.getLogger(ACCESS_LOGGER).setLevel(logging.INFO)
    paths = parse_models(models)
    serving = {name: params[name] for name in ServingOptions.names() if params[name] is not None}
    application = Application(paths, **_module_keywords(paths, params), **serving)

    def show_addresses(addresses: Addresses) -> None:
        address = f"[{addresses.host}]" if ":" in addresses.host else addresses.host
        grpc = [f"gRPC on {address}:{addresses.grpc}"] if addresses.grpc is not None else []
        print_lines(f"listening on http://{address}:{addresses.http}", *grpc)
        out.file.flush()  # scripts that start the service wait for this line

    def show_readiness(reason: str) -> None:
        if reason:
            complain("warning", f"not ready: {reason}")
        else:
            print_lines("ready")
            for model in application.models:
                if not params["engine"] and not is_bundle(paths[model.name][model.version]):
                    print_lines(f"{model.name}: on {model.module.engines[0]} (default engine)")
        out.file.flush()

    network = {name: params[name] for name in ("host", "port", "grpc_port", "drain")}
    run_server(application, **network, on_start=show_addresses, on_ready=show_readiness)
    return 0


def _module_keywords(models: dict[str, dict[str, str]], params: dict[str, Any]) -> dict[str, Any]:
    """Make the keywords of XRTModule for all models. Raises OptionError if ``--engine`` is set and could affect none of them."""
    keywords = options.isolation_keywords(params)
    if params["threads"] is not None:
        keywords["threads"] = params["threads"]
    if params["engine"] is not None:
        keywords["engine"] = specs = split_specs(params["engine"])
        # A bundle has its engines. Naming them only allows options that may refer to files or code.
        is_fixed = all(is_bundle(path) for versions in models.values() for path in versions.values())
        if is_fixed and not any(why_forbidden(spec, "bundle") for spec in specs):
            raise OptionError("a bundle has fixed engines; leave --engine out, or compile the model again")
    return keywords


@click.command("export-triton")
@click.argument("bundle")
@click.argument("repository", type=click.Path(file_okay=False))
@click.option("--name", default="", help="Name of the model  [default: that of the file]")
@options.option("--version", default=1, type=click.IntRange(1), help="Version of the model")
@options.derive(ExecutionOptions, "threads", default_text="as tuned, or saved", help="Thread budget of each instance")
@_add_batching
def export_triton_command(bundle: str, repository: str, **params: Any) -> None:
    """Write BUNDLE as a model of Triton's Python backend into the folder REPOSITORY."""
    from xrt.serve.triton_repository import export_triton

    model = export_triton(bundle, repository, **{name: value for name, value in params.items() if value is not None})
    print_lines(f"{model}: config.pbtxt, {params['version']}/model.py and {params['version']}/model.xrt")


def _parse_columns(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    columns = {name: column for name, _, column in pairs}
    if len(columns) < len(pairs) or not all((*columns, *columns.values())):
        raise OptionError(f"--column takes INPUT=COLUMN, each input once, such as ids=tokens; got {' '.join(texts)!r}")
    return columns


@click.command("batch")
@click.argument("model", type=click.Path(dir_okay=False))
@click.argument("rows", nargs=-1, required=True, metavar="ROWS...")
@click.option("-o", "--output", "target", required=True, type=options.FOLDER, help="Folder of the results")
@options.add_engines("Engines of an ONNX file, first choice first; a bundle has its own", default="")
@click.option("--column", "columns", multiple=True, callback=_parse_columns, metavar="INPUT=COLUMN", help="Column of an input")
@click.option("--output-name", "outputs", multiple=True, metavar="NAME", help="Output to keep [default: all]; repeatable")
@click.option(
    "--keep-column",
    "keep",
    multiple=True,
    metavar="COLUMN",
    help="Column to pass on [default: all that are no input]; repeatable",
)
@options.add_choice("--on-error", ["raise", "column"], "A row that cannot be run: stop, or a reason in the column 'error'")
@click.option("--batch", type=click.IntRange(1), help="Rows of a call [default: what the model is tuned for, or 32]")
@click.option(
    "--part-rows", type=click.IntRange(1), help="Rows of a file of results [default: 1/64 of all, from 256 rows to 32 MB]"
)
@click.option("--workers", type=click.IntRange(1), help="Parts at a time [default: one for each processor]")
@click.option("--address", metavar="ADDRESS", help="Run on this cluster of Ray: auto, or HOST:PORT")
@click.option("--cpus", type=click.IntRange(1), help="With --address: processors, and threads, of each worker [default: 1]")
def batch_command(model: str, rows: tuple[str, ...], target: Path, **params: Any) -> int:
    """Run MODEL, a bundle or an ONNX file, on ROWS: files of Parquet, CSV, JSON lines or Arrow, and folders of them.

    Results keep the order of the rows. The same command continues a job that was stopped. The exit code is 1 when rows have
    errors.
    """
    if not Path(model).is_file():
        raise InputError(f"there is no model at {model}: no such file")
    if params["cpus"] and not params["address"]:
        raise OptionError("--cpus is for the workers of a cluster; pass it with --address, or choose --workers")
    try:
        from xrt.integrations.batch import BatchJob, run_job
    except ImportError as error:
        raise OptionError(
            f"xrt batch reads rows with pyarrow, which cannot be imported ({error}): pip install 'xrt-engine[batch]'"
        ) from error
    job = BatchJob(
        str(Path(model).absolute()),  # workers may have another working directory
        tuple(split_specs(params["engine"])) if params["engine"] else (),
        params["columns"],
        params["outputs"] or None,
        params["keep"] or None,
        params["on_error"],
        params["part_rows"],
        params["batch"],
    )
    run: Any = run_job
    if params["address"] is not None:
        from xrt.integrations.ray import run_cluster_job

        run = partial(run_cluster_job, address=params["address"], num_cpus=params["cpus"] or 1)
    with show_status("rows") as status:

        def advance(report: JobReport) -> None:
            errors = f", {report.errors} with errors" if report.errors else ""
            status.update(f"rows{errors}, {report.written + report.present:,} of {report.rows:,}")

        report = run(job, rows, target, workers=params["workers"], progress=advance)
    text = f"{target}: {report.written} of {report.rows} rows written in {format_count(report.parts, 'part')}"
    text += f", {report.present} were there" if report.present else ""
    text += f"; {report.errors} rows have errors" if report.errors else ""
    has_default = report.engine and not params["engine"] and not is_bundle(model)
    print_lines(f"{text}, on {report.engine} (default engine)" if has_default else text)
    return int(bool(report.errors))
