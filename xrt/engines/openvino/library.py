"""OpenVINO itself: imported so that it tells nobody, its one Core, and the sense of its errors.

``import openvino`` imports its model converter, and that sends an event to a web analytics service and leaves files in the
home directory (``openvino/tools/ovc/__init__.py``, through the distribution ``openvino-telemetry`` that its wheel pulls in).
While it is imported here that distribution cannot be found, so that the converter falls back on its own silent stand-in. What
somebody else of the process has imported before stays as it is. The frontend and the runtime, which are all that the engine
uses, report only to a ``TelemetryExtension`` that a caller would have to add.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

__all__ = ["LIBRARY", "core", "openvino", "sense"]

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


_NOISE = (
    r"Exception from \S+:\d+: ",
    r"Check '.*?' failed at \S+:\d+: ",
    r"FrontEnd API failed with \w+: ",
    r"While validating (?:ONNX )?node '.*?'(?: with friendly_name '.*?')?: ",
    r"Errors during ONNX translation: ",
    r"Model wasn't fully converted\. Summary: -- ",
    r"To facilitate the conversion of unsupported operations.*$",
)


def sense(error: BaseException, limit: int = 300) -> str:
    r"""Return the sense of one of OpenVINO's errors: on one line, without source files and checks.

    >>> sense(RuntimeError("Exception from src/core.cpp:105:\nCheck 'ok' failed at src/x.cpp:1:\nNo rule for: NoSuch"))
    'No rule for: NoSuch'
    """
    text = f"{' '.join(str(error).split())} "
    for noise in _NOISE:
        text = re.sub(noise, "", text)
    text = text.strip(" .") or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
