"""Bundles on the command line: what `xrt run` runs instead of a model, and what `xrt inspect` shows of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from xrt.cli.options import isolation_keywords, parse_dims, set_dims, settle_batch
from xrt.cli.screen import human_bytes, out, show_table
from xrt.engines import split_specs
from xrt.engines.contract.registry import why_not_chosen
from xrt.errors import OptionError
from xrt.formats.bundle import BundleFile, load_model
from xrt.module import XRTModule, load
from xrt.module.self_test import SECTION as SELF_TEST
from xrt.module.stored_serving import read_serving
from xrt.module.variants import Variant, read_variants
from xrt.placement.throughput.result import ServingConfiguration

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["open_bundle", "read_bundle_facts", "show_bundle"]

_FREE = (
    *("model", "strict", "dims", "batch", "files", "seed", "target", "repeat", "trace", "verified"),
    *("threads", "check", "isolate", "isolate_run", "time_limit", "memory_limit"),
    *("with_memory", "outputs_only", "html", "as_json"),
)
"""Options of commands that a bundle does not settle."""


def open_bundle(path: str, context: click.Context) -> tuple[Function, XRTModule]:
    """Return a bundle's model, or the first trace of its graph, and the module, loaded as the options ask.

    The model has the sizes of ``--dim``, which random inputs take.

    Raises OptionError for an option on the command line that the bundle has settled.
    """
    settled = [_name(option) for option in context.command.params if _is_given(option.name or "", context)]
    if settled:
        raise OptionError(f"{path} is a bundle, which settles {', '.join(settled)}; leave that out, or compile the model again")
    asked = context.params
    function = load_model(path)
    settle_batch(function, asked)
    return set_dims(function, parse_dims(asked["dims"])), load(
        path,
        engine=_named(context),
        threads=asked.get("threads"),
        strict=asked["strict"],
        check=asked.get("check"),
        **isolation_keywords(asked),
    )


def _name(option: click.Parameter) -> str:
    """Return the first long name of an option."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def _is_given(name: str, context: click.Context) -> bool:
    is_free = name in _FREE or (name == "engine" and _named(context))
    return not is_free and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _named(context: click.Context) -> list[str]:
    """Return the engines that are named because a bundle may not choose them; none where the options name no file."""
    if context.get_parameter_source("engine") is not ParameterSource.COMMANDLINE:
        return []
    specs = split_specs(context.params["engine"])
    return specs if any(why_not_chosen(spec, "bundle") for spec in specs) else []


def read_bundle_facts(path: str) -> dict[str, Any]:
    """Return what there is to say of a bundle, as plain data. No compiled form is read, let alone loaded."""
    file = BundleFile(path)
    manifest = file.manifest
    return {
        "writer": f"xrt {manifest['writer']}",
        "model": "an ONNX model or Function" if manifest["model"] else "traces of a graph",
        "engines": {engine["spec"]: engine["version"] for engine in manifest["engines"]},
        "device": manifest["device"],
        "inputs": {value.name: str(value.type or "?") for value in manifest["inputs"]},
        "outputs": {value.name: str(value.type or "?") for value in manifest["outputs"]},
        "variants": [_facts_of_variant(one) for one in read_variants(file)],
        "self_test": SELF_TEST in file.sections,
        "programs": [_facts_of_program(program) for program in manifest["programs"]],
        "bytes": file.sizes,
        **({} if (found := read_serving(file)) is None else {"serving": ServingConfiguration.from_record(found).to_dict()}),
    }


def _facts_of_variant(variant: Variant) -> dict[str, Any]:
    return {"processor": variant.machine, "threads": variant.threads, "engines": list(variant.engines)}


def _facts_of_program(program: Mapping[str, Any]) -> dict[str, Any]:
    launches = program["plan"]["launches"]
    regions = [
        {
            "name": launch["name"],
            "engine": launch["engine"],
            "nodes": len(launch["nodes"]),
            "compiled": bool(region["section"]),
            "machine": {one["name"]: one["value"] for one in region["ingredients"]}.get("machine", ""),
            "reason": region["reason"],
        }
        for launch, region in zip(launches, program["regions"], strict=False)
    ]
    inputs = {value.name: str(value.type) for value in program["plan"]["function"].inputs}
    return {"inputs": inputs, "fetch": list(program["fetch"]), "regions": regions}


def show_bundle(facts: Mapping[str, Any]) -> None:
    """Print the facts."""
    sizes = facts["bytes"]
    total, weights = human_bytes(sum(sizes.values())), human_bytes(sizes["weights"])
    out.print(f"a bundle of {facts['writer']}: {facts['model']}, for {facts['device']}; {total}, weights {weights}", markup=False)
    ends = [(kind[:-1], name, type_) for kind in ("inputs", "outputs") for name, type_ in facts[kind].items()]
    show_table(("", "name", "type"), ends)
    show_table(("engine", "version"), list(facts["engines"].items()))
    if len(facts["variants"]) > 1:
        variants = [
            (one["processor"].rpartition("; ")[2], one["threads"], ", ".join(one["engines"])) for one in facts["variants"]
        ]
        show_table(("variant for", "threads", "engines"), variants, numbers=("threads",))
        out.print("The programs are those of the first variant.")
    rows = [
        (", ".join(program["inputs"].values()), r["name"], r["engine"], r["nodes"], "yes" if r["compiled"] else r["reason"])
        for program in facts["programs"]
        for r in program["regions"]
    ]
    show_table(("program", "region", "engine", "nodes", "compiled form"), rows, numbers=("nodes",))
    if "serving" in facts:
        chosen = facts["serving"]
        out.print(
            f"tuned for throughput: {ServingConfiguration(**{**chosen, 'bound': chosen['bound'] or math.inf})}", markup=False
        )
