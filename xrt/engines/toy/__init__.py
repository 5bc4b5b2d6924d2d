"""The toy engine: own NumPy kernels, over a slot table computed once, and the reference operators of ``onnx`` for the rest.

A Function goes in, an Executable comes out that plays a tape of kernels. It never trades exactness for speed: no
optimisation crosses a node, so cutting a Function changes no bit of what it computes.
"""

from xrt.engines.toy.engine import Toy
from xrt.engines.toy.kernel_context import KernelContext
from xrt.engines.toy.table import Run

__all__ = ["KernelContext", "Run", "Toy"]
