"""An engine that computes as toy does, offers bf16, and gives in its name what its field says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract import registry
from xrt.engines.contract.options import Precision
from xrt.graph import Function, Node

TOY = registry.create("toy")


class LossyExecutable(Executable):
    """Another's executable, with an error in its results."""

    def __init__(self, inner: Executable, fault: str) -> None:
        self.inner, self.fault = inner, fault

    def prepare(self) -> None:
        self.inner.prepare()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return [self._spoil(np.array(value)) for value in self.inner.run(inputs)]

    def _spoil(self, value: Any) -> Any:
        if value.dtype.kind != "f" or not self.fault:
            return value
        if self.fault == "zeros":
            return np.zeros_like(value)
        if self.fault == "nan":
            value.flat[0] = np.nan
            return value
        share = float(self.fault)
        return (value * (1 + share)).astype(value.dtype)


@dataclass(frozen=True)
class Lossy(GraphCompiler):
    """Exact by itself; in bf16 its results have the error ``reduced``."""

    name: ClassVar[str] = "lossy"
    reduced: str = ""
    fault: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return TOY.why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return LossyExecutable(TOY.compile(function, context), self.fault)

    def with_precision(self, precision: Precision) -> GraphCompiler | None:
        return replace(self, fault=self.reduced) if precision == "bf16" and self.reduced else None
