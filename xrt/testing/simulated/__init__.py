"""Simulated devices: tests of CUDA code on any machine, with adversarial timing.

`simulated()` replaces CUDA's devices by ones whose memory the host cannot read. Their streams do work as late, and in as odd an
order, as they may. Results are right only if every copy, event and wait is where it must be. Each unordered pair of accesses is
reported, whether or not it did harm this time.
"""

from xrt.testing.simulated.array import SimulatedArray, SimulatedMachine
from xrt.testing.simulated.device import SimulatedDevice, simulate_devices

__all__ = ["SimulatedArray", "SimulatedDevice", "SimulatedMachine", "simulate_devices"]
