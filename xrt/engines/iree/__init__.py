"""The ``iree`` engine: regions compiled by IREE, through MLIR, to LLVM code for this processor.

A Function is exported to MLIR (torch-mlir's ONNX operators), compiled by ``iree-compile`` in a separate process, and run in
this one as a module of IREE's virtual machine. Only this package imports IREE; the compiler (350 MB) is never loaded.
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
