"""The rules: how each operator of PyTorch is written in operators of ONNX, one module per kind of operator."""

from __future__ import annotations

from xrt.frontends.torch.rules import (  # noqa: F401
    elementwise,
    gradients,
    index,
    neural,
    product,
    reduce,
    shape,
)
from xrt.frontends.torch.rules.table import RULES, Rule, Unsupported

__all__ = ["RULES", "Rule", "Unsupported"]
