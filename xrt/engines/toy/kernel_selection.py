"""Which kernel serves a node: Python's own, native ones, or the borrowed reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from xrt.engines.contract.op_table import Kernel, OpTable
from xrt.engines.native import NativeKernel, NativeLibrary
from xrt.engines.native.fusion import DOMAIN, ELEMENTWISE
from xrt.engines.native.opcodes import lower_to_opcodes
from xrt.engines.toy import reference
from xrt.engines.toy.table import Factory
from xrt.graph import Function, Node, find_schema

__all__ = ["Found", "KernelSelection", "Refusals", "select_kernel"]

Refusals: TypeAlias = frozenset[tuple[str, NativeKernel]]
"""Nodes by name, and the kernels that refused them."""
NONE: Refusals = frozenset()

Found: TypeAlias = Kernel[Any] | Factory | str
"""A kernel of the table, a factory that borrows the reference, or the reason why nothing serves."""


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """The kernels that an engine has, and how one is chosen."""

    engine: str
    python: OpTable[Any]
    """Kernels in Python, the engine's own."""
    everything: OpTable[Any]
    """Those, and after them the kernels of native libraries: of equal priority, the first in the table is tried first."""
    has_native: bool
    chain: int | None
    """The priority of the kernel of elementwise chains; None where there is none."""

    def why_not(self, node: Node, function: Function) -> str | None:
        """Return why no kernel serves the node, bodies apart; native kernels are asked only where Python's do not serve."""
        found = self.in_python(node, function)
        if isinstance(found, str) and self.has_native:
            found = self.best(node, function)
        return found if isinstance(found, str) else None

    def in_python(self, node: Node, function: Function) -> Found:
        """Return what serves the node in Python."""
        return self._find(node, function, self.python, ())

    def best(self, node: Node, function: Function, without: tuple[Any, ...] = ()) -> Found:
        """Return what serves the node best, native kernels included, those ``without`` not asked."""
        return self._find(node, function, self.everything, without)

    def native(self, node: Node, function: Function, refused: Refusals = NONE) -> NativeKernel | None:
        """Return the native kernel that is to serve the node, none of those that ``refused`` it; None where Python serves."""
        found = self.best(node, function, tuple(kernel for name, kernel in refused if name == node.name))
        return found.code if isinstance(found, Kernel) and isinstance(found.code, NativeKernel) else None

    def joins_chain(self, node: Node, function: Function) -> bool:
        """Whether the node may be computed in a chain of elementwise operators: no kernel of the chain's priority has it."""
        if self.chain is None or lower_to_opcodes(node, function) is None:
            return False
        found = self.best(node, function)
        return not isinstance(found, Kernel) or found.priority < self.chain

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        """Return the inputs, by place, over which the node's result may be written: all where it joins a chain."""
        if self.joins_chain(node, function):
            return tuple(range(len(node.inputs)))
        found = self.in_python(node, function)
        return found.mutable[: len(node.inputs)] if isinstance(found, Kernel) else ()

    def _find(self, node: Node, function: Function, table: OpTable[Any], without: tuple[Any, ...]) -> Found:
        if reason := _unknown(node, function, table):
            return reason
        own = table.find(node, function, node.device or "cpu", without)
        if not isinstance(own, str):
            return own
        absent = reference.why_not(node, function)
        if absent is None:
            return reference.make_reference_kernel
        return f"{own}; {absent}" if (node.domain, node.op_type) in table else absent


@lru_cache(maxsize=64)
def select_kernel(engine: str, table: OpTable[Any], libraries: tuple[NativeLibrary, ...]) -> KernelSelection:
    """Return the choice between a table, which is complete by then, and the libraries' kernels behind it."""
    everything = table.extend(engine) if libraries else table
    for library in libraries:
        library.register(everything)
    chains = [kernel.priority for kernel in everything if (kernel.domain, kernel.op_type) == (DOMAIN, ELEMENTWISE)]
    return KernelSelection(engine, table, everything, bool(libraries), max(chains, default=None))


def _unknown(node: Node, function: Function, table: OpTable[Any]) -> str | None:
    """Return why the meaning of the node is unknown; an operator of a foreign domain means what its kernel says."""
    version = function.opsets.get(node.domain)
    if version is None:
        return f"the function imports no opset for domain {node.domain!r}"
    if node.domain not in reference.DOMAINS and (node.domain, node.op_type) in table:
        return None
    if find_schema(node.op_type, version, node.domain) is None:
        domain = node.domain or "ai.onnx"
        return f"the onnx package describes no operator {node.op_type!r} in version {version} of domain {domain!r}"
    return None
