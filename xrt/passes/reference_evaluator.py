"""Functions evaluated by the reference implementation of the ``onnx`` package, for who folds constants and may not see toy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.formats.onnx import to_model

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["evaluate"]


def evaluate(function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of a Function, in its order, from its inputs, in its order; raises whatever the evaluator does."""
    from onnx.reference import ReferenceEvaluator  # takes long to import, and few need it

    named = dict(zip((value.name for value in function.inputs), inputs, strict=True))
    with np.errstate(all="ignore"):  # an overflow is a result like any other, and nothing that a user could mend
        results: Sequence[Any] = ReferenceEvaluator(to_model(function)).run(None, named)
    return results
