"""OpenVINO itself: imported so that it sends no event, its one Core, and the meaning of its errors.

``import openvino`` imports its model converter, and that sends an event to a web analytics service and leaves files in the home
directory (``openvino/tools/ovc/__init__.py``, through the distribution ``openvino-telemetry`` that its wheel requires). While it
is imported here that distribution cannot be found, so that the converter falls back on its own silent stand-in. Modules that
other code of the process has imported before stay as they are. The frontend and the runtime, which are all that the engine uses,
report only to a ``TelemetryExtension`` that a caller would have to add.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

__all__ = ["LIBRARY", "core", "openvino"]

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
