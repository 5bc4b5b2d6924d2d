"""A kernel that has been prepared for one node."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from xrt.engines.native import abi
from xrt.engines.native.library import MessageBuffer, NativeKernel
from xrt.errors import CompileFailed, CompileRefused
from xrt.graph import Function, Node, TensorType

__all__ = ["PreparedKernel"]

MOST_SCRATCH = 1 << 40
"""Bytes; a kernel that asks for more has a number wrong, and sums of such would not fit into 64 bits."""


class PreparedKernel:
    """A kernel, its node, and the state that its ``prepare`` made, which is destroyed with the last reference to this object."""

    __slots__ = ("__weakref__", "_shown", "kernel", "node", "outputs", "scratch", "state")

    def __init__(self, kernel: NativeKernel, node: Node, function: Function) -> None:
        """Prepare the kernel; all the node's inputs must have static types.

        Raises CompileRefused where the kernel refuses, and CompileFailed where it fails, or announces another type of an
        output than the function declares.
        """
        self.kernel, self.node = kernel, node
        self._shown = kernel.show(node, function)
        announced = (abi.OutputC * len(node.outputs))()
        plan, said = abi.PlanC(outputs=announced), MessageBuffer()
        status = kernel.structure.prepare(self._shown.structure, plan, said.structure)
        if status == abi.REFUSED:
            raise CompileRefused(f"{kernel} refuses node {node.name!r} ({node.op}): {said.text}", [node.name])
        if status != abi.OK:
            raise CompileFailed(f"{kernel} failed to prepare for node {node.name!r} ({node.op}): {said.text}")
        self.state: int | None = plan.state
        if kernel.structure.destroy:
            weakref.finalize(self, kernel.structure.destroy, plan.state).atexit = False  # threads may run when the process ends
        self.scratch: int = plan.scratch
        if self.scratch > MOST_SCRATCH:
            raise CompileFailed(
                f"{kernel} asks for {self.scratch} bytes of scratch for node {node.name!r} ({node.op}); its prepare is wrong"
            )
        self.outputs: dict[str, TensorType] = dict(_announced(kernel, node, function, announced))
        """The types of the outputs that the node has, by name."""

    def can_overwrite(self, name: str, place: int = 0) -> bool:
        """Whether the kernel allows the output at that place to share the memory of the input of that name."""
        if place and not self.kernel.flags & abi.ELEMENTWISE:
            return False
        places = [index for index, given in enumerate(self.node.inputs) if given == name]
        return all(self.kernel.in_place >> index & 1 for index in places)


def _announced(kernel: NativeKernel, node: Node, function: Function, outputs_c: Any) -> Iterator[tuple[str, TensorType]]:
    for index, name in enumerate(node.outputs):
        if not name:
            continue
        type_, declared = _type(outputs_c[index]), function.get_type(name)
        where = f"output {index} of node {node.name!r} ({node.op})"
        if type_ is None:
            raise CompileFailed(f"{kernel} announces no type for {where}, or one that XRT does not know; its prepare is wrong")
        if declared is not None and not _agree(type_, declared):
            raise CompileFailed(f"{kernel} announces {type_} for {where}, which is {declared}; its prepare is wrong")
        yield name, type_


def _type(output_c: abi.OutputC) -> TensorType | None:
    dtype = abi.to_dlpack_dtype(output_c.dtype)
    shape = tuple(output_c.shape[: output_c.ndim]) if 0 <= output_c.ndim <= abi.MAX_RANK else (-1,)
    return None if dtype is None or any(dim < 0 for dim in shape) else TensorType(dtype, shape)


def _agree(announced: TensorType, declared: object) -> bool:
    if not isinstance(declared, TensorType) or declared.dtype is not announced.dtype:
        return False
    if declared.shape is None or announced.shape is None:
        return True
    fixed = (a == d for a, d in zip(announced.shape, declared.shape, strict=False) if isinstance(d, int))
    return len(declared.shape) == len(announced.shape) and all(fixed)
