"""What goes wrong in a launch: the error that says so, and what may be looked at to find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.errors import EngineError, RunFailed, XRTError
from xrt.graph import DType, TensorType, Type
from xrt.partition import Launch, Plan

if TYPE_CHECKING:
    from xrt.runtime.memory_plan import Step

__all__ = ["OutputInspector", "copy_inputs", "find_type_mismatch", "list_inplace_updates", "to_run_failed"]

Find: TypeAlias = Callable[[Launch, Sequence[Any], Sequence[Any]], str | None]
"""Takes a launch with its inputs and outputs, and returns what is wrong with the outputs, as a sentence that names the launch."""


@dataclass(frozen=True, slots=True)
class OutputInspector:
    """What is looked at after each launch of a call."""

    find: Find
    needs_inputs: bool = False
    """Whether it must see inputs as they were before the launch, even those that the launch may have written to."""


def copy_inputs(step: Step, given: Sequence[Any]) -> list[Any]:
    """Return the inputs of a launch with copies of those that its engine may write to."""
    names = [value.name for value in step.launch.function.inputs]
    written = {names.index(before) for before, _ in step.launch.function.aliases}
    written.update(source for source, _ in step.executable.inplace_pairs())
    return [x.copy() if i in written and hasattr(x, "dtype") else x for i, x in enumerate(given)]


def to_run_failed(launch: Launch, error: Exception) -> Exception:
    """Return what to raise for an error that came out of a launch: RunFailed that names it, the cause chained.

    What is the caller's mistake, such as an InputError, is raised as it is.
    """
    if isinstance(error, XRTError) and not isinstance(error, EngineError):
        error.updated = None  # the launch had begun
        return error
    said = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunFailed) and (error.region or launch.name in said):
        error.region = error.region or launch.name
        return error
    failed = RunFailed(f"engine {launch.engine!r} failed to run {launch.name}: {said}", launch.name)
    failed.__cause__ = error
    return failed


def find_type_mismatch(launch: Launch, results: Sequence[Any]) -> str | None:
    """Return which result is not of the type that the plan has for it; None where all are, as far as types are known."""
    for value, result in zip(launch.function.outputs, results, strict=True):
        if not _is_of(result, value.type):
            is_array = isinstance(result, np.ndarray)
            got = f"{result.dtype}{list(result.shape)}" if is_array else type(result).__name__
            return f"engine {launch.engine!r} returned {got} for output {value.name!r} of {launch.name}, which is {value.type}"
    return None


def _is_of(result: Any, type_: Type | None) -> bool:
    from xrt.graph import MapType, SequenceType

    if isinstance(type_, SequenceType | MapType):
        return isinstance(result, list if isinstance(type_, SequenceType) else dict)
    if not isinstance(type_, TensorType):
        return True
    if not isinstance(result, np.ndarray) or result.dtype != (object if type_.dtype is DType.STRING else type_.dtype.numpy):
        return False
    dims = result.shape if type_.shape is None else type_.shape
    return len(dims) == result.ndim and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(dims, result.shape, strict=True)
    )


def list_inplace_updates(plan: Plan, region: str) -> list[str]:
    """Return the model's inputs that an engine may have updated in place by the time that the region has failed."""
    names = [launch.name for launch in plan.launches]
    begun = plan.launches[: names.index(region) + 1]
    given = {value.name for value in plan.function.inputs}
    return [before for launch in begun for before, _ in launch.function.aliases if before in given]
