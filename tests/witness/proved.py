"""All cases by operator, the operators without any, and the page that lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

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
from xrt.engines.toy.kernels import ops

__all__ = ["PAGE", "WITHOUT", "by_operator", "operators", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "witnesses.md"
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


def page() -> str:
    """Return docs/witnesses.md."""
    own = {f"{k.domain}:{k.op_type}" if k.domain else k.op_type for k in ops}
    cases = by_operator()
    lines = [
        "# Witnesses",
        "",
        "`toy` is the reference, so nothing of XRT can prove it. The tests in `tests/witness` hold its kernels, its own and",
        "those that it borrows from `onnx.reference`, against libraries that share no code with it: over shapes, attributes",
        "and types.",
        "`python tools/write_witnesses.py` writes this page.",
        "",
        f"{sum(map(len, cases.values())):,} cases prove {len(cases)} of {len(operators())} operators.",
        "",
        "| operator | kernel | witness | cases |",
        "|---|---|---|---|",
    ]
    for op in (op for op in operators() if op in cases):
        sources = ", ".join(f"{name} {n}" for name, n in sorted(Counter(case.source for case in cases[op]).items()))
        lines.append(f"| `{op}` | {'own' if op in own else 'borrowed'} | {sources} | {len(cases[op])} |")
    lines += ["", "## Operators without a witness", "", "| operator | kernel | why |", "|---|---|---|"]
    lines += [f"| `{op}` | {'own' if op in own else 'borrowed'} | {why} |" for op, why in sorted(WITHOUT.items())]
    return "\n".join([*lines, ""])
