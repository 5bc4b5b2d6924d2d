"""The reference against ONNX Runtime on other numbers than those of the tests of onnx, which are often symmetric or few."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tools.known_failures import list_known_failures
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.testing import ConformanceCase, ConformanceReport, ResultWord, node_cases, run_case, settle
from xrt.testing.conformance import run_single
from xrt.verify.execution import run_alone

pytestmark = pytest.mark.slow


def redraw(case: ConformanceCase) -> ConformanceCase | None:
    """The case with new floats within the range of each input, and the reference's results; None if it has no floats."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))

    def draw(place: int, value: Any) -> Any:
        is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 1 and np.isfinite(value).all()
        if not is_float or (place and value.ndim < 2):  # a vector behind the data may be the scales of a Resize
            return value
        return rng.uniform(value.min(), value.max(), value.shape).astype(value.dtype)

    inputs = tuple(draw(place, value) for place, value in enumerate(case.inputs))
    if all(new is old for new, old in zip(inputs, case.inputs, strict=True)):
        return None
    with np.errstate(all="ignore"):
        expected = run_alone(registry.create(REFERENCE), case.function, list(inputs))
    return replace(case, inputs=inputs, expected=tuple(expected))


def test_the_reference_agrees_with_onnx_runtime() -> None:
    make = run_single(registry.create("ort"))
    # ONNX does not say how a float is rounded to a type below a byte.
    cases = [case for case in node_cases() if not case.is_random and not re.search("_U?INT[24](_|$)", case.name)]
    redrawn = [new for case in cases if (new := redraw(case))]
    report = settle(
        ConformanceReport("ort", tuple(run_case(case, make) for case in redrawn)),
        list_known_failures(["ort"]),
        complete=False,
        alone=False,
    )
    assert report.ok, str(report)
    passed = Counter(operator for outcome in report.of(ResultWord.PASSED) for operator in outcome.operators)
    assert len(passed) > 120
