"""``xrt verify``: each region of a model, and each value inside, against the reference engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from xrt.cli.inputs import all_inputs, open_bundle
from xrt.cli.options import (
    check_folder,
    check_writable,
    input_options,
    isolation_options,
    load_with_sizes,
    module_keywords,
    module_options,
)
from xrt.cli.screen import WorkStatus, out
from xrt.formats.bundle import is_bundle
from xrt.formats.onnx import save_case
from xrt.module import XRTModule

__all__ = ["bisect_command", "command"]


@click.command("verify")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option("--outputs-only", is_flag=True, help="Do not compare values inside regions")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def command(model: str, files: tuple[str, ...], seed: int, outputs_only: bool, as_json: bool, **given: Any) -> int:
    """Compare each region of MODEL, and each value inside, with the reference engine; exit code 1 where one differs.

    MODEL is an ONNX file, a bundle or a shipped model.
    """
    if is_bundle(model):
        function, made = open_bundle(model, click.get_current_context())
    else:
        function = load_with_sizes(model, given)
        made = XRTModule(function, **module_keywords(given))
    values = all_inputs(files, function, seed)
    status = WorkStatus("verifying")
    progress = lambda done, count: status.update(f"verifying region {done}/{count}")  # noqa: E731  # called once per region
    with made as module, status:
        found = module.verify(**values, inner=not outputs_only, progress=progress)
    if as_json:
        out.print_json(json.dumps(found.to_dict()))
    else:
        out.print(str(found), markup=False, soft_wrap=True)
    return 0 if found else 1


@click.command("bisect")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(file_okay=False),
    help="Folder for the part as model.onnx, with inputs and expected outputs in test_data_set_0",
)
def bisect_command(model: str, files: tuple[str, ...], seed: int, target: str | None, **given: Any) -> int:
    """Find the smallest part of MODEL on which its engine differs from the reference engine; exit code 1 where there is one.

    MODEL is an ONNX file, a bundle or a shipped model.
    """
    if target is not None:
        if not Path(target).parent.is_dir():
            check_writable(Path(target))
        check_folder(Path(target))
    if is_bundle(model):
        function, made = open_bundle(model, click.get_current_context())
    else:
        function = load_with_sizes(model, given)
        made = XRTModule(function, **module_keywords(given))
    values = all_inputs(files, function, seed)
    status = WorkStatus("looking for a difference")
    progress = lambda runs, nodes: status.update(f"{runs} parts tried, the smallest that differs has {nodes} nodes")  # noqa: E731  # called once per part
    with made as module, status:
        culprit = module.bisect(**values, progress=progress)
    if culprit is None:
        out.print("no region differs from the reference engine", markup=False)
        return 0
    out.print(f"{culprit} ({culprit.runs} parts tried)", markup=False, soft_wrap=True)
    if target is not None:
        save_case(culprit.function, culprit.inputs, culprit.expected, target)
        out.print(f"written to {target}", markup=False, soft_wrap=True)
    return 1
