"""``xrt explain``: which engine takes which part of a model, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from xrt import passes
from xrt.cli.bundles import opened
from xrt.cli.options import dims_of, loaded, module_keywords, module_options
from xrt.cli.screen import human_bytes, out, show_table
from xrt.errors import OptionError, did_you_mean
from xrt.formats.bundle import is_bundle
from xrt.graph import Function, TensorType
from xrt.module import XRTModule
from xrt.tune import Account
from xrt.tune.account import time_of

__all__ = ["command", "with_dims"]


@click.command("explain")
@click.argument("model")
@module_options
@click.option(
    "--memory", "with_memory", is_flag=True, help="Compile too, and show what weights, arena and engines take of memory"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def command(model: str, with_memory: bool, as_json: bool, **given: Any) -> None:
    """Show how MODEL, an ONNX file, a bundle or a shipped model, is cut.

    That is: the regions in order with size and boundary, and the reason for each node off the first engine. Of a plan that was
    chosen by measurement (-e auto) also what regions and boundaries cost, who lost by how much, and what would unlock the graph.
    """
    if is_bundle(model):
        module = opened(model, click.get_current_context())[1]
    else:
        module = XRTModule(with_dims(loaded(model), dims_of(given["dims"])), **module_keywords(given))
    if with_memory:
        module.compile()
    explanation = module.explain()
    if as_json:
        out.print_json(json.dumps(explanation.to_dict() | ({"memory": module.memory().to_dict()} if with_memory else {})))
        return
    out.print(str(replace(explanation, account=None)), markup=False)
    if explanation.account is not None:
        _show(explanation.account)
    if with_memory:
        out.print(f"memory:\n{module.memory()}", markup=False, soft_wrap=True)


def _show(account: Account) -> None:
    """Print what the parts of a chosen plan cost, as tables."""
    if account.parts:
        out.print(f"predicted {time_of(account.predicted)} for a call; it took {time_of(account.measured)}", markup=False)
        rows = [(x.name, x.engine, x.nodes, time_of(x.predicted), x.source, time_of(x.measured)) for x in account.parts]
        columns = ("region", "engine", "nodes", "predicted", "known", "took")
        show_table(columns, rows, numbers=("nodes", "predicted", "took"), whole=("region", "known"))
    if account.boundaries:
        crossing = [(x.value, x.source, x.target, human_bytes(x.bytes), time_of(x.seconds)) for x in account.boundaries]
        show_table(("value", "from", "to", "size", "costs"), crossing, numbers=("size", "costs"))
    if account.unlocks:
        out.print("what would unlock the graph, by the prediction:", markup=False)
        gains = [(x.operator, x.engine, x.nodes, time_of(x.seconds)) for x in account.unlocks]
        show_table(("operator", "engine", "nodes", "saves"), gains, numbers=("nodes", "saves"))


def with_dims(function: Function, sizes: dict[str, int]) -> Function:
    """Return the function with those symbolic dimensions fixed; raises OptionError for a name that no input has."""
    if not sizes:
        return function
    tensors = [value.type for value in function.inputs if isinstance(value.type, TensorType)]
    known = {dim for type_ in tensors for dim in type_.shape or () if isinstance(dim, str)}
    for name in sizes:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise OptionError(f"no input has a dimension {name!r}.{did_you_mean(name, known)} The model has: {listed}")
    return passes.bind_dims(function, sizes)
