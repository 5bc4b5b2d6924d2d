"""Models, inputs and batches of inputs, as commands read them from files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from click.core import ParameterSource

from xrt import passes
from xrt.cli.options import isolation_keywords, load_with_sizes, module_keywords, parse_dims, set_dims, settle_batch
from xrt.cli.screen import human_bytes, out, show_table
from xrt.engines import split_specs
from xrt.engines.contract.registry import why_not_chosen
from xrt.errors import InputError, OptionError, did_you_mean
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.bundle import BundleFile, is_bundle, load_model
from xrt.formats.program_record import StoredProgram
from xrt.graph import Function, TensorType, Value
from xrt.models import sample_inputs
from xrt.module import XRTModule, load
from xrt.module.saving import SELF_TEST_SECTION as SELF_TEST
from xrt.module.tuning import read_serving
from xrt.placement.throughput import ServingConfiguration

__all__ = [
    "all_inputs",
    "from_files",
    "list_input_files",
    "open_bundle",
    "open_model",
    "read_batches",
    "read_bundle_facts",
    "set_shapes",
    "show_bundle",
]


def all_inputs(files: Sequence[str], function: Function, seed: int) -> dict[str, Any]:
    """Return a value for each input: from files, and else a random one, of the extents that those of the files say."""
    arrays = from_files(files, function)
    return sample_inputs(set_shapes(function, arrays), seed) | arrays


def set_shapes(function: Function, arrays: Mapping[str, Any]) -> Function:
    """Return the function for the shapes of those arrays; raises InputError for one that does not fit."""
    tensors = {value.name for value in function.inputs if isinstance(value.type, TensorType)}
    shapes = {name: array.shape for name, array in arrays.items() if name in tensors and isinstance(array, np.ndarray)}
    return passes.specialize(function, shapes) if shapes else function


def from_files(files: Sequence[str], function: Function) -> dict[str, Any]:
    """Return values by input name from texts such as ``x=x.npy`` and ``all.npz``.

    Raises OptionError for a text that does not say which input it is, InputError for a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for name, path in _named(files, function):
        values |= {name: read_npy(path)} if name is not None else read_npz(path)
    return values


def list_input_files(files: Sequence[str], function: Function) -> dict[str, Path]:
    """Return for each input that `from_files` finds the file that it is in; raises what that does."""
    files_by_input: dict[str, Path] = {}
    for name, path in _named(files, function):
        files_by_input |= dict.fromkeys([name] if name is not None else read_npz(path), path)
    return files_by_input


def _named(files: Sequence[str], function: Function) -> list[tuple[str | None, Path]]:
    """Return the files, each with the input that it is of; None for one that says so itself."""
    return [_file(text, function) for text in files]


def _file(text: str, function: Function) -> tuple[str | None, Path]:
    name, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return name, Path(path)
    if text.endswith(".npz"):
        return None, Path(text)
    if len(function.inputs) != 1:
        raise OptionError(f"--input {text!r} does not say which input it is; write NAME=FILE.npy, or give an .npz")
    return function.inputs[0].name, Path(text)


Batch: TypeAlias = dict[str, np.ndarray[Any, Any]]
WANTED, MOST_ROWS = 10, 16
"""Into how many batches the rows of a symbolic dim are divided, and how many rows a batch has at most."""


def read_batches(path: Path, function: Function) -> list[Batch]:
    """Return batches of arrays by input name, from a file or the files of a folder, in the order of their names.

    An ``.npz`` has an array per input; an ``.npy`` is for a model of one input. Arrays of many examples are cut along their first
    axis: into arrays of the declared extent, or of a few rows where it is symbolic. An array with one axis more than its input
    has a batch in each row. Raises InputError for files that do not fit.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        if not files:
            raise InputError(f"there is no .npy or .npz file in {path}; write one with numpy.savez, an array for each input")
    else:
        files = [path]
    return [batch for file in files for batch in _cut(_read(file, function), function, file)]


def _read(path: Path, function: Function) -> Batch:
    names = [value.name for value in function.inputs]
    if path.suffix == ".npy":
        if len(names) != 1:
            raise InputError(
                f"{path} has one array, and the model takes {', '.join(names)}; write an .npz with an array for each"
            )
        return {names[0]: read_npy(path)}
    arrays = read_npz(path)
    for name in arrays:
        if name not in names:
            raise InputError(
                f"{path} has an array {name!r}, which is no input.{did_you_mean(name, names)} Inputs: {', '.join(names)}"
            )
    if missing := [name for name in names if name not in arrays]:
        raise InputError(f"{path} has no array for input{'s' * (len(missing) != 1)} {', '.join(missing)}")
    return arrays


def _cut(arrays: Batch, function: Function, path: Path) -> Iterator[Batch]:
    """Yield the batches of one file."""
    cut = {value.name: _cut_array(arrays[value.name], value) for value in function.inputs}
    counts = {name: len(batches) for name, batches in cut.items() if isinstance(batches, list)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"the arrays of {path} have different numbers of batches: {listed}")
    for place in range(next(iter(counts.values()), 1)):
        yield {name: batches[place] if isinstance(batches, list) else batches for name, batches in cut.items()}


def _cut_array(array: np.ndarray[Any, Any], value: Value) -> Any:
    """Return the arrays of each batch; the array itself where the same one is for all."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return [array]
    if array.ndim == len(type_.shape) + 1:
        return list(array)
    if array.ndim != len(type_.shape) or not array.ndim:
        return array if not array.ndim else [array]  # a call says what does not fit
    extent, rows = type_.shape[0], array.shape[0]
    size = extent if isinstance(extent, int) else min(MOST_ROWS, max(1, math.ceil(rows / WANTED)))
    if not size or (rows % size and isinstance(extent, int)):
        return [array]
    return [array[at : at + size] for at in range(0, rows, size)]


_FREE = (
    *("model", "strict", "dims", "batch", "files", "seed", "target", "repeat", "trace", "verified"),
    *("threads", "check", "isolate", "isolate_run", "time_limit", "memory_limit"),
    *("with_memory", "outputs_only", "html", "as_json"),
)
"""Options of commands that a bundle does not settle."""


def open_model(model: str, params: dict[str, Any], **keywords: Any) -> tuple[Function, XRTModule]:
    """Return the model and its module: from a bundle, or made with the options of the command."""
    if is_bundle(model):
        return open_bundle(model, click.get_current_context())
    function = load_with_sizes(model, params)
    return function, XRTModule(function, **module_keywords(params), **keywords)


def open_bundle(path: str, context: click.Context) -> tuple[Function, XRTModule]:
    """Return a bundle's model, or the first trace of its graph, and the module, loaded as the options ask.

    The model has the sizes of ``--dim``, which random inputs take.

    Raises OptionError for an option on the command line that the bundle has settled.
    """
    options = [option for option in context.command.params if _is_given(option.name or "", context)]
    settled = [next((name for name in option.opts if name.startswith("--")), option.opts[0]) for option in options]
    if settled:
        raise OptionError(f"{path} is a bundle, which settles {', '.join(settled)}; leave that out, or compile the model again")
    params = context.params
    function = load_model(path)
    settle_batch(function, params)
    return set_dims(function, parse_dims(params["dims"])), load(
        path,
        engine=_list_named_bundles(context),
        threads=params.get("threads"),
        strict=params["strict"],
        check=params.get("check"),
        **isolation_keywords(params),
    )


def _is_given(name: str, context: click.Context) -> bool:
    is_free = name in _FREE or (name == "engine" and _list_named_bundles(context))
    return not is_free and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _list_named_bundles(context: click.Context) -> list[str]:
    """Return the engines that are named because a bundle may not choose them; none where the options name no file."""
    if context.get_parameter_source("engine") is not ParameterSource.COMMANDLINE:
        return []
    specs = split_specs(context.params["engine"])
    return specs if any(why_not_chosen(spec, "bundle") for spec in specs) else []


def read_bundle_facts(path: str) -> dict[str, Any]:
    """Return what there is to say of a bundle, as plain data. No compiled form is read, let alone loaded."""
    file = BundleFile(path)
    record, facts = file.record, file.record.facts
    return {
        "writer": f"xrt {facts['writer']}",
        "model": "an ONNX model or Function" if facts["model"] else "traces of a graph",
        "engines": {engine["spec"]: engine["version"] for engine in facts["engines"]},
        "device": facts["device"],
        "inputs": {value.name: str(value.type or "?") for value in record.inputs},
        "outputs": {value.name: str(value.type or "?") for value in record.outputs},
        "self_test": SELF_TEST in file.sections,
        "programs": [_facts_of_program(program, file) for program in record.programs],
        "bytes": file.sizes,
        **({} if (serving := read_serving(file)) is None else {"serving": ServingConfiguration.from_record(serving).to_dict()}),
    }


def _facts_of_program(program: StoredProgram, file: BundleFile) -> dict[str, Any]:
    launches = file.read_plan(program.plan)["launches"]
    regions = [
        {
            "name": launch["name"],
            "engine": launch["engine"],
            "nodes": len(launch["nodes"]),
            "compiled": bool(form.section),
            "machine": dict(form.ingredients).get("machine", ""),
            "reason": form.reason,
        }
        for launch, form in zip(launches, program.compiled, strict=False)
    ]
    return {"inputs": {one.name: str(one.type) for one in program.inputs}, "fetch": list(program.fetch), "regions": regions}


def show_bundle(facts: Mapping[str, Any]) -> None:
    """Print the facts."""
    sizes = facts["bytes"]
    total, weights = human_bytes(sum(sizes.values())), human_bytes(sizes["weights"])
    out.print(f"a bundle of {facts['writer']}: {facts['model']}, for {facts['device']}; {total}, weights {weights}", markup=False)
    ends = [(kind[:-1], name, type_) for kind in ("inputs", "outputs") for name, type_ in facts[kind].items()]
    show_table(("", "name", "type"), ends)
    show_table(("engine", "version"), list(facts["engines"].items()))
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
