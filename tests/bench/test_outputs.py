"""Results come back from a file as they were, without a pickle."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from xrt.bench.outputs import read_outputs, write_outputs


def test_results_of_every_kind_come_back(tmp_path: Path) -> None:
    texts = np.array(["a", "é"], object)
    several = [np.array(3), np.zeros((0, 2), np.int8)]
    results = (np.float32([[1, np.nan]]), None, several, [], texts, np.ones(2, ml_dtypes.bfloat16))
    write_outputs(tmp_path / "outputs", results)
    first, second, third, fourth, fifth, sixth = read_outputs(tmp_path / "outputs")
    assert (first.dtype, first.tobytes()) == (results[0].dtype, results[0].tobytes())
    assert second is None
    assert [(item.dtype, item.shape) for item in third] == [(np.int64, ()), (np.int8, (0, 2))]
    assert fourth == []
    assert fifth.tolist() == ["a", "é"]
    assert sixth.dtype == ml_dtypes.bfloat16
