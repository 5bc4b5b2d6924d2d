"""Parse and load the subjects of a comparison: models at a size, and candidates, which are one engine or a mixture."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from xrt import models, passes
from xrt.engines.contract.spec import parse_spec, split_specs
from xrt.errors import ModelError, OptionError, did_you_mean
from xrt.formats import onnx
from xrt.formats.arrays import read_npy, read_npz
from xrt.formats.bundle import is_bundle, load_model
from xrt.graph import FrozenDict, Function, TensorType, Value
from xrt.partition import Pin
from xrt.placement.engine_list import AUTO

_TARGET = re.compile(r"(?P<source>[^{}]+?)\s*(?:\{(?P<sizes>[^{}]*)\})?\s*")
_WITH = re.compile(r"\s+with\s+")
BATCH = "batch"
MAX_DIGITS = 100
"""Maximum digits of a size: Python raises ValueError for an integer of thousands of digits."""


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A model as text: the name of a shipped model, or the path of an ONNX file or bundle, with sizes in braces."""

    source: str
    sizes: Mapping[str, int] = FrozenDict()
    """Sizes of a shipped model, or values of an ONNX file's symbolic dims."""
    batch: int | None = None
    """Batch size; None for the model's own."""
    files: tuple[str, ...] = ()
    """Inputs from files, as in ``--input``; random ones replace the missing ones."""

    @classmethod
    def parse(cls, text: str, batch: int | None = None) -> Self:
        """Parse ``squeezenet``, ``bert{layers=2}`` or ``model.onnx{tokens=128}``; raises OptionError for other forms."""
        match = _TARGET.fullmatch(text)
        if match is None:
            raise OptionError(f"{text!r} is not a model; write a model like 'squeezenet', 'bert{{layers=2}}' or 'model.onnx'")
        parts = [part for part in (match["sizes"] or "").split(",") if part.strip()]
        return cls(match["source"], FrozenDict(_parse_size(part, text) for part in parts), batch)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.source}{{{sizes}}}" if sizes else self.source

    def load(self, seed: int = 0) -> Function:
        """Load the model; raises ModelError or OptionError, also for an impossible batch size."""
        if self.source not in models.names():
            return self._load_file()
        # A shipped model with a size named batch is built for this size; another has a symbolic dim or a fixed batch.
        if self.batch is None or BATCH not in models.list_model_sizes(self.source):
            return _with_batch(models.load(self.source, seed, **self.sizes), self.batch)
        return models.load(self.source, seed, **{**self.sizes, BATCH: self.batch})

    def check(self) -> Function | None:
        """Raise ModelError or OptionError if the model or a size does not exist.

        Return the model of a file. A shipped model is not built, since all its sizes are known; the result is then None.
        """
        if self.source in models.names():
            models.check_sizes(self.source, self.sizes)
            return None
        return self._load_file()

    def _load_file(self) -> Function:
        """Load an ONNX file, or the model of a bundle without its engines and compiled forms."""
        source, shipped = self.source, models.names()
        if not os.path.lexists(source):
            if Path(source).suffix or os.sep in source:  # looks like a path, so do not suggest shipped models
                raise ModelError(f"cannot load {source!r}: there is no such file; without a suffix it may name a shipped model")
            hint = did_you_mean(source, shipped)
            raise ModelError(f"{source!r} is neither a file nor a shipped model.{hint} Shipped: {', '.join(shipped)}")
        function = load_model(source) if is_bundle(source) else onnx.load(source)
        return _with_batch(set_dims(function, self.sizes), self.batch)


def _parse_size(part: str, text: str) -> tuple[str, int]:
    name, equals, size = (piece.strip() for piece in part.partition("="))
    if not equals or not size.isdecimal():
        raise OptionError(f"a model's size is written NAME=NUMBER, such as layers=2; got {part.strip()!r} in {text!r}")
    if len(size) > MAX_DIGITS:
        raise OptionError(
            f"{name} of {text[:MAX_DIGITS]!r}... is a number of {len(size)} digits, which is too large for an extent"
        )
    return name, int(size)


def set_dims(function: Function, sizes: Mapping[str, int]) -> Function:
    """Set symbolic dims to sizes by name. The size ``batch`` also applies to unnamed dynamic first axes of inputs.

    Raises OptionError for a name that no input has.
    """
    if BATCH in sizes:
        function = name_batch(function)
    dims = {dim for shape in _shapes(function) for dim in shape if isinstance(dim, str)}
    for name in sizes:
        if name not in dims:
            dim_list = ", ".join(sorted(dims)) or "none"
            raise OptionError(f"no input has a dimension {name!r}.{did_you_mean(name, dims)} The model has: {dim_list}")
    return passes.bind_dims(function, sizes) if sizes else function


def name_batch(function: Function) -> Function:
    """Name the unnamed dynamic first axes of all inputs ``batch``; models from scikit-learn's exporter have such axes.

    Return the function unchanged if another axis has the name ``batch``, as in some sequence models.
    """
    shapes = _shapes(function)
    is_name_taken = any(BATCH in shape[1:] for shape in shapes)
    if is_name_taken or all(shape[:1] != (None,) for shape in shapes):
        return function
    inputs = []
    for value in function.inputs:
        type_ = value.type
        if isinstance(type_, TensorType) and type_.shape and type_.shape[0] is None:
            inputs.append(Value(value.name, type_.with_shape((BATCH, *type_.shape[1:]))))
        else:
            inputs.append(value)
    return function.replace(inputs=tuple(inputs))


def find_batch_dim(function: Function, batch: int) -> str | None:
    """Find the name of the batch dim: the first dim of the first input with a shape. None if that dim is the number ``batch``.

    Raises ModelError if the dim has another fixed size.
    """
    first = next((shape[0] for shape in _shapes(name_batch(function)) if shape), batch)
    if isinstance(first, int) and first != batch:
        raise ModelError(
            f"the model's batch is {first}, and {batch} was requested; the size can be chosen only for a symbolic dim, or for a "
            f"shipped model by 'NAME{{batch={batch}}}'"
        )
    return first if isinstance(first, str) else None


def set_shapes(function: Function, arrays: Mapping[str, Any]) -> Function:
    """Specialize a function to the shapes of arrays; raises InputError if one does not fit."""
    tensors = {value.name for value in function.inputs if isinstance(value.type, TensorType)}
    shapes = {name: array.shape for name, array in arrays.items() if name in tensors and isinstance(array, np.ndarray)}
    return passes.specialize(function, shapes) if shapes else function


def from_files(files: Sequence[str], function: Function) -> dict[str, Any]:
    return {name: value for name, (_, value) in read_input_files(files, function).items()}


def read_input_files(files: Sequence[str], function: Function) -> dict[str, tuple[Path, Any]]:
    """Read the files of ``--input`` options; return the file and the value of each input by its name."""
    values: dict[str, tuple[Path, Any]] = {}
    for text in files:
        name, equals, file = text.partition("=")
        path = Path(text)
        if equals and not path.exists():  # the path of an existing file may contain an equals sign
            path = Path(file)
            arrays = {name: read_npy(path)}
        elif text.endswith(".npz"):
            arrays = read_npz(path)
        elif len(function.inputs) != 1:
            raise OptionError(f"--input {text!r} does not name an input; write NAME=FILE.npy, or pass an .npz")
        else:
            arrays = {function.inputs[0].name: read_npy(path)}
        values |= {name: (path, array) for name, array in arrays.items()}
    return values


def _with_batch(function: Function, batch: int | None) -> Function:
    if batch is None:
        return function
    name = find_batch_dim(function, batch)
    return function if name is None else set_dims(function, {name: batch})


def _shapes(function: Function) -> list[tuple[int | str | None, ...]]:
    return [value.type.shape or () for value in function.inputs if isinstance(value.type, TensorType)]


@dataclass(frozen=True, slots=True)
class BenchCandidate:
    """One engine, or several in order of preference, with pins.

    `AUTO` among them enables placement by measurement; `AUTO` alone means all available engines.
    """

    engines: tuple[str, ...]
    pins: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``ort``, ``tvm,ort`` or ``tvm,ort with Conv|MatMul=ort; Softmax!=tvm``; raises OptionError otherwise."""
        spec_list, *rest = _WITH.split(text.strip(), maxsplit=1)
        engines = split_specs(spec_list)
        for engine in engines or [text]:
            parse_spec(engine)
        pins = [pin.strip() for pin in rest[0].split(";")] if rest else []
        if not all(pins):
            raise OptionError(
                f"the candidate {text!r} has an empty pin; write it like 'tvm,ort with Conv|MatMul=ort; Softmax!=tvm'"
            )
        candidate = cls(tuple(engine.strip() for engine in engines), tuple(pins))
        # Checked here, because the pins of a module would be checked only in the candidate's process.
        accepted = {*candidate.engines, *candidate.names}
        for pin in pins:
            engine = Pin.parse(pin).engine
            if engine not in accepted and candidate.engines != (AUTO,):
                raise OptionError(
                    f"pin {pin!r} names engine {engine!r}, which is not in the list: {', '.join(candidate.engines)}"
                )
        return candidate

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in map(parse_spec, self.engines))

    def select_devices(self, devices: Mapping[str, str]) -> dict[str, str]:
        """Select the entries of ``devices`` (engine name or spec to device) for engines of the candidate; for `AUTO`, all."""
        accepted = {*self.engines, *self.names}
        return {name: device for name, device in devices.items() if AUTO in self.engines or name in accepted}

    @property
    def precision(self) -> str:
        """The precisions that the engines' options set, as text; ``fp32`` if none does."""
        precisions = [str(options.get("precision", "fp32")) for _, options in map(parse_spec, self.engines)]
        return ", ".join(dict.fromkeys(precisions))

    def __str__(self) -> str:
        spec_list = ",".join(self.engines)
        return f"{spec_list} with {'; '.join(self.pins)}" if self.pins else spec_list
