"""The toy engine: the reference that everything else is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from xrt.engines.contract import GraphCompiler
from xrt.engines.optable import Kernel, OpTable
from xrt.engines.options import CompileContext
from xrt.engines.toy import reference
from xrt.engines.toy.env import Env, closed
from xrt.engines.toy.executable import ToyExecutable
from xrt.engines.toy.kernels import ops
from xrt.engines.toy.table import Factory, Run
from xrt.engines.toy.tape import Tape, tape_of
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, schema_of

__all__ = ["Toy"]


@dataclass(frozen=True)
class Toy(GraphCompiler):
    """NumPy kernels for the operators of the common models, the ``onnx`` package's reference operators for the rest.

    Complete and obvious rather than quick; deterministic to the bit wherever the operator is. Kernels run on the calling
    thread, matrix products on the threads of NumPy's BLAS, which are held to the thread budget.
    """

    name: ClassVar[str] = "toy"
    supports_dynamic_shapes: ClassVar[bool] = True
    kernels: ClassVar[OpTable[Any]] = ops
    """Its own kernels. An engine that derives from this one puts ``Toy.kernels.extended(name)`` here and adds to that."""

    def version(self) -> str:
        """Return XRT's version and those of the libraries whose change may change a result."""
        from importlib import metadata

        return ", ".join(f"{name} {metadata.version(name)}" for name in ("xrt", "numpy", "ml_dtypes", "onnx"))

    def why_not(self, node: Node, function: Function) -> str | None:
        found = self._find(node, function)
        if isinstance(found, str):
            return found
        for body in node.bodies:
            within = closed(body, function)
            for inner in within.nodes:
                if reason := self.why_not(inner, within):
                    return f"its body {body.name!r} holds node {inner.name!r} ({inner.op}): {reason}"
        return None

    def compile(self, function: Function, context: CompileContext) -> ToyExecutable:
        if context.device.partition(":")[0] != "cpu":
            raise CompileRefused(f"engine {self.name!r} runs on cpu, not on {context.device}")
        for node in function.nodes:
            if reason := self.why_not(node, function):
                raise self._refusal(node, reason)
        return ToyExecutable(function, self._lay_out, context.threads)

    def _find(self, node: Node, function: Function) -> Kernel[Factory] | Factory | str:
        """Return what serves a node: an own kernel, else a factory that borrows the reference; else the reason why none."""
        if reason := self._unknown(node, function):
            return reason
        own = self.kernels.find(node, function, node.device or "cpu")
        if not isinstance(own, str):
            return own
        absent = reference.why_not(node, function)
        if absent is None:
            return reference.borrowed
        return f"{own}; {absent}" if (node.domain, node.op_type) in self.kernels else absent

    def _unknown(self, node: Node, function: Function) -> str | None:
        """Return why nobody knows what the node means; an operator of a foreign domain means what its kernel says."""
        version = function.opsets.get(node.domain)
        if version is None:
            return f"the function imports no opset for domain {node.domain!r}"
        if node.domain not in reference.DOMAINS and (node.domain, node.op_type) in self.kernels:
            return None
        if schema_of(node.op_type, version, node.domain) is None:
            domain = node.domain or "ai.onnx"
            return f"the onnx package describes no operator {node.op_type!r} in version {version} of domain {domain!r}"
        return None

    def _lay_out(self, function: Function) -> Tape:
        """Return the tape of a closed Function whose nodes `why_not` was silent about."""

        def kernel_of(node: Node) -> tuple[Run, tuple[int, ...]]:
            found = self._find(node, function)
            if isinstance(found, str):
                raise self._refusal(node, found)
            env = Env(np, node, function, self._compiled)
            if isinstance(found, Kernel):
                return found.code(node, env), found.mutable
            return found(node, env), ()

        return tape_of(function, kernel_of, self.name)

    def _compiled(self, function: Function) -> Any:
        return self._lay_out(function).play

    def _refusal(self, node: Node, reason: str) -> CompileRefused:
        return CompileRefused(f"engine {self.name!r} cannot take node {node.name!r} ({node.op}): {reason}")
