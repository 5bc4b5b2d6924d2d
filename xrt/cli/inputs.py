"""Models, inputs and batches of examples that commands read from files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from click.core import ParameterSource

from xrt.bench import BenchTarget
from xrt.bench.targets import find_batch_dim, from_files, name_batch, set_dims, set_shapes
from xrt.cli.options import isolation_keywords, module_keywords, parse_dims
from xrt.engines import split_specs
from xrt.engines.contract.registry import why_forbidden
from xrt.errors import InputError, OptionError, did_you_mean
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.bundle import is_bundle, load_model
from xrt.graph import Function, TensorType, Value
from xrt.models import sample_inputs
from xrt.module import XRTModule, load
from xrt.module.model_source import make_source
from xrt.placement.records import read_lock, read_shapes
from xrt.precision.budget import ErrorBudget


def load_with_options(text: str) -> Function:
    """Load a model from its path, or a shipped model by its name, whose sizes follow in braces: ``bert{layers=2}``."""
    if not os.path.lexists(text):
        return BenchTarget.parse(text).load()
    return load_model(text) if is_bundle(text) else make_source(Path(text)).get_declared_function()


def replace_batch_by_dim(function: Function, params: dict[str, Any]) -> None:
    """Replace ``--batch`` in ``params`` by the equivalent ``--dim``; just remove it if the model has this batch size already."""
    batch, params["batch"] = params.get("batch"), None
    name = None if batch is None else find_batch_dim(function, batch)
    if name is not None:
        params["dims"] = (*params["dims"], f"{name}={batch}")


def load_with_sizes(model: str, params: dict[str, Any]) -> Function:
    function = load_with_options(model)
    replace_batch_by_dim(function, params)
    return set_dims(function, parse_dims(params["dims"]))


def add_locked_dims(model: str, function: Function, sizes: Mapping[str, int], lock: str) -> dict[str, int]:
    """Add the sizes of the lock to those of ``--dim``; raises OptionError if a size differs."""
    locked = _read_locked_dims(function, lock)
    differing = [name for name, size in locked.items() if sizes.get(name, size) != size]
    if differing:
        expected = " ".join(f"--dim {name}={locked[name]}" for name in differing)
        requested = " ".join(f"--dim {name}={sizes[name]}" for name in differing)
        raise OptionError(
            f"the lock {lock} is for {expected}, and {requested} was given; leave that out, "
            f"or write another lock: xrt lock {model} {requested} -o FILE"
        )
    return {**locked, **sizes}


def _read_locked_dims(function: Function, lock: str) -> dict[str, int]:
    # The lock itself is checked later, with a better message if it belongs to another model.
    symbolic = name_batch(function)
    shapes = read_shapes(read_lock(lock), symbolic)
    locked: dict[str, int] = {}
    for value in symbolic.inputs:
        declared = value.type.shape if isinstance(value.type, TensorType) else None
        for name, size in zip(declared or (), shapes.get(value.name, ()), strict=False):
            if isinstance(name, str):
                locked.setdefault(name, size)
    return locked


_BUNDLE_OPTIONS = {
    *("model", "strict", "dims", "batch", "files", "seed", "target", "repeat", "trace", "verified"),
    *("threads", "check", "isolate", "isolate_run", "time_limit", "memory_limit"),
    *("with_memory", "outputs_only", "html", "as_json", "verbose"),
}
"""Options that also apply to a bundle. The values of other options were fixed when the bundle was compiled."""


def open_model(model: str, params: dict[str, Any]) -> tuple[Function, XRTModule]:
    """Open a model with the options of the command.

    Returns a Function, which describes the inputs, and the module to run. The Function of a bundle is its model, or the first
    trace of its graph, at the sizes of ``--dim``. Raises OptionError for an option whose value was fixed when the bundle was
    compiled.
    """
    if is_bundle(model):
        return _open_bundle(model, params)
    declared = load_with_options(model)
    replace_batch_by_dim(declared, params)  # changes ``params``
    sizes = parse_dims(params["dims"])
    lock = params.get("lock")
    if lock is None:
        function = set_dims(declared, sizes)
        return function, XRTModule(function, **module_keywords(params))
    # A lock serves all sizes of the symbolic model, so its dims stay open in the module.
    function = set_dims(declared, {**_read_locked_dims(declared, lock), **sizes})
    return function, XRTModule(declared, **module_keywords(params))


def _open_bundle(model: str, params: dict[str, Any]) -> tuple[Function, XRTModule]:
    engines = split_specs(params["engine"]) if params["engine"] else []
    # A bundle must not choose engines whose options may name files or code, so the caller names these.
    has_forbidden_engine = any(why_forbidden(spec, "bundle") for spec in engines)
    # Only options that the user typed are an error, not defaults.
    context = click.get_current_context()
    fixed = []
    for option in context.command.params:
        is_applicable = option.name in _BUNDLE_OPTIONS or (option.name == "engine" and has_forbidden_engine)
        if not is_applicable and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            fixed.append(next((flag for flag in option.opts if flag.startswith("--")), option.opts[0]))
    if fixed:
        raise OptionError(f"{model} is a bundle with fixed {', '.join(fixed)}; leave that out, or compile the model again")
    declared = load_model(model)
    replace_batch_by_dim(declared, params)
    function = set_dims(declared, parse_dims(params["dims"]))
    keywords: dict[str, Any] = {name: params.get(name) for name in ("threads", "strict", "check")}
    return function, load(model, engine=engines if has_forbidden_engine else [], **keywords, **isolation_keywords(params))


def open_with_inputs(model: str, params: dict[str, Any]) -> tuple[Function, XRTModule, dict[str, Any]]:
    function, module = open_model(model, params)
    return function, module, all_inputs(params["files"], function, params["seed"])


def all_inputs(files: Sequence[str], function: Function, seed: int) -> dict[str, Any]:
    """Return a value for each input by name: from the files or, if none has it, random at the sizes that the files imply."""
    arrays = from_files(files, function)
    return sample_inputs(set_shapes(function, arrays), seed) | arrays


Batch: TypeAlias = dict[str, np.ndarray[Any, Any]]
TARGET_BATCHES, MAX_BATCH_ROWS = 10, 16
"""Arrays whose first axis is symbolic are split into about `TARGET_BATCHES` batches of at most `MAX_BATCH_ROWS` rows."""


def precision_keywords(params: Mapping[str, Any], function: Function) -> dict[str, Any]:
    examples = [name for name in ("calibrate", "validate") if params.get(name) is not None]
    if params.get("max_error") is None:
        if examples:
            raise OptionError(f"--{examples[0]} has examples for an error budget; pass --max-error too, such as --max-error 1%")
        return {}
    if not examples:
        raise OptionError("--max-error needs examples to measure the error on; pass --validate, and --calibrate for int8")
    batches = {name: read_batches(Path(params[name]), function) for name in examples}
    return {"max_error": ErrorBudget(params["max_error"], params["measure"]), **batches}


def read_batches(path: Path, function: Function) -> list[Batch]:
    """Read batches from a file, or from the files of a folder in the order of their names.

    An ``.npz`` has an array per input; an ``.npy`` is for a model with one input. Arrays are split along their first axis: to the
    declared extent, or to a few rows if it is symbolic. An array with an additional axis has a batch in each row. Raises
    InputError for files that do not fit.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        if not files:
            raise InputError(f"there is no .npy or .npz file in {path}; write one with numpy.savez, an array for each input")
    return [batch for file in files for batch in _split(_read(file, function), function, file)]


def _read(path: Path, function: Function) -> Batch:
    """Read one file of examples: an array per input of the model. Raises InputError for missing or unknown inputs."""
    names = [value.name for value in function.inputs]
    name_list = ", ".join(names)
    if path.suffix == ".npy":
        if len(names) != 1:
            raise InputError(f"{path} has one array, and the model takes {name_list}; write an .npz with an array for each")
        return {names[0]: read_npy(path)}
    arrays = read_npz(path)
    if (extra := next((name for name in arrays if name not in names), None)) is not None:
        raise InputError(f"{path} has an array {extra!r}, which is no input.{did_you_mean(extra, names)} Inputs: {name_list}")
    if missing := [name for name in names if name not in arrays]:
        noun = "input" if len(missing) == 1 else "inputs"
        raise InputError(f"{path} has no array for {noun} {', '.join(missing)}")
    return arrays


def _split(arrays: Batch, function: Function, path: Path) -> Iterator[Batch]:
    """Yield the batches of a file; raises InputError if its arrays have different numbers of batches."""
    parts = {value.name: _split_array(arrays[value.name], value) for value in function.inputs}
    counts = {name: len(batches) for name, batches in parts.items() if isinstance(batches, list)}
    if len(set(counts.values())) > 1:
        count_list = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"the arrays of {path} have different numbers of batches: {count_list}")
    # Scalars alone are one batch.
    for index in range(next(iter(counts.values()), 1)):
        yield {name: batches[index] if isinstance(batches, list) else batches for name, batches in parts.items()}


def _split_array(array: np.ndarray[Any, Any], value: Value) -> Any:
    """Split the array of one input into a list of batches. A scalar is returned unsplit, since every batch uses it."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return [array]
    if array.ndim == len(type_.shape) + 1:
        return list(array)
    if not array.ndim:
        return array
    if array.ndim != len(type_.shape):
        return [array]  # the call reports that it does not fit
    extent, rows = type_.shape[0], array.shape[0]
    size = extent if isinstance(extent, int) else min(MAX_BATCH_ROWS, max(1, math.ceil(rows / TARGET_BATCHES)))
    if not size or (rows % size and isinstance(extent, int)):
        return [array]  # the call reports that the rows do not fit the fixed extent
    return [array[start : start + size] for start in range(0, rows, size)]
