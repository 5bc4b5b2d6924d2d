"""Models of the zoo: how each is created, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

FOLDER = Path(__file__).parents[2] / "build" / "zoo"
"""Where the exported models are stored, each in a folder with its name."""
Arrays = Mapping[str, np.ndarray[Any, Any]]
Tolerance = float
"""Allowed difference of an output, as a share of its largest value."""
T = TypeVar("T")


@dataclass(frozen=True)
class CreatedModel:
    """A model in memory: a function that writes its file, and the inputs and the framework's results of several calls."""

    write: Callable[[Path], None]
    calls: Sequence[Arrays]
    """Inputs of each call by name; dynamic dimensions differ between calls."""
    expected: Sequence[Sequence[Any]]
    """The framework's outputs for each call; empty if the outputs of ONNX Runtime are the expected ones."""


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A model of the zoo: its name, its family, the function that makes it, and the tolerance of its results."""

    name: str
    family: str
    make: Callable[[], T] = field(repr=False)
    tolerance: Tolerance = 1e-4


Export: TypeAlias = Entry[CreatedModel]
Module: TypeAlias = Entry[tuple[Any, Sequence[Mapping[str, Any]]]]
"""Makes a PyTorch module, and its inputs by name for each call."""


@dataclass(frozen=True)
class Case:
    """A model on disk."""

    name: str
    family: str
    path: Path
    calls: Sequence[Arrays]
    expected: Sequence[Sequence[Any]]
    tolerance: Tolerance


def save_case(export: Export, folder: Path) -> None:
    """Write model, inputs and expected outputs into ``folder/<name>``."""
    model, target = export.make(), folder / export.name
    target.mkdir(parents=True, exist_ok=True)
    model.write(target / "model.onnx")
    arrays: dict[str, Any] = {"calls": len(model.calls), "tolerance": export.tolerance, "family": export.family}
    for index, call in enumerate(model.calls):
        arrays |= {f"in.{index}.{name}": value for name, value in call.items()}
    for index, outputs in enumerate(model.expected):
        arrays |= {f"out.{index}.{position:04d}": _storable(value) for position, value in enumerate(outputs)}
    with (target / "case.npz.partial").open("wb") as file:
        np.savez(file, **arrays)
    (target / "case.npz.partial").rename(target / "case.npz")


def _storable(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(str) if array.dtype == object else array


def load_case(folder: Path) -> Case:
    """Load the model and its expected outputs from a folder that `save_case` wrote."""
    with np.load(folder / "case.npz") as file:
        count = int(file["calls"])
        calls = [_select(file, f"in.{index}.") for index in range(count)]
        outputs = [list(_select(file, f"out.{index}.").values()) for index in range(count)]
        expected = outputs if any(outputs) else []
        family, tolerance = str(file["family"]), float(file["tolerance"])
    return Case(folder.name, family, folder / "model.onnx", calls, expected, tolerance)


def _select(file: Any, prefix: str) -> dict[str, Any]:
    arrays = {name.removeprefix(prefix): file[name] for name in sorted(file.files) if name.startswith(prefix)}
    return {name: value.astype(object) if value.dtype.kind == "U" else value for name, value in arrays.items()}
