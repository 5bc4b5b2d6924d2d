"""``xrt serve``: models over HTTP and gRPC, by the Open Inference Protocol."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from xrt.cli.options import (
    DEFAULT_ENGINE,
    ENGINE_NAMES,
    isolation_keywords,
    isolation_options,
    parse_memory,
    parse_seconds,
    parse_wait,
)
from xrt.cli.screen import complain, out
from xrt.engines import split_specs
from xrt.engines.contract.registry import why_not_chosen
from xrt.errors import OptionError
from xrt.formats.bundle import is_bundle
from xrt.logging import VARIABLE, show

if TYPE_CHECKING:
    from xrt.serve.application import Application

__all__ = ["command", "export_triton_command", "parse_models"]


def parse_models(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return paths by name and version from ``PATH``, ``NAME=PATH`` and ``NAME:VERSION=PATH``; raises OptionError for one twice.

    >>> parse_models(["bert.xrt", "text:2=new.xrt"])
    {'bert': {'1': 'bert.xrt'}, 'text': {'2': 'new.xrt'}}
    """
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        label, _, path = text.rpartition("=")
        name, _, version = label.partition(":")
        if "=" in text and (not name or not path or label.endswith(":")):
            raise OptionError(f"a model is PATH, NAME=PATH or NAME:VERSION=PATH; got {text!r}")
        name = name or path.rstrip("/").rpartition("/")[2].rpartition(".")[0]
        versions = found.setdefault(name, {})
        if (version or "1") in versions:
            raise OptionError(f"model {name!r} is given twice; give each its own name, or a version: {name}:2={path}")
        versions[version or "1"] = path
    return found


def parse_batch(context: click.Context, option: click.Parameter, text: str | None) -> int | list[int] | None:
    """Return the number that a text spells, or a list of them; raises OptionError for another text."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise OptionError(f"--batch takes a number of rows, or sizes such as 1,2,4,8; got {text!r}")
    sizes = [int(part) for part in parts]
    return sizes if len(sizes) > 1 else sizes[0]


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@click.option(
    *ENGINE_NAMES,
    metavar="ENGINES",
    show_default=DEFAULT_ENGINE,
    help="Engines for ONNX files, first choice first; a bundle has its own",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; another one lets other machines in")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port of HTTP; 0: a free one")
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="Port of gRPC; 0: a free one  [default: no gRPC]")
@click.option("--threads", type=click.IntRange(1), help="Thread budget of each model  [default: the cores of this process]")
@click.option("--instances", type=click.IntRange(1), help="Calls of a model that run at once  [default: as tuned, or 1]")
@click.option("--batch", callback=parse_batch, help="Rows of a batch, at most: 8; or its sizes: 1,2,4,8  [default: as tuned]")
@click.option("--max-wait", callback=parse_wait, metavar="TIME", help="How long a request waits for its batch to fill: 2ms")
@click.option("--max-queue", type=click.IntRange(1), help="Requests that wait for a model; more are refused  [default: 128]")
@click.option("--max-request", callback=parse_memory, metavar="SIZE", help="Size of a request: 16MB  [default: 67MB]")
@click.option("--body-timeout", callback=parse_seconds, metavar="TIME", help="For a request's body to arrive  [default: 30s]")
@click.option("--max-sessions", type=click.IntRange(0), help="Sessions of a model at once  [default: 256]")
@click.option("--session-idle", callback=parse_seconds, metavar="TIME", help="When an unused session is forgotten  [default: 5m]")
@click.option("--explicit-sessions", is_flag=True, default=None, help="A session begins with session_start alone")
@click.option(
    "--no-model-control", "model_control", flag_value=False, default=None, help="Refuse requests that load or unload models"
)
@click.option(
    "--drain", default="30s", show_default=True, callback=parse_wait, metavar="TIME", help="Time of open requests at the end"
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    help="Least level of what is logged on standard error  [default: warning]",
)
@click.option("--access-log", is_flag=True, help="Log each request, with its status and time")
@isolation_options
def command(models: tuple[str, ...], **given: Any) -> int:
    """Serve models by the Open Inference Protocol v2, until Ctrl-C or SIGTERM; SIGHUP loads them again.

    Each MODEL is a bundle or an ONNX file under its file's name, NAME=MODEL, or NAME:VERSION=MODEL.
    """
    from xrt.serve.application import Application
    from xrt.serve.served_model import ServingOptions
    from xrt.serve.server import run_server

    _set_up_logs(given)
    asked = parse_models(models)
    application = Application(asked, ServingOptions.make(_list_options(given)), _list_opening(asked, given))
    run_server(
        application,
        host=given["host"],
        port=given["port"],
        grpc_port=given["grpc_port"],
        drain=given["drain"],
        on_start=_show_addresses,
        on_ready=partial(_show_readiness, application, {} if given["engine"] else asked),
    )
    return 0


def _set_up_logs(given: dict[str, Any]) -> None:
    from xrt.serve.metrics import ACCESS

    if given["log_level"] is not None or not os.environ.get(VARIABLE):
        show(given["log_level"] or "warning")
    if given["access_log"]:
        logging.getLogger(ACCESS).setLevel(logging.INFO)


def _list_options(given: dict[str, Any]) -> dict[str, Any]:
    from xrt.serve.served_model import ServingOptions

    names = {"max_request": "max_request_bytes"}
    own = {name for name in given if names.get(name, name) in ServingOptions.names()}
    return {names.get(name, name): given[name] for name in own if given[name] is not None}


def _list_opening(models: dict[str, dict[str, str]], given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords with which the models are opened; raises OptionError for engines where there are only bundles."""
    opening = isolation_keywords(given)
    if given["threads"] is not None:
        opening["threads"] = given["threads"]
    if given["engine"] is not None:
        paths = [path for versions in models.values() for path in versions.values()]
        opening["engine"] = specs = split_specs(given["engine"])
        if all(map(is_bundle, paths)) and not any(why_not_chosen(spec, "bundle") for spec in specs):
            raise OptionError("a bundle settles its engines; leave --engine out, or compile the model again")
    return opening


def _show_addresses(addresses: Any) -> None:
    host = f"[{addresses.host}]" if ":" in addresses.host else addresses.host
    out.print(f"listening on http://{host}:{addresses.http}", markup=False)
    if addresses.grpc is not None:
        out.print(f"gRPC on {host}:{addresses.grpc}", markup=False)
    out.file.flush()


def _show_readiness(application: Application, asked: dict[str, dict[str, str]], reason: str) -> None:
    """Say whether the models are ready, and the default engine of each file in ``asked``."""
    if reason:
        complain("warning", f"not ready: {reason}")
    else:
        out.print("ready")
        for model in application.models:
            path = asked.get(model.name, {}).get(model.version)
            if path is not None and not is_bundle(path):
                out.print(f"{model.name}: on {model.module.engines[0]} (default engine)", markup=False)
    out.file.flush()


@click.command("export-triton")
@click.argument("bundle")
@click.argument("repository", type=click.Path(file_okay=False))
@click.option("--name", default="", help="Name of the model  [default: that of the file]")
@click.option("--version", "version", default=1, show_default=True, type=click.IntRange(1), help="Version of the model")
@click.option("--threads", type=click.IntRange(1), help="Thread budget of each instance  [default: as tuned, or saved]")
@click.option("--instances", type=click.IntRange(1), help="Instances, each a process of Triton's  [default: as tuned, or 1]")
@click.option("--batch", callback=parse_batch, help="Rows of a batch, at most: 8; or its sizes: 1,2,4,8  [default: as tuned]")
@click.option("--max-wait", callback=parse_wait, metavar="TIME", help="How long a request waits for its batch to fill: 2ms")
def export_triton_command(bundle: str, repository: str, **given: Any) -> None:
    """Write BUNDLE as a model of Triton's Python backend into the folder REPOSITORY."""
    from xrt.serve.triton_repository import export_triton

    model = export_triton(bundle, repository, **{name: value for name, value in given.items() if value is not None})
    out.print(f"{model}: config.pbtxt, {given['version']}/model.py and {given['version']}/model.xrt", markup=False)
