"""Whether a Function that a pass returned computes what it did before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.graph import Function
from xrt.verify.comparison import judge_outputs
from xrt.verify.execution import Run


def assert_computes_the_same(after: Function, before: Function, inputs: Sequence[Any], run: Run = evaluate) -> None:
    """Fail unless both give the same, but for rounding: a product of matrices depends on where its operands lie in memory."""
    with np.errstate(all="ignore"):
        judged = judge_outputs(before, inputs, run(after, inputs), run(before, inputs), run)
    assert judged.verdict != "disagrees", f"{judged.message}\n{before}\n{after}"
