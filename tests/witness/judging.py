"""What the witnesses say, and how toy is held against it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from tests.witness.case import Case
from xrt.comparison import Comparison, compare_all
from xrt.engines import CompileContext
from xrt.engines.toy import Toy
from xrt.formats.onnx import to_model

__all__ = ["expected", "held", "results"]

TOY = Toy(native="off")


def results(case: Case) -> list[Any]:
    """Return what toy computes."""
    executable = TOY.compile(case.function, CompileContext())
    executable.prepare()
    return list(executable.run(list(case.inputs)))


def expected(case: Case) -> Sequence[Any]:
    """Return what the witness computes."""
    if case.formula is None:
        return _by_onnxruntime(case)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = case.formula(*case.inputs)
    return found if isinstance(found, tuple) else (found,)


def _by_onnxruntime(case: Case) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_model(case.function).SerializeToString(), options, ["CPUExecutionProvider"])
    given = dict(zip((value.name for value in case.function.inputs), case.inputs, strict=True))
    return list(session.run(None, given))


def held(case: Case) -> Comparison:
    """Hold toy against the witness."""
    with np.errstate(all="ignore"):
        mine = results(case)
    return compare_all(mine, list(expected(case)), case.tolerance)
