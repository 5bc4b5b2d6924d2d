"""An engine in one file, which compiles a Function to the source of one Python function that calls NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from xrt import CompileContext, DType, Executable, Function, GraphCompiler, Node, RunOptions
from xrt.engines import EngineDeclaration

DECLARATION = EngineDeclaration("my_engine", description="float arithmetic as Python source over NumPy", libraries=("numpy",))

EXPRESSIONS = {
    "Add": "{} + {}",
    "Sub": "{} - {}",
    "Mul": "{} * {}",
    "Div": "{} / {}",
    "MatMul": "np.matmul({}, {})",
    "Neg": "-{}",
}
EXPRESSIONS |= {"Relu": "np.maximum({}, 0)", "Reciprocal": "1 / {}", "Sigmoid": "1 / (1 + np.exp(-{}))"}
EXPRESSIONS |= {op: f"np.{op.lower()}({{}})" for op in ("Abs", "Exp", "Log", "Sqrt", "Tanh", "Floor", "Ceil", "Sin", "Cos")}


@dataclass(frozen=True)
class MyEngine(GraphCompiler):
    """Float arithmetic: the compiled function makes one NumPy call per node."""

    name: ClassVar[str] = "my_engine"
    supports_dynamic_shapes: ClassVar[bool] = True
    on_error: Literal["ignore", "warn", "raise"] = "ignore"
    """What NumPy does on an overflow or a division by zero."""

    def why_not(self, node: Node, function: Function) -> str | None:
        if node.op not in EXPRESSIONS:
            return f"my_engine has no expression for {node.op}"
        if function.opsets.get("", 0) < 13:
            return f"my_engine supports operators of opset 13 and later; the model declares {function.opsets.get('')}"
        dtypes = {getattr(function.get_type(name), "dtype", None) for name in node.inputs}
        floats = dtypes in ({DType.FLOAT32}, {DType.FLOAT64})
        return None if floats else "my_engine supports float32 and float64, but not both in one node"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        scope: dict[str, Any] = {"np": np}
        exec(write_source(function, scope), scope)  # safe: the source contains no string of the model
        return Compiled(scope["call"], self.on_error)


def write_source(function: Function, scope: dict[str, Any]) -> str:
    """Write the Function as the source of a Python function ``call``, and add its constants to ``scope``."""
    name = {value: f"v{number}" for number, value in enumerate(function.value_names())}
    scope.update((name[value], constant.array) for value, constant in function.constants.items())
    arguments = ", ".join(name[value.name] for value in function.inputs)
    results = ", ".join(name[value.name] for value in function.outputs)
    steps = (
        f"    {name[node.outputs[0]]} = {EXPRESSIONS[node.op].format(*(name[value] for value in node.inputs))}"
        for node in function.nodes
    )
    return "\n".join([f"def call({arguments}):", *steps, f"    return [{results}]"])


class Compiled(Executable):
    """The compiled function. Its results are converted to arrays, because NumPy returns scalars instead of arrays of rank 0."""

    def __init__(self, call: Callable[..., list[Any]], on_error: Literal["ignore", "warn", "raise"]) -> None:
        self.call = call
        self.on_error = on_error

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        with np.errstate(all=self.on_error):
            results = [np.asarray(result) for result in self.call(*inputs)]
        for index, buffer in enumerate(options.out or ()):
            if buffer is not None:
                np.copyto(buffer, results[index])
                results[index] = buffer
        return results
