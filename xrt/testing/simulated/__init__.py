"""Simulated devices: what runs on CUDA, on any machine, under an adversary's clock.

`simulated()` puts devices in CUDA's place whose memory the host cannot read and whose streams do their work as late, and in as
odd an order, as they may. What comes out is right only where every copy, event and wait is where it must be; and each pair of
accesses that nothing orders is told, whether or not it did harm this time.
"""

from xrt.testing.simulated.array import SimulatedArray
from xrt.testing.simulated.device import SimulatedDevice, simulated
from xrt.testing.simulated.machine import Machine

__all__ = ["Machine", "SimulatedArray", "SimulatedDevice", "simulated"]
