"""`OpenVino`: OpenVINO as an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from xrt.engines.contract import GraphCompiler
from xrt.engines.openvino.capability import why_not
from xrt.engines.openvino.executable import OpenVinoExecutable, computed_outputs, model_function
from xrt.engines.openvino.importing import import_function
from xrt.engines.openvino.library import LIBRARY, core, openvino, sense
from xrt.engines.openvino.requests import Compiled
from xrt.engines.openvino.values import why_not_carried
from xrt.engines.options import CompileContext
from xrt.errors import CompileRefused, OptionError
from xrt.graph import Function, Node

__all__ = ["OpenVino"]

DEVICE = "CPU"


@dataclass(frozen=True)
class OpenVino(GraphCompiler):
    """Compiles a Function into a model of OpenVINO's CPU plugin."""

    name: ClassVar[str] = "openvino"

    streams: int = 1
    """How many calls of one executable compute at once, each with its share of the threads; others wait."""
    pinning: bool = False
    """Whether its threads are bound to cores; threads of other engines are then in their way."""

    def __post_init__(self) -> None:
        if type(self.streams) is not int or self.streams < 1:
            raise OptionError(f"streams of engine 'openvino' must be a positive integer; got {self.streams!r}")
        if not isinstance(self.pinning, bool):
            raise OptionError(f"pinning of engine 'openvino' must be true or false; got {self.pinning!r}")

    def why_not(self, node: Node, function: Function) -> str | None:
        return why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> OpenVinoExecutable:
        if not computed_outputs(function):
            return OpenVinoExecutable(function, None)
        _check_border(function)
        try:
            imported = import_function(model_function(function))
            compiled = core().compile_model(imported.model, DEVICE, self._settings(context))
        except (RuntimeError, ValueError, TypeError) as error:
            raise CompileRefused(f"{LIBRARY} declines: {sense(error)}") from error
        return OpenVinoExecutable(function, Compiled.of(compiled, imported.used, imported.passed), imported)

    def version(self) -> str:
        return f"openvino {openvino.__version__}"

    def _settings(self, context: CompileContext) -> dict[str, Any]:
        lowered = context.options.precision == "bf16"
        return {
            "EXECUTION_MODE_HINT": "PERFORMANCE" if lowered else "ACCURACY",
            "INFERENCE_PRECISION_HINT": "bf16" if lowered else "f32",
            "INFERENCE_NUM_THREADS": context.threads,
            "NUM_STREAMS": min(self.streams, context.threads),
            "ENABLE_CPU_PINNING": self.pinning,
        }


def _check_border(function: Function) -> None:
    for value in function.inputs:
        if value.type is None:
            raise CompileRefused(f"the type of input {value.name!r} is not known, and OpenVINO needs it; infer the types first")
    for value in (*function.inputs, *computed_outputs(function)):
        if reason := why_not_carried(value.name, value.type):
            raise CompileRefused(reason)
