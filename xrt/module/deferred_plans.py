"""Plans without nodes: what is stored of a plan whose regions are compiled, and the plan that is made of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from xrt.cache.disk.plan_store import StoredLaunch
from xrt.graph.deferred_function import DeferredFunction
from xrt.graph.types import TensorType
from xrt.partition.plan import launch_node

if TYPE_CHECKING:
    from xrt.cache.disk.plan_store import StoredWeight
    from xrt.graph import Constant, Function, Node
    from xrt.partition import Launch, Plan

__all__ = ["defer_launch", "is_deferrable", "list_large_constants", "store_launch"]

SMALL = 1024
"""Bytes of a constant from which a compiled form may refer to it."""


def is_deferrable(plan: Plan) -> bool:
    """Whether the plan can do without its nodes: its ends are tensors of known rank on the host, without aliases."""
    function = plan.function
    if function.constants or function.aliases or not plan.launches:
        return False
    ends = [function, *(launch.function for launch in plan.launches)]
    border = [value.type for one in ends for value in (*one.inputs, *one.outputs)]
    if not all(isinstance(type_, TensorType) and type_.shape is not None for type_ in border):
        return False
    return not any(launch.function.aliases or launch.device for launch in plan.launches)


def list_large_constants(function: Function) -> dict[str, Constant]:
    """Return the constants, by name, to which a compiled form may refer."""
    return {name: one for name, one in function.constants.items() if one.nbytes >= SMALL and one.dtype.bits >= 8}


def store_launch(launch: Launch, weights: Iterable[StoredWeight]) -> StoredLaunch:
    """Return what is stored of a launch; ``weights`` says where the large constants lie."""
    function = launch.function
    computed = tuple(value.name for value in function.outputs if function.computes(value.name))
    names = launch.name, launch.engine, launch.nodes, launch.control, function.name, function.fingerprint
    return StoredLaunch(*names, function.inputs, function.outputs, computed, tuple(weights))


def defer_launch(launch: StoredLaunch, weights: Mapping[bytes, Callable[[], Any]], read: Callable[[], Function]) -> Node:
    """Return the launch node; ``weights`` reads the bytes of constants by digest, ``read`` the whole Function of the region."""
    function = DeferredFunction(
        launch.inputs,
        launch.outputs,
        name=launch.function,
        fingerprint=launch.fingerprint,
        computed=launch.computed,
        weights=weights,
        read=read,
    )
    return launch_node(launch.name, launch.engine, function, launch.nodes, control=launch.control)
