"""What is done to a Function before it is written as MLIR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from xrt.engines.iree.bodies import with_bodies
from xrt.engines.iree.spelling import spelled
from xrt.engines.learned import meaning_of_learned
from xrt.engines.rewording import said_by_others
from xrt.formats.onnx import raised
from xrt.graph import Function, TensorType
from xrt.passes import fold_constants, infer_shapes

__all__ = ["OPSET", "prepared", "why_not_static"]

OPSET = 18
"""The least opset that is handed over: IREE has no rules for many older forms of operators."""


def prepared(function: Function) -> Function:
    """Return the Function as it is written: Constant nodes and the Shape of a static value are constants, all types are known,
    and what IREE gets wrong is spelled otherwise.

    Raises ModelError, which is a ValueError, where an operator of an older opset cannot be brought to `OPSET`.
    Equal Functions, whatever their names, give equal ones; so a saved module fits the Function it is loaded for.
    """
    free = function.replace(
        nodes=tuple(replace(node, control=()) for node in function.nodes)
    )  # nothing here has effects to order
    said = said_by_others(infer_shapes(free), meaning_of_learned)
    whole = with_bodies(infer_shapes(raised(infer_shapes(said), OPSET)))
    return infer_shapes(spelled(infer_shapes(fold_constants(infer_shapes(whole), _no_evaluation))))


def why_not_static(function: Function) -> str | None:
    """Return which input or output has a shape that is not known before the run; None when all are."""
    for value in (*function.inputs, *function.outputs):
        type_ = function.type_of(value.name)
        if not isinstance(type_, TensorType) or not type_.is_static:
            return f"the shape of {value.name!r} is not known before the run"
    return None


def _no_evaluation(function: Function, inputs: list[Any]) -> NoReturn:
    raise NotImplementedError("only what needs no computing is folded")
