"""``xrt inspect``: what a model is."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from xrt.cli.bundles import read_bundle_facts, show_bundle
from xrt.cli.options import load_with_options
from xrt.cli.screen import human_bytes, out, show_table
from xrt.formats.bundle import BundleFile, is_bundle
from xrt.graph.verify import verify

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["command"]


@click.command("inspect")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("--text", "as_text", is_flag=True, help="Print the whole graph as text")
def command(model: str, as_json: bool, as_text: bool) -> None:
    """Show inputs, outputs, types, opsets, operators and sizes of MODEL: an ONNX file, a bundle or a shipped model."""
    if is_bundle(model):
        _inspect_bundle(model, as_json=as_json, as_text=as_text)
        return
    function = load_with_options(model)
    verify(function)
    facts = read_model_facts(function)
    if as_text:
        out.print(str(function), markup=False)
    elif as_json:
        out.print_json(json.dumps(facts))
    else:
        _show(facts)


def _inspect_bundle(path: str, *, as_json: bool, as_text: bool) -> None:
    facts = read_bundle_facts(path)
    if as_text:
        manifest = BundleFile(path).manifest
        out.print("\n".join(str(program["plan"]["function"]) for program in manifest["programs"]), markup=False)
    elif as_json:
        out.print_json(json.dumps(facts))
    else:
        show_bundle(facts)


def read_model_facts(function: Function) -> dict[str, Any]:
    """Return what there is to say of a model, as plain data."""
    operators = Counter(node.op for _, node in function.walk())
    constants = function.constants.values()
    return {
        "name": function.name,
        "opsets": {domain or "ai.onnx": version for domain, version in function.opsets.items()},
        "inputs": {value.name: str(value.type) for value in function.inputs},
        "outputs": {value.name: str(value.type) for value in function.outputs},
        "nodes": sum(operators.values()),
        "operators": dict(operators.most_common()),
        "constants": len(function.constants),
        "constant_bytes": sum(constant.nbytes for constant in constants),
        "parameters": sum(constant.array.size for constant in constants),
    }


def _show(facts: dict[str, Any]) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    out.print(f"{facts['name']}: {facts['nodes']} nodes, opset {opsets}", markup=False)
    out.print(
        f"{facts['constants']} constants, {facts['parameters']:,} elements, {human_bytes(facts['constant_bytes'])}", markup=False
    )
    rows = [(kind, name, type_) for kind in ("inputs", "outputs") for name, type_ in facts[kind].items()]
    show_table(("", "name", "type"), [(kind[:-1], name, type_) for kind, name, type_ in rows])
    show_table(("operator", "nodes"), list(facts["operators"].items()), numbers=("nodes",))
