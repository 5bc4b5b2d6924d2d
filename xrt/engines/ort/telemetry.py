"""ONNX Runtime's reports to its makers: switched off before the library is imported.

From 1.31 on the library looks up a host for events and leaves a device id and a database in the user's folders, unless a
variable is set before it is loaded; ``disable_telemetry_events()`` comes too late for that.
"""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "disable_telemetry"]

VARIABLE = "ORT_DISABLE_TELEMETRY"


def disable_telemetry() -> None:
    """Set the library's variable, for this process and those that it starts, unless the user has set it himself."""
    os.environ.setdefault(VARIABLE, "1")
