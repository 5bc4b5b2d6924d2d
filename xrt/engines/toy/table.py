"""The toy engine's table of kernels: those that it shares with other engines, and its own."""

from __future__ import annotations

from xrt.engines.kernels import ops as shared
from xrt.engines.kernels.table import Array, Factory, Run

__all__ = ["CPU", "Array", "Factory", "Run", "ops"]

ops = shared.extend("toy")
"""Filled by the modules of `xrt.engines.toy.kernels`, one per family of operators.

Kernels compute with the functions of ``KernelContext.xp`` alone, and so on any device that has such a module; one that does not
says ``devices=CPU``. What a kernel reads on the host it names in ``host``.
"""

CPU = ("cpu",)
