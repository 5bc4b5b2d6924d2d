"""The ``iree`` engine: regions compiled by IREE, through MLIR, to LLVM code for this processor.

A Function is exported to MLIR (torch-mlir's ONNX operators) and compiled by ``iree-compile`` in a separate process. The result, a
module of IREE's virtual machine, runs in this process. Only this package imports IREE's runtime, and no process of XRT loads the
compiler (350 MB).
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.iree.engine import Iree

DECLARATION = EngineDeclaration(
    "iree",
    rank=50,
    color="sky",
    description="IREE: MLIR, compiled for this processor",
    libraries=("iree-base-compiler", "iree-base-runtime"),
    environment=("IREE_",),
)

__all__ = ["Iree"]
