"""The ``torch`` engine: regions of ONNX operators computed by PyTorch, operator by operator.

A Function goes in; each node is computed by the kernel that the engine's table has for it, on tensors that share memory with the
NumPy arrays. This package is the only home of torch among the engines; it imports torch with the first kernel that it needs, and
changes no setting of torch's for the process: the number of threads, gradients and inference mode are set for the calling thread.
"""

from xrt.engines.torch.engine import Torch

__all__ = ["Torch"]
