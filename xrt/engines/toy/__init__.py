"""The toy engine: NumPy kernels for common operators, and ``onnx.reference`` for the others.

A Function is compiled to a tape, which is a list of kernel calls. Nodes are not optimized together, so partitioning a Function
does not change a single bit of its results.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.kernels.table import KernelContext, Run
from xrt.engines.toy.engine import Toy

DECLARATION = EngineDeclaration(
    "toy",
    rank=1000,
    color="gray",
    description="the reference engine: every operator, in NumPy; all others are compared with it",
    aliases=("numpy",),
)

__all__ = ["KernelContext", "Run", "Toy"]
