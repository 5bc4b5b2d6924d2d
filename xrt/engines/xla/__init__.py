"""The ``xla`` engine: regions lowered operator by operator to XLA through JAX, and compiled ahead of time for this processor.

The kernel table has a function of ``jax.numpy`` and ``jax.lax`` for each node. All nodes of a region are traced once, with the
shapes of the inputs, and compiled together. Only this package imports JAX. It does not affect other users of JAX in the process,
because it uses separate clients and changes no process-wide setting of JAX.
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
