"""From a Function to what runs it: native tapes where native kernels serve, a tape of Python kernels around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.op_table import Kernel
from xrt.engines.toy.interpreter import InterpretedExecutable
from xrt.engines.toy.kernel_context import KernelContext
from xrt.engines.toy.native import MOST_SHAPES, ByShapes, alone, with_segments
from xrt.engines.toy.tape import VIEWS, StepKernel, Tape, make_tape, order_updates
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, is_static
from xrt.passes import infer_shapes

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Executable
    from xrt.engines.toy.native import KernelSelection
    from xrt.engines.toy.table import Run

__all__ = ["Assembly"]


MOST_SHAPES_OF_A_BODY = 2
"""Sets of input types for which a body has a native tape. A value that a Loop carries has one shape, or a new one each time."""


class Assembly:
    """Makes executables of closed Functions that the engine takes."""

    def __init__(self, choice: KernelSelection, threads: int) -> None:
        """Take the kernels to choose from, and the thread budget of native ones."""
        self._choice = choice
        self._threads = threads

    def executable(self, function: Function) -> Executable:
        """Return what runs the Function; raises CompileRefused or CompileFailed, naming the node."""
        if not self._choice.has_native:
            return self._played(function)
        if all(is_static(value.type) for value in function.inputs):
            return self._of_known_shapes(function)
        return self._by_shapes(function) if self._is_served(function) else self._played(function)

    def _by_shapes(self, function: Function, most: int = MOST_SHAPES) -> ByShapes:
        return ByShapes(function, self._of_known_shapes, lambda: self._played(function), most)

    def _of_known_shapes(self, function: Function) -> Executable:
        """Return one native call where native kernels serve all nodes, else a tape of Python kernels and native runs."""
        segments = with_segments(_inferred(function), self._choice, self._threads)
        return segments.whole() or self._played(segments.function, segments.kernel)

    def _is_served(self, function: Function) -> bool:
        """Whether a native kernel may serve any node once the shapes are known."""
        function, choice = _inferred(function), self._choice
        return any(choice.joins_chain(node, function) or choice.native(node, function) for node in function.nodes)

    # ------------------------------------------------------------------ in Python

    def _played(
        self, function: Function, segment: Callable[[Node], StepKernel | None] = lambda node: None
    ) -> InterpretedExecutable:
        function = order_updates(function, VIEWS)
        return InterpretedExecutable(function, self._tape(function, segment), self._threads, self._choice.has_native)

    def _tape(self, function: Function, segment: Callable[[Node], StepKernel | None] = lambda node: None) -> Tape:
        return make_tape(function, lambda node: segment(node) or self._kernel(node, function), self._choice.engine)

    def _kernel(self, node: Node, function: Function) -> StepKernel:
        """Return what runs a node in Python."""
        found = self._choice.in_python(node, function)
        if isinstance(found, str):
            return StepKernel(self._native_only(node, function, found))
        env = KernelContext(node, function, np, self._body)
        if isinstance(found, Kernel):
            return StepKernel(found.code(node, env), found.mutable)
        return StepKernel(found(node, env))

    def _native_only(self, node: Node, function: Function, reason: str) -> Run:
        """Return what runs a node that only a native kernel serves, and whose shapes a call has to show."""
        if self._choice.has_native and self._choice.native(node, function):
            executable = ByShapes(alone(node, function), self._of_known_shapes)
            reads = list(dict.fromkeys(name for name in node.inputs if name not in function.constants))
            return lambda *arrays: tuple(executable.run(_picked(node, arrays, reads)))
        raise CompileRefused(f"engine {self._choice.engine!r} cannot take node {node.name!r} ({node.op}): {reason}")

    def _body(self, function: Function) -> Callable[[Sequence[Any]], Any]:
        """Return a body of a node as a callable; its shapes need not be what it declares."""
        if self._choice.has_native and self._is_served(function):
            return self._by_shapes(function, MOST_SHAPES_OF_A_BODY).run
        return self._tape(function).play


def _picked(node: Node, arrays: Sequence[Any], reads: Sequence[str]) -> list[Any]:
    given = dict(zip(node.inputs, arrays, strict=True))
    return [given[name] for name in reads if name]


def _inferred(function: Function) -> Function:
    """Return the Function with the shapes of its values known, as far as they can be."""
    known = all(is_static(function.get_type(name)) for node in function.nodes for name in node.defines)
    return function if known else infer_shapes(function)
