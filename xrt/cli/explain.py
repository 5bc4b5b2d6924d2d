"""``xrt explain``: which engine takes which part of a model, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xrt.cli.bundles import open_bundle
from xrt.cli.inputs import all_inputs, from_files, set_shapes
from xrt.cli.options import (
    check_sizes,
    check_writable,
    input_options,
    isolation_options,
    load_with_sizes,
    module_keywords,
    module_options,
)
from xrt.cli.screen import human_bytes, out, show_table
from xrt.formats.bundle import is_bundle
from xrt.formats.output import replace_file
from xrt.module import XRTModule
from xrt.module.html import render_explanation_page
from xrt.placement.engine_list import is_auto
from xrt.placement.report import describe_prediction, format_seconds

if TYPE_CHECKING:
    from xrt.placement import CostReport

__all__ = ["command"]


@click.command("explain")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option("--memory", "with_memory", is_flag=True, help="Compile, and show the memory of weights, arena and engines")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with the plan as pictures")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("-v", "--verbose", is_flag=True, help="Also show what engines do on special values, and engines left out by auto")
def command(
    model: str, files: tuple[str, ...], seed: int, with_memory: bool, html: str | None, as_json: bool, verbose: bool, **given: Any
) -> None:
    """Show how MODEL, an ONNX file, a bundle or a shipped model, is divided.

    The output has the regions in order, with sizes and boundaries, and the reason for each node that is not on the first
    engine. For a plan that was chosen by measurement (-e auto) it also has the costs of regions and boundaries, the plans that
    lost, and the operators whose support would save most.
    """
    if html is not None:
        check_writable(Path(html))
    if is_bundle(model):
        module = open_bundle(model, click.get_current_context())[1]
    else:
        function, keywords = load_with_sizes(model, given), module_keywords(given)
        if is_auto(keywords["engine"]):
            check_sizes(set_shapes(function, from_files(files, function)))
        module = XRTModule(function, **keywords)
        if files or is_auto(keywords["engine"]):
            module.plan_for(**all_inputs(files, function, seed))
    if with_memory:
        module.compile()
    explanation = module.explain()
    if html is not None:
        page = render_explanation_page(explanation, model).encode()
        replace_file(Path(html), lambda file: file.write(page))
    if as_json:
        out.print_json(json.dumps(explanation.to_dict() | ({"memory": module.memory().to_dict()} if with_memory else {})))
        return
    out.print(replace(explanation, account=None).describe(deviations=verbose, left_out=verbose), markup=False)
    if explanation.account is not None:
        _show(explanation.account)
    if with_memory:
        out.print(f"memory:\n{module.memory()}", markup=False, soft_wrap=True)


def _show(account: CostReport) -> None:
    """Print what the parts of a chosen plan cost, as tables."""
    if account.parts:
        out.print(describe_prediction(account), markup=False)
        rows = [
            (x.name, x.engine, x.nodes, format_seconds(x.predicted), x.source, format_seconds(x.measured)) for x in account.parts
        ]
        columns = ("region", "engine", "nodes", "predicted", "known", "took")
        show_table(columns, rows, numbers=("nodes", "predicted", "took"), whole=("region", "known"))
    if account.boundaries:
        crossing = [(x.value, x.source, x.target, human_bytes(x.bytes), format_seconds(x.seconds)) for x in account.boundaries]
        show_table(("value", "from", "to", "size", "costs"), crossing, numbers=("size", "costs"))
    if account.unlocks:
        out.print("what would unlock the graph, by the prediction:", markup=False)
        gains = [(x.operator, x.engine, x.nodes, format_seconds(x.seconds)) for x in account.unlocks]
        show_table(("operator", "engine", "nodes", "saves"), gains, numbers=("nodes", "saves"))
