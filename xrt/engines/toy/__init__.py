"""The toy engine: own NumPy kernels, over a slot table computed once, and the reference operators of ``onnx`` for the rest.

A Function goes in, an Executable comes out that plays a tape of kernels. It never trades exactness for speed: no
optimisation crosses a node, so cutting a Function changes no bit of what it computes.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.kernels.table import Run
from xrt.engines.toy.engine import Toy
from xrt.engines.toy.kernels import KernelContext

DECLARATION = EngineDeclaration(
    "toy",
    rank=1000,
    color="gray",
    description="the reference engine: every operator, in NumPy; all others are compared with it",
    aliases=("numpy",),
)

__all__ = ["KernelContext", "Run", "Toy"]
