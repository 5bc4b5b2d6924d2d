"""The ``iree`` engine: regions compiled by IREE, through MLIR, to LLVM code for this processor.

A Function goes in, is written as MLIR (torch-mlir's ONNX operators), compiled by ``iree-compile`` in a process of its own,
and comes out as a module of IREE's virtual machine, which runs in this one. This package is the only home of IREE; the
compiler itself, 350 MB, is never loaded into the process.
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
