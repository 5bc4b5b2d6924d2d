"""Arithmetic that XLA needs otherwise: sums, whose order it changes, powers, and products by an equation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.kernels.arithmetic import binary
from xrt.engines.toolkit.array_ops.precision import widen
from xrt.engines.xla.table import Operand, factories, ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Factory, NodeContext, Run
    from xrt.engines.xla.lowering_context import LoweringContext
    from xrt.graph import Node

__all__: list[str] = []


def make_sum(name: str) -> Factory:
    """Return a factory of a kernel that adds or subtracts, whose sums with constants XLA does not merge.

    It makes ``x + (a + b)`` of ``(x + a) + b``, and so undoes rounding that was the point of it. The barrier goes before fusion.
    """

    def factory(node: Node, env: NodeContext) -> Run:
        def run(a: Operand, b: Operand) -> Operand:
            if env.xp is jnp and not _is_whole(a) and (isinstance(a, np.ndarray) or isinstance(b, np.ndarray)):
                a, b = (x if isinstance(x, np.ndarray) else jax.lax.optimization_barrier(x) for x in (a, b))
            return getattr(env.xp, name)(a, b)

        return run

    return factory


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(factories, _op)(make_sum(_name))


def _is_whole(x: Operand) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


@binary(factories, "Pow")
def power(node: Node, env: NodeContext) -> Run:
    """Mixed types are computed in the wider of floats; whole numbers to negative powers in float64, and cut off."""
    return _power


def _power(base: Operand, exponent: Operand) -> Operand:
    if not _is_whole(base):
        return jnp.power(base, exponent.astype(base.dtype))
    if not _is_whole(exponent):
        return jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    whole = jnp.power(base, jnp.maximum(exponent, 0)).astype(base.dtype)
    if jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return whole
    cut = jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    return jnp.where(exponent < 0, cut, whole)


@ops("Einsum")
def einsum(at: LoweringContext, *tensors: Operand) -> Operand:
    equation = at.attr("equation").replace(" ", "")
    return jnp.einsum(equation, *map(widen, tensors)).astype(tensors[0].dtype)
