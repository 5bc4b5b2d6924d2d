"""Texts: those that are left out, and the case of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []

_CHANGES: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@ops("StringNormalizer", devices=CPU)
def string_normalizer(node: Node, env: KernelContext) -> Run:
    """Return the texts, [C] or [1, C], without stop words; one empty text where none is left.

    Case is changed by Unicode's rules, whatever the ``locale``.
    """
    change = _CHANGES[node.attr("case_change_action", "NONE")]
    compared: Callable[[str], str] = str if node.attr("is_case_sensitive", 0) else str.lower
    stops = {compared(word) for word in node.attr("stopwords", ())}

    def run(x: Array) -> Array:
        if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
            raise ValueError(f"the texts have shape {list(x.shape)}; it must be [C] or [1, C]")
        kept = [change(text) for text in x.reshape(-1) if compared(text) not in stops] or [""]
        return np.array(kept, dtype=object).reshape((1,) * (x.ndim - 1) + (len(kept),))

    return run
