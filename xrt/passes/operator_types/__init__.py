"""Types of operators whose definition is published but not, or not wholly, in ONNX's own inference: rules by domain.

A node and the types of its inputs come in, the types of its outputs come out. Types only: nothing is known of values, and
what a definition leaves open stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from xrt.passes.operator_types.microsoft import MICROSOFT
from xrt.passes.operator_types.ml import ML
from xrt.passes.operator_types.operands import Operands, Rule

__all__ = ["OPERATOR_TYPES", "Operands", "Rule"]

OPERATOR_TYPES: Mapping[str, Mapping[str, Rule]] = {"com.microsoft": MICROSOFT, "ai.onnx.ml": ML}
"""By domain and operator."""
