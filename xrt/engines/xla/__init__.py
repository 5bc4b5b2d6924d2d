"""The ``xla`` engine: regions lowered operator by operator to XLA through JAX, and compiled ahead of time for this processor.

The kernel table expresses each node in ``jax.numpy`` and ``jax.lax``; all nodes are traced once with the shapes of the inputs
and compiled together. Only this package imports JAX. It changes none of JAX's process-wide settings and uses separate
clients, so it does not affect other users of JAX in the process.
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
