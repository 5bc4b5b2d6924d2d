"""The ``tvm`` engine: regions compiled by Apache TVM (Relax) for this processor.

TVM's ONNX importer converts a Function to Relax. XRT's pipeline fuses and schedules the result and compiles it to a Relax
executable. Each concurrent call runs it on a separate virtual machine, because these are not thread-safe.

Only this package imports TVM, because the import takes seconds and hundreds of megabytes. TVM and PyTorch each bring an LLVM,
and some orders of import crash the process: if you need both, run one of them in a separate process. TVM would import an
installed PyTorch to accept its tensors, which this engine never passes, so PyTorch is hidden during the import.
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
