"""The ``torch`` engine: regions of ONNX operators computed by PyTorch, operator by operator.

Each node runs a kernel from the engine's table, on tensors that share memory with NumPy arrays. The engine imports torch when it
needs the first kernel, because the import takes seconds. It changes no process-wide setting of torch: the number of threads,
gradients and inference mode are set for the calling thread only.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.torch.engine import Torch

DECLARATION = EngineDeclaration(
    "torch",
    rank=25,
    color="yellow",
    description="PyTorch, operator by operator",
    libraries=("torch",),
    environment=("TORCH_", "PYTORCH_", "KMP_"),
)

__all__ = ["Torch"]
