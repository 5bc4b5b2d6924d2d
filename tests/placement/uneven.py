"""An engine that is slow at some operators: what is worth mixing is known beforehand, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract import registry
from xrt.graph import Function, Node
from xrt.module.options import REFERENCE


@dataclass(frozen=True)
class Uneven(GraphCompiler):
    """The reference, and so many seconds for each node of some operators."""

    name: ClassVar[str] = "uneven"
    slow: str = ""
    """Operators, with ``|`` between them."""
    seconds: float = 0.004

    def why_not(self, node: Node, function: Function) -> str | None:
        return registry.create(REFERENCE).why_not(node, function)

    def version(self) -> str:
        return "1"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return _Sleeping(registry.create(REFERENCE).compile(function, context), self.seconds_of(function))

    def seconds_of(self, function: Function) -> float:
        """Return how much longer than the reference a call of the Function takes."""
        return self.seconds * sum(node.op in self.slow.split("|") for node in function.nodes)


class _Sleeping(Executable):
    def __init__(self, inner: Executable, seconds: float) -> None:
        self.inner = inner
        self.seconds = seconds

    def prepare(self) -> None:
        self.inner.prepare()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        time.sleep(self.seconds)
        return self.inner.run(inputs, options)

    def close(self) -> None:
        self.inner.close()
