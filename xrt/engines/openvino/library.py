"""Wrap the process-wide parts of OpenVINO: Core, thread pools, errors, precisions, memory."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.errors import CompileRefused
from xrt.forking import get_generation
from xrt.graph.constants import find_file_offset

if TYPE_CHECKING:
    from xrt.engines.toolkit.libraries import AllocationTracker

LIBRARY = f"OpenVINO {openvino.__version__.partition('-')[0]}"
"""Name and version of the library for error messages."""


@lru_cache(maxsize=1)
def get_core() -> Any:
    """Get OpenVINO's Core object, of which there is one per process. It is thread-safe."""
    return openvino.Core()


_generations_with_pools: set[int] = set()
"""Generations of the process (`xrt.forking`) in which a model was closed. OpenVINO keeps its thread pool for the next model."""


def mark_pool_idle() -> None:
    """Record that OpenVINO keeps the thread pool of a closed model."""
    _generations_with_pools.add(get_generation())


def check_thread_pools() -> None:
    """Raise CompileRefused in a forked child where OpenVINO would reuse a thread pool of a parent, and wait for its threads."""
    if _generations_with_pools - {get_generation()}:
        text = f"{LIBRARY} had closed a model in the process that this one was forked from; fork earlier, or spawn"
        # With an OSError as cause the error is not stored in the disk cache, because it holds for this process only.
        raise CompileRefused(text) from OSError("forked")


PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""Maps XRT's names of precisions to the values of OpenVINO's property INFERENCE_PRECISION_HINT."""


@cache
def has_precision(precision: str) -> bool:
    """Whether OpenVINO lists the precision as a capability of this CPU."""
    return precision.upper() in get_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def check_precision(model: Any, precision: str) -> None:
    """Raise CompileRefused if OpenVINO compiled the model in another precision than requested, such as bf16 instead of fp16."""
    if precision == "fp32":
        return
    actual: openvino.Type = model.get_property("INFERENCE_PRECISION_HINT")
    if actual.get_type_name() != PRECISIONS[precision]:
        raise CompileRefused(f"{LIBRARY} computes in {actual.get_type_name()} on this machine instead of {precision}")


def report_memory(copied_bytes: int, growth: AllocationTracker, blob: memoryview | None = None) -> tuple[MemoryUse, ...]:
    """List the memory of an executable.

    ``copied_bytes`` is the size of the constants that were copied. ``growth`` measured the process during the compile. ``blob``
    is the serialized model if the executable was loaded: OpenVINO reads constants from it without copying.
    """
    uses = []
    if copied_bytes:
        uses.append(MemoryUse("copied weights", copied_bytes, "constants that are not contiguous, or not aligned"))
    if blob is not None:
        is_file = find_file_offset(np.frombuffer(blob, np.uint8)) is not None
        why = "the graph and the constants as OpenVINO exports them; it reads the constants from there without copying"
        uses.append(MemoryUse("blob", len(blob), why, shared=is_file))
    why = "weights packed for products and convolutions, folded and small constants, kernels and plans"
    uses.append(MemoryUse("model", growth.nbytes, why))
    why = "inner values and scratch memory, which its streams keep from call to call; OpenVINO does not report the size"
    return (*uses, MemoryUse("workspace", None, why, per_call=True))
