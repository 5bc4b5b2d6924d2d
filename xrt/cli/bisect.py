"""``xrt bisect``: the smallest part of a model that an engine gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xrt.cli.bundles import open_bundle
from xrt.cli.inputs import all_inputs
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

__all__ = ["command"]


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
def command(model: str, files: tuple[str, ...], seed: int, target: str | None, **given: Any) -> int:
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
