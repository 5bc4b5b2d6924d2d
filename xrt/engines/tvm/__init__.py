"""The ``tvm`` engine: regions compiled by Apache TVM (Relax) for this processor.

A Function is imported by TVM's ONNX importer, fused and scheduled by XRT's pipeline, and compiled to a Relax executable, on
which each concurrent call has a separate virtual machine. Only this package imports TVM, because the import takes seconds
and hundreds of megabytes. TVM and PyTorch each bring an LLVM, and some orders of import are known to crash the process: if
you need both, run one of them in a separate process. If PyTorch is installed, TVM imports it for tensors that this engine
never passes, so the engine hides PyTorch during the import.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.toolkit.libraries import hide_module

with hide_module("torch"):
    from xrt.engines.tvm.engine import Tvm

DECLARATION = EngineDeclaration(
    "tvm",
    rank=40,
    color="pink",
    description="Apache TVM (Relax), compiled for this processor",
    libraries=("apache-tvm", "apache-tvm-ffi"),
    environment=("TVM_",),
    thread_variables=("TVM_NUM_THREADS",),
)

__all__ = ["Tvm"]
