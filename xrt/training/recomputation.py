"""Which values of a step are computed again instead of kept, as the caller asks for it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from xrt.errors import OptionError
from xrt.graph import Function
from xrt.graph.memory_forecast import RECOMPUTED
from xrt.passes.gradient.recomputation import recompute, recompute_within, select_by_pattern

__all__ = ["AUTO", "apply_recomputation"]

AUTO = "auto"


def apply_recomputation(
    function: Function, outputs: Sequence[str], chosen: str | Sequence[str] | None, memory_limit: int | None
) -> Function:
    """Return a Function with gradients in which some nodes are computed again, and metadata that says what they save.

    ``outputs`` are those of the forward part. Raises OptionError for a limit without ``"auto"`` or the other way round, else what
    `xrt.passes.gradient.recomputation` does.
    """
    if (chosen == AUTO) is (memory_limit is None):
        what = (
            "memory_limit= bounds what recompute='auto' chooses" if memory_limit is not None else "recompute='auto' needs a limit"
        )
        raise OptionError(f"{what}; give both memory_limit=BYTES and recompute='auto', or patterns of nodes alone")
    if memory_limit is not None and (type(memory_limit) is not int or memory_limit < 1):
        raise OptionError(f"memory_limit must be a positive number of bytes; got {memory_limit!r}")
    if not chosen:
        return function
    if memory_limit is not None:
        made = recompute_within(function, outputs, memory_limit)
    else:
        patterns = (chosen,) if isinstance(chosen, str) else tuple(chosen)
        made = recompute(function, outputs, select_by_pattern(function, outputs, patterns))
    return made.replace(metadata={**made.metadata, RECOMPUTED: json.dumps(len(made.nodes) - len(function.nodes))})
