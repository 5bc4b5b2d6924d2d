"""Programs on devices: a Plan whose launches run elsewhere than on the CPU alone.

A Plan and executables come in; what goes out runs as a `Program` does. Each value has a place on each device that reads it,
and crosses once; work is put on one stream per device, and the host waits where it reads, and nowhere else.
"""

from xrt.runtime.placed.host_adapter import hosted, on_device, repeated
from xrt.runtime.placed.program import PlacedProgram

__all__ = ["PlacedProgram", "hosted", "on_device", "repeated"]
