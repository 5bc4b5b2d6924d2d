"""All cases by operator, and the operators without any."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx.defs

from tests.witness import (
    elementwise,
    layouts,
    learned,
    networks,
    quantization,
    reductions,
    resampling,
    signals,
    windows,
    words,
)
from tests.witness.case import Case

__all__ = ["WITHOUT", "by_operator", "operators"]

FAMILIES = (elementwise, reductions, windows, resampling, networks, signals, quantization, layouts, learned, words)
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")

_DRAWN = "it draws random numbers: only their type, shape and distribution are defined"

WITHOUT: Mapping[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _DRAWN
    ),
    "ImageDecoder": "it decodes with Pillow itself",
    "LinearAttention": "no library that the tests install has it; toy runs the expansion that the standard gives",
    "ai.onnx.preview.training:Gradient": "a pass writes it by other operators, which witnesses prove",
}
"""Operators that no witness proves, and why."""


@lru_cache(maxsize=1)
def by_operator() -> Mapping[str, tuple[Case, ...]]:
    """Return the cases of each operator."""
    found: dict[str, list[Case]] = {}
    for family in FAMILIES:
        for case in family.families():
            found.setdefault(case.op, []).append(case)
    return {op: tuple(cases) for op, cases in sorted(found.items())}


def operators() -> list[str]:
    """Return all operators of the standard domains, deprecated ones included."""
    found = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history() if s.domain in DOMAINS}
    return sorted(f"{domain}:{name}" if domain else name for domain, name in found)
