"""What is put right in a model of OpenVINO's before it is compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xrt.engines.openvino.library import openvino

__all__ = ["repair"]

_ops = openvino.opset13

_EXTREMES = {"ReduceMax": (-math.inf, _ops.greater), "ReduceMin": (math.inf, _ops.less)}
_FLOATS = ("f16", "bf16", "f32")


def repair(model: Any) -> None:
    """Let the extremes of nothing but infinities be infinite.

    The plugin begins a maximum with the lowest finite number, so that of a row that is wholly masked it gives that.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() in _EXTREMES and node.get_element_type().get_type_name() in _FLOATS:
            _repair_extreme(node)


def _repair_extreme(node: Any) -> None:
    edge, is_beyond = _EXTREMES[node.get_type_name()]
    readers = list(node.output(0).get_target_inputs())
    value, axes = node.input_value(0), node.input_value(1)
    limit = _ops.convert(_ops.constant(np.array(edge, np.float32)), node.get_element_type().get_type_name())
    beyond = _ops.convert(is_beyond(value, limit), "f32")  # any of it; a logical reduction wants its axes as a constant
    seen = _ops.greater(_ops.reduce_max(beyond, axes, node.get_attributes()["keep_dims"]), _ops.constant(np.float32(0.5)))
    right = _ops.select(seen, node.output(0), limit)
    for reader in readers:
        reader.replace_source_output(right.output(0))
