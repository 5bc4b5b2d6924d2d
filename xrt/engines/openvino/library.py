"""OpenVINO itself: imported so that it sends no event, its one Core, its errors, precisions and memory.

``import openvino`` imports its model converter, and that sends an event to a web analytics service and leaves files in the home
directory (``openvino/tools/ovc/__init__.py``, through the distribution ``openvino-telemetry`` that its wheel requires). While it
is imported here that distribution cannot be found, so that the converter falls back on its own silent stand-in. Modules that
other code of the process has imported before stay as they are. The frontend and the runtime, which are all that the engine uses,
report only to a ``TelemetryExtension`` that a caller would have to add.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.toolkit.libraries import remove_noise, shorten
from xrt.errors import CompileRefused
from xrt.graph.constants import find_file_offset

if TYPE_CHECKING:
    from xrt.engines.toolkit.libraries import AllocationTracker

__all__ = ["HINTS", "LIBRARY", "check_precision", "core", "has_precision", "openvino", "report_memory", "summarize_error"]

_TELEMETRY = "openvino_telemetry"


@contextmanager
def _without_telemetry() -> Iterator[None]:
    modules: dict[str, Any] = sys.modules
    before = modules.get(_TELEMETRY)
    modules[_TELEMETRY] = None  # an import of it is then a ModuleNotFoundError
    try:
        yield
    finally:
        del modules[_TELEMETRY]
        if before is not None:
            modules[_TELEMETRY] = before


with _without_telemetry():
    import openvino

LIBRARY = f"OpenVINO {openvino.__version__.partition('-')[0]}"
"""The library as reasons and errors call it."""


@lru_cache(maxsize=1)
def core() -> Any:
    """Return the one Core of the process; threads may use it at once."""
    return openvino.Core()


class _Pools:
    """Thread pools of closed models, which the library gives to the next model; a forked child lacks their threads."""

    are_idle = False
    are_dead = False


def release_pool() -> None:
    """Note that a model is closed."""
    _Pools.are_idle = True


def check_pools() -> None:
    """Raise CompileRefused in a forked child where the next model would get a pool without threads, and wait for ever."""
    if _Pools.are_dead:
        said = f"{LIBRARY} had closed a model in the process that this one was forked from; fork earlier, or spawn"
        raise CompileRefused(said) from OSError("forked")  # of this process, and not for the cache on disk


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
    r"""Return the sense of one of OpenVINO's errors: on one line, without source files and checks.

    >>> summarize_error(RuntimeError("Exception from src/core.cpp:105:\nCheck 'ok' failed at src/x.cpp:1:\nNo rule for: NoSuch"))
    'No rule for: NoSuch'
    """
    return shorten(remove_noise(str(error), _NOISE) or type(error).__name__, limit)


# ---------------------------------------------------------------------- precision

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


# ---------------------------------------------------------------------- memory


def report_memory(copied: int, growth: AllocationTracker, blob: memoryview | None = None) -> tuple[MemoryUse, ...]:
    """Return what an executable holds and takes: copies of constants, and what its compile has grown the process by.

    ``blob`` is what it was loaded from, which the library reads where it is.
    """
    held = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    if blob is not None:
        held.append(MemoryUse("blob", len(blob), _BLOB, shared=find_file_offset(np.frombuffer(blob, np.uint8)) is not None))
    return (*held, MemoryUse("model", growth.nbytes, _MODEL), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


_COPIED = "constants that did not lie in order"
_BLOB = "the graph and the constants as OpenVINO exports them, which it reads where they were loaded"
_MODEL = "weights packed for its products and convolutions, constants that it has folded or been handed small, kernels and plans"
_WORKSPACE = "inner values and scratch, which its streams keep from call to call; the library does not tell"
