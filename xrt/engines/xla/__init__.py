"""The ``xla`` engine: regions lowered operator by operator to XLA through JAX, and compiled ahead of time for this processor.

A Function goes in; each node is written in ``jax.numpy`` and ``jax.lax`` by the kernel that the engine's table has for it, all
are traced once with the shapes of the inputs, and compiled as one. This package is the only home of JAX. It changes
no setting of JAX's for the process, and computes on a client of its own, so that a user's own JAX notices nothing.
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
