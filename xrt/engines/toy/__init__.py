"""The toy engine: NumPy kernels on a precomputed slot table; ``onnx.reference`` implements the remaining operators.

Compiles a Function to an Executable that runs a tape of kernels. No optimization crosses a node, so partitioning a
Function does not change its results by a single bit.
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
