"""The ``torch`` engine: regions of ONNX operators computed by PyTorch, operator by operator.

Each node runs the kernel that the engine's table has for it, on tensors that share memory with NumPy arrays. Only this engine
imports torch, with the first kernel that it needs. It changes no process-wide setting of torch: the number of threads, gradients
and inference mode are set for the calling thread.
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
