"""Hostile and broken files for every reader of XRT, made from valid ones by a seed, or written to do harm.

What comes in is a list of cases; what goes out is which of them a reader crashed on, hung on, took too much memory for, or
answered with anything but a result or an XRTError. Readers run in a process of their own, so a crash is one finding.
"""

from tests.malformed_inputs.harness import HostileFinding, Report, cases, keep, run
from tests.malformed_inputs.readers import READERS

__all__ = ["READERS", "HostileFinding", "Report", "cases", "keep", "run"]
