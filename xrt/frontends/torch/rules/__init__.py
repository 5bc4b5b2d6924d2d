"""Lowering rules from PyTorch operators to ONNX operators, one module per operator family."""

from __future__ import annotations

from xrt.frontends.torch.rules import elementwise, neural, product, shape  # noqa: F401  # they register their rules
from xrt.frontends.torch.rules.table import RULES, Rule, Unsupported

__all__ = ["RULES", "Rule", "Unsupported"]
