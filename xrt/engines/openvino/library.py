"""Import OpenVINO without telemetry; its Core, thread pools, errors, precisions and memory.

``import openvino`` imports its model converter, which sends an event to a web analytics service and writes files to the home
directory (``openvino/tools/ovc/__init__.py``, by way of ``openvino-telemetry``). That distribution is hidden during the import,
so that the converter uses its silent stub. Modules imported earlier by other code are unchanged. The frontend and the runtime
report only to a ``TelemetryExtension`` that a caller would have to add.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.toolkit.libraries import hide_module, remove_noise, shorten
from xrt.errors import CompileRefused
from xrt.graph.constants import find_file_offset

if TYPE_CHECKING:
    from xrt.engines.toolkit.libraries import AllocationTracker

__all__ = ["HINTS", "LIBRARY", "check_precision", "core", "has_precision", "openvino", "report_memory", "summarize_error"]

with hide_module("openvino_telemetry", even_imported=True):  # NNCF imports it, too
    import openvino

LIBRARY = f"OpenVINO {openvino.__version__.partition('-')[0]}"
"""Name and version for reasons and errors."""


@lru_cache(maxsize=1)
def core() -> Any:
    """The Core of the process; thread-safe."""
    return openvino.Core()


class _Pools:
    """Thread pools of closed models, which the library reuses for the next model. A forked child does not have their threads."""

    are_idle = False
    are_dead = False


def release_pool() -> None:
    """Record that a model was closed, whose threads the library keeps for the next one."""
    _Pools.are_idle = True


def check_pools() -> None:
    """Raise CompileRefused in a forked child that would reuse a pool without threads and wait forever."""
    if _Pools.are_dead:
        text = f"{LIBRARY} had closed a model in the process that this one was forked from; fork earlier, or spawn"
        # The cause keeps the refusal, which holds for this process only, out of the disk cache.
        raise CompileRefused(text) from OSError("forked")


def _forget_pools() -> None:
    _Pools.are_dead |= _Pools.are_idle


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


# ---------------------------------------------------------------------- errors

_NOISE = (
    r"Exception from \S+:\d+: ",
    r"Check '.*?' failed at \S+:\d+: ",
    r"FrontEnd API failed with \w+: ",
    r"While validating (?:ONNX )?node '.*?'(?: with friendly_name '.*?')?: ",
    r"Errors during ONNX translation: ",
    r"Model wasn't fully converted\. Summary: -- ",
    r"To facilitate the conversion of unsupported operations.*$",
)


def summarize_error(error: BaseException, limit: int = 300) -> str:
    r"""Shorten an OpenVINO error to one line without source locations and checks.

    >>> summarize_error(RuntimeError("Exception from src/core.cpp:105:\nCheck 'ok' failed at src/x.cpp:1:\nNo rule for: NoSuch"))
    'No rule for: NoSuch'
    """
    return shorten(remove_noise(str(error), _NOISE) or type(error).__name__, limit)


# ---------------------------------------------------------------------- precision

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""The library's names of precisions."""


@cache
def has_precision(precision: str) -> bool:
    """Whether the library reports this precision as a capability of the processor."""
    return precision.upper() in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def check_precision(model: Any, precision: str) -> None:
    """Raise CompileRefused if the compiled model uses another precision than requested, such as bf16 instead of fp16."""
    if precision == "fp32":
        return
    actual: openvino.Type = model.get_property("INFERENCE_PRECISION_HINT")
    if actual.get_type_name() != HINTS[precision]:
        raise CompileRefused(f"{LIBRARY} computes in {actual.get_type_name()} on this machine instead of {precision}")


# ---------------------------------------------------------------------- memory


def report_memory(copied: int, growth: AllocationTracker, blob: memoryview | None = None) -> tuple[MemoryUse, ...]:
    """The memory of an executable: copied constants and the growth of the process during the compile.

    ``blob`` is the saved form that it was loaded from, which the library reads in place.
    """
    uses = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    if blob is not None:
        uses.append(MemoryUse("blob", len(blob), _BLOB, shared=find_file_offset(np.frombuffer(blob, np.uint8)) is not None))
    return (*uses, MemoryUse("model", growth.nbytes, _MODEL), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


_COPIED = "constants that did not lie in order"
_BLOB = "the graph and the constants as OpenVINO exports them, which it reads where they were loaded"
_MODEL = "weights packed for products and convolutions, folded and small constants, kernels and plans"
_WORKSPACE = "inner values and scratch, which its streams keep from call to call; the library does not tell"
