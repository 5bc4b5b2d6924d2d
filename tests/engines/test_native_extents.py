"""Native kernels whose inputs have symbolic dims: only a call shows whether these fit together."""

from __future__ import annotations

import numpy as np
import pytest

import xrt
from xrt.errors import RunFailed
from xrt.graph import Function
from xrt.testing.corpus.entry import graph, node

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def normalization(op: str, count: int) -> Function:
    """Return a normalization with one symbolic dim for its channels and another for the scale and what is like it."""
    names = "sbmv"[:count]
    types = dict.fromkeys(names, "float32[K]")
    attributes = {"num_groups": 1} if op == "GroupNormalization" else {}
    nodes = [node(op, f"x {' '.join(names)}", "y", **attributes)]
    return graph({"x": "float32[N,C,H]", **types}, {"y": "float32[N,C,H]"}, *nodes, opset=21)


@pytest.mark.parametrize(
    ("op", "count"),
    [("BatchNormalization", 4), ("InstanceNormalization", 2), ("GroupNormalization", 2)],
    ids=["batch", "instance", "group"],
)
def test_a_scale_that_is_shorter_than_the_channels_is_not_read_past_its_end(op: str, count: int) -> None:
    with xrt.XRTModule(normalization(op, count), engine="toy") as m:
        whole = m(X, *[np.ones(3, np.float32)] * count)
        with pytest.raises(RunFailed, match=op):
            m(X, *[np.ones(2, np.float32)] * count)
        np.testing.assert_array_equal(m(X, *[np.ones(3, np.float32)] * count), whole)
