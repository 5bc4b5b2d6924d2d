"""``xrt verify``: each region of a model, and each value inside, against the reference engine."""

from __future__ import annotations

import json
from typing import Any

import click

from xrt.cli.bundles import open_bundle
from xrt.cli.inputs import all_inputs
from xrt.cli.options import (
    input_options,
    isolation_options,
    load_with_sizes,
    module_keywords,
    module_options,
)
from xrt.cli.screen import WorkStatus, out
from xrt.formats.bundle import is_bundle
from xrt.module import XRTModule

__all__ = ["command"]


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
