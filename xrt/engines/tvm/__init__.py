"""The ``tvm`` engine: regions compiled by Apache TVM (Relax) for this processor.

A Function goes in through TVM's ONNX importer, is fused and scheduled by XRT's own pipeline, and comes out as a Relax
executable on which each concurrent call has a virtual machine of its own. This package is the only home of TVM, whose
import costs seconds and hundreds of megabytes; nothing else of XRT imports it. TVM and PyTorch each bring an LLVM, and in
some orders of import the process is known to crash: where both are needed, give one of them a process of its own. TVM
imports PyTorch where it is installed, for tensors that the engine never hands it: it is hidden meanwhile.
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
