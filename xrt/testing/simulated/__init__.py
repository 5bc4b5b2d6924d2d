"""Simulated devices: test CUDA code on any machine, with adversarial timing.

`simulate_devices()` replaces CUDA devices by simulated ones whose memory the host cannot read. Streams execute work as late and
in as unusual an order as allowed, so results are right only if every copy, event and wait is in place. Each unordered pair of
accesses is reported as a race, whether or not it changed a result.
"""

from xrt.testing.simulated.array import SimulatedArray, SimulatedMachine
from xrt.testing.simulated.device import SimulatedDevice, simulate_devices

__all__ = ["SimulatedArray", "SimulatedDevice", "SimulatedMachine", "simulate_devices"]
