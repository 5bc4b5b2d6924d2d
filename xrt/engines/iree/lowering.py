"""What is done to a Function before it is written as MLIR."""

from __future__ import annotations

from typing import Any, NoReturn

from xrt.graph import Constant, Function, TensorType
from xrt.passes import fold_constants, infer_shapes, known_value

__all__ = ["constant_of", "prepared", "why_not_static"]


def prepared(function: Function) -> Function:
    """Return the Function as it is written: Constant nodes and the Shape of a static value are constants, all types are known.

    Equal Functions, whatever their names, give equal ones; so a saved module fits the Function it is loaded for.
    """
    return infer_shapes(fold_constants(function, _no_evaluation))


def constant_of(name: str, function: Function) -> Constant | None:
    """Return the constant that a value will be, None where it is known only at run time."""
    producer = function.producer(name)
    return function.constants.get(name) if producer is None else known_value(producer, function)


def why_not_static(function: Function) -> str | None:
    """Return which input or output has a shape that is not known before the run; None when all are."""
    for value in (*function.inputs, *function.outputs):
        type_ = function.type_of(value.name)
        if not isinstance(type_, TensorType) or not type_.is_static:
            return f"the shape of {value.name!r} is not known before the run"
    return None


def _no_evaluation(function: Function, inputs: list[Any]) -> NoReturn:
    raise NotImplementedError("only what needs no computing is folded")
