"""The ``torch`` engine: regions of ONNX operators computed by PyTorch, operator by operator.

A Function goes in; each node is computed by the kernel that the engine's table has for it, on tensors that share memory with the
NumPy arrays. This package is the only home of torch among the engines; it imports torch with the first kernel that it needs, and
changes no setting of torch's for the process: the number of threads, gradients and inference mode are set for the calling thread.
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
