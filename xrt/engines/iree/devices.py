"""IREE's devices on this machine: one that computes in the calling thread, and one with a pool for each number of threads.

IREE reads the size of a pool from a flag of the process when a driver is made. The flag is set for that moment, under a lock,
and put back. A pool's workers sleep while nothing runs; the thread that calls waits for them, and is not one of them.
"""

from __future__ import annotations

import threading
from functools import cache
from math import prod
from typing import Any

from iree.runtime import VmInstance, create_hal_module
from iree.runtime._binding import create_hal_driver, parse_flags

from xrt.forking import get_generation, leave_to_parent, renew_after_fork
from xrt.graph import Function, Node, TensorType

__all__ = ["IreeDevice", "get_device", "is_small"]

SMALL_WORK = 1 << 18
"""Operations on single elements up to which handing work to a pool (20 us) costs more than a second thread saves."""

_lock = renew_after_fork(threading.Lock())


class IreeDevice:
    """A device, with the instance and the module that every context over it shares."""

    def __init__(self, threads: int) -> None:
        self.survives_fork = threads == 1
        self.generation = get_generation()
        self.instance = VmInstance()
        self.device = _sync() if threads == 1 else _pool(threads)
        self.allocator: Any = self.device.allocator
        self.module = create_hal_module(self.instance, self.device)


@cache
def _shared(threads: int, generation: int) -> IreeDevice:
    device = IreeDevice(threads)
    leave_to_parent(device)
    return device


def get_device(threads: int) -> IreeDevice:
    """Return the device of so many threads, the same in every call; one thread is the caller's own."""
    with _lock:
        return _shared(threads, get_generation())


def _sync() -> Any:
    return create_hal_driver("local-sync").create_default_device()


def _pool(threads: int) -> Any:
    parse_flags(f"--task_topology_group_count={threads}")
    try:
        return create_hal_driver("local-task").create_default_device()
    finally:
        parse_flags("--task_topology_group_count=0")


def is_small(function: Function) -> bool:
    """Whether a Function, at every size, is so little work that the calling thread does it sooner than a pool."""
    if not all(isinstance(value.type, TensorType) and value.type.is_static for value in function.inputs):
        return False
    return sum(_work(node, function) for node in function.nodes) <= SMALL_WORK


def _work(node: Node, function: Function) -> int:
    """Return about how many operations on single elements a node is: those it makes, times those that each is a sum of."""
    made = sum(prod(_extents(name, function)) for name in node.outputs)
    read = max((prod(_extents(name, function)) for name in node.inputs), default=0)
    return max(made, read) * _summed(node, function)


def _summed(node: Node, function: Function) -> int:
    extents = _extents(node.inputs[1], function) if node.op_type in _PRODUCTS and len(node.inputs) > 1 else ()
    if not extents:
        return 1
    return extents[-2:][0] if node.op_type == "MatMul" else max(prod(extents[1:]), 1)


_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


def _extents(name: str, function: Function) -> tuple[int, ...]:
    type_ = function.get_type(name) if name else None
    extents = (type_.shape or ()) if isinstance(type_, TensorType) else ()
    return tuple(extent for extent in extents if isinstance(extent, int))
