"""Lower precision: what this processor computes in, how the library is asked for it, and what it then does."""

from __future__ import annotations

from functools import cache
from typing import Any

from xrt.engines.openvino.library import LIBRARY, core, openvino
from xrt.errors import CompileRefused

__all__ = ["HINTS", "check_precision", "has_precision"]

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""How the library calls a precision."""


@cache
def has_precision(precision: str) -> bool:
    """Whether the processor computes in that precision, as far as the library says."""
    return precision.upper() in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def check_precision(model: Any, precision: str) -> None:
    """Raise CompileRefused where a compiled model has another precision than it was asked for, as bf16 in place of fp16."""
    if precision == "fp32":
        return
    found: openvino.Type = model.get_property("INFERENCE_PRECISION_HINT")
    if found.get_type_name() != HINTS[precision]:
        raise CompileRefused(f"{precision} was asked for, and {LIBRARY} computes in {found.get_type_name()} here")
