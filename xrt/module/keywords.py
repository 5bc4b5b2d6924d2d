"""The keyword arguments of XRTModule, with their types: what editors, type checkers and `help` show.

Each is a field of `ClusteringOptions`, `ExecutionOptions` or `ModuleOptions`, where its default and its meaning are.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from xrt.engines import ExecutionOptions
from xrt.engines.contract.options import Precision
from xrt.module.options import Check, Dynamic, ModuleOptions
from xrt.partition import ClusteringOptions
from xrt.partition.options import Pin

__all__ = ["OWNERS", "ModuleKeywords", "add_keywords", "iter_keywords"]

C = TypeVar("C", bound=type)

OWNERS: tuple[type, ...] = (ModuleOptions, ClusteringOptions, ExecutionOptions)
"""The classes whose fields are keywords of XRTModule."""


class ModuleKeywords(TypedDict, total=False):
    """Keyword arguments of `XRTModule` other than ``model``, ``engine``, ``device`` and ``cache``."""

    minimum_nodes: int
    maximum_nodes: int | None
    pins: str | Pin | Sequence[str | Pin]

    precision: Precision | str | Sequence[str]
    strict_types: bool
    calibration_table: str | os.PathLike[str] | Any | None  # an xrt.CalibrationTable, whose module is not loaded for a hint
    max_error: float | Any | None  # an xrt.ErrorBudget
    calibrate: Iterable[Any] | None
    validate: Iterable[Any] | None
    threads: int | None
    max_workspace_size: int | None
    max_batch_size: int | None

    strict: bool
    check: Check
    isolate: str | Sequence[str]
    isolate_run: bool
    time_limit: float | None
    memory_limit: int | None
    fold_constants: bool
    force_compile: bool
    budget: float
    lock: str | os.PathLike[str] | None
    max_specialization_bytes: int
    buckets: Literal["auto", "require"] | Mapping[str, int | Sequence[int]] | None
    dynamic: Dynamic
    dump_subgraph_dir: str | os.PathLike[str] | Path | None
    devices: Mapping[str, str] | None
    cuda_graph: bool
    progress: Callable[[int, int], object] | bool | None


def iter_keywords() -> Iterator[tuple[str, Any, type]]:
    """Yield name, default and owning class of each keyword, in the order of `ModuleKeywords`."""
    fields = {field.name: (field, owner) for owner in OWNERS for field in dataclasses.fields(owner)}
    for name in ModuleKeywords.__annotations__:
        field, owner = fields[name]
        yield name, field.default, owner


def add_keywords(cls: C) -> C:
    """Give the class a signature that lists every keyword with its type and default; `inspect` and `help` show it."""
    signature = inspect.signature(cls)
    first = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    types = ModuleKeywords.__annotations__
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_spell(types[name]))
        for name, default, _ in iter_keywords()
    ]
    cls.__signature__ = signature.replace(parameters=[*first, *more])  # type: ignore[attr-defined]  # read by inspect
    return cls


def _spell(annotation: Any) -> str:
    """Return the annotation as it is written; annotations of a TypedDict are forward references."""
    return str(getattr(annotation, "__forward_arg__", annotation))
