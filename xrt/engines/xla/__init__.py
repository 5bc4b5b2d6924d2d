"""The ``xla`` engine, which compiles regions for this processor with XLA, through JAX.

The kernel of each operator calls functions of ``jax.numpy`` and ``jax.lax``. JAX traces the kernels of a region with the shapes
of the inputs, and XLA compiles the result. Other users of JAX in the process are not affected, because the engine uses separate
clients and changes no global setting of JAX.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.xla.engine import Xla

DECLARATION = EngineDeclaration(
    "xla",
    rank=30,
    color="green",
    description="XLA through JAX",
    libraries=("jax", "jaxlib"),
    environment=("XLA_", "JAX_"),
)

__all__ = ["Xla"]
