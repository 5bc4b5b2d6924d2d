"""Operators of ai.onnx.ml, for most of which onnx has no tests, on the reference and by somebody else's code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.witness.case import Case
from tests.witness.learned import encoders, features, linear, support_vectors, trees
from xrt.comparison import compare_all
from xrt.engines import CompileContext
from xrt.engines.toy import Toy
from xrt.formats.onnx import to_model

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


@pytest.mark.parametrize("family", [support_vectors, linear, trees, features, encoders])
def test_the_reference_agrees_with_its_witness(family: Callable[[], Iterator[Case]]) -> None:
    wrong = []
    for case in family():
        with np.errstate(all="ignore"):
            comparison = compare_all(results(case), list(expected(case)), case.tolerance)
        wrong += [] if comparison else [f"{case.name}: {comparison.message}"]
    assert wrong == []
