"""`OpenVino`: OpenVINO as an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.openvino.executable import (
    CompiledModel,
    OpenVinoExecutable,
    export_model,
    list_computed_outputs,
    load_model,
    model_function,
    why_not_carried,
)
from xrt.engines.openvino.library import (
    HINTS,
    LIBRARY,
    check_pools,
    check_precision,
    core,
    has_precision,
    openvino,
    report_memory,
    summarize_error,
)
from xrt.engines.toolkit.libraries import AllocationTracker
from xrt.engines.toolkit.node_writer import has_quantized_readers
from xrt.errors import CompileRefused, OptionError
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext, Precision
    from xrt.graph import Function, Node

__all__ = ["OpenVino"]

DEVICE = "CPU"


@dataclass(frozen=True)
class OpenVino(GraphCompiler):
    """Compiles a Function into a model of OpenVINO's CPU plugin."""

    name: ClassVar[str] = "openvino"
    deviations: ClassVar[tuple[Deviation, ...]] = (
        Deviation("nan"),
        Deviation("infinity", ("Cast", "Clip", "Gelu", "MaxPool", "PRelu", "ReduceLogSumExp", "Shrink", "ThresholdedRelu")),
        Deviation("denormal"),
        Deviation("float16"),
        Deviation("integer"),
        Deviation("empty"),
    )
    supports_dynamic_shapes: ClassVar[bool] = True

    streams: int = 1
    """How many calls of one executable compute at once, each with its share of the threads; others wait."""
    pinning: bool = False
    """Whether its threads are bound to cores; threads of other engines are then in their way."""

    precision: Literal["allowed", "fp32", "bf16", "fp16"] = "allowed"
    """What float32 is computed in: ``allowed`` is the precision that the module allows, by default float32; the others hold
    whatever is allowed. A compile that would have another precision is refused."""

    def __post_init__(self) -> None:
        if type(self.streams) is not int or self.streams < 1:
            raise OptionError(f"streams of engine 'openvino' must be a positive integer; got {self.streams!r}")
        if not isinstance(self.pinning, bool):
            raise OptionError(f"pinning of engine 'openvino' must be true or false; got {self.pinning!r}")

        if self.precision not in ("allowed", "fp32", "bf16", "fp16"):
            raise OptionError(f"precision of engine 'openvino' must be allowed, fp32, bf16 or fp16; got {self.precision!r}")

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.openvino.support import why_not

        return why_not(node, function)

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        return has_quantized_readers(node, function) and self.why_not(node, function) is None

    def why_not_dynamic(self, function: Function) -> str | None:
        """Explain which node is declined; otherwise one executable serves all sizes."""
        for value in function.inputs:
            if isinstance(value.type, TensorType) and value.type.shape is None:
                return f"the rank of {value.name!r} is not known, and OpenVINO needs it"
        for node in function.nodes:
            if reason := self.why_not(node, function):
                return f"{node.name!r} ({node.op}): {reason}"
        return None

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        from xrt.engines.toolkit.scatters import list_scattered_inputs

        return list_scattered_inputs(node)

    def compile(self, function: Function, context: CompileContext) -> OpenVinoExecutable:
        """Return a compiled model; its large constants stay where they are. Raises CompileRefused for what OpenVINO declines."""
        from xrt.engines.openvino.export import export_function

        if not list_computed_outputs(function):
            return OpenVinoExecutable(function, None)
        check_pools()
        lowered = _lower(function)
        with AllocationTracker(sum(constant.nbytes for constant in function.constants.values())) as growth:
            try:
                imported = export_function(lowered)
                model = core().compile_model(imported.model, DEVICE, self._settings(context, function))
                check_precision(model, self._choose_precision(context))
                compiled = CompiledModel.of(model, imported.used, imported.passed)
            except (RuntimeError, ValueError, TypeError) as error:
                raise CompileRefused(f"{LIBRARY} declines: {summarize_error(error)}") from error
        return OpenVinoExecutable(function, compiled, imported.held, partial(report_memory, imported.copied, growth))

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Return what OpenVINO exports of the compiled model, constants included."""
        if not isinstance(executable, OpenVinoExecutable) or executable.compiled is None:
            raise CompileRefused("there is no compiled model to save")
        if executable.saved is not None:
            return executable.saved
        return export_model(executable.compiled, executable.inplace)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> OpenVinoExecutable:
        check_pools()
        with AllocationTracker(len(data)) as growth:
            compiled, inplace = load_model(data, DEVICE, self._settings(context, function))
        executable = OpenVinoExecutable(function, compiled, data, partial(report_memory, 0, growth, data), inplace)
        executable.saved = data
        return executable

    def serves_threads(self, saved: int, threads: int) -> bool:
        """Whatever the budget: the blob is the graph before the plugin has chosen kernels, which it does when it imports it."""
        return True

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Return which option is not honoured. Strict types are, where precision is not lowered."""
        asked = context.options.unusual()
        wanted = asked.get("precision")
        is_lowered = self.precision in ("allowed", wanted) and "strict_types" not in asked
        if is_lowered and wanted in ("bf16", "fp16") and has_precision(wanted):
            del asked["precision"]
        if self.precision in ("allowed", "fp32") and "precision" not in asked:
            asked.pop("strict_types", None)
        if not asked:
            return None
        shown = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        return f"engine 'openvino' computes in the model's own types or, where it sees fit, in bf16: it does not honour {shown}"

    def lower_precision(self, precision: Precision) -> GraphCompiler | None:
        """Return the engine in bf16 or fp16 where the processor has it, unless it is one of float32 whatever is allowed.

        For fp32 it is that one, and for int8 the engine itself, which computes quantized operators in integers.
        """
        if precision == "int8":
            return self
        if precision == "fp32":
            return replace(self, precision="fp32")
        is_possible = self.precision != "fp32" and has_precision(precision)
        return replace(self, precision=precision) if is_possible else None

    def remarks(self, function: Function) -> tuple[str, ...]:
        return () if self.precision in ("allowed", "fp32") else (f"computes float32 in {self.precision}",)

    def version(self) -> str:
        return f"openvino {openvino.__version__}"

    def _choose_precision(self, context: CompileContext) -> str:
        """Return what float32 is computed in: the engine's own precision, or a lower one that the caller has asked for."""
        return context.options.precision if self.precision == "allowed" else self.precision

    def _settings(self, context: CompileContext, function: Function) -> dict[str, Any]:
        is_static = all(isinstance(value.type, TensorType) and value.type.is_static for value in function.inputs)
        precision = self._choose_precision(context)
        # With one thread no streams: each call computes in the thread that makes it, and the library starts none.
        streams = min(self.streams, context.threads) if context.threads > 1 else 0
        # An executable for all sizes keeps kernels of some 25 kB for each size that it meets; the library's own limit is 5,000.
        return {
            "EXECUTION_MODE_HINT": "ACCURACY" if precision == "fp32" else "PERFORMANCE",
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "INFERENCE_NUM_THREADS": context.threads,
            "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": self.pinning,
            **({} if is_static else {"CPU_RUNTIME_CACHE_CAPACITY": min(max(128 * len(function.nodes), 512), 2048)}),
        }


def _lower(function: Function) -> Function:
    """Prepare what is exported: the computed outputs, in operators that OpenVINO supports."""
    from xrt.engines.openvino.support import lower

    computed = model_function(function)
    _check_border(computed)
    return lower(computed)


def _check_border(function: Function) -> None:
    for value in function.inputs:
        if value.type is None:
            raise CompileRefused(f"the type of input {value.name!r} is not known, and OpenVINO needs it; infer the types first")
    for value in (*function.inputs, *list_computed_outputs(function)):
        if reason := why_not_carried(value.name, value.type):
            raise CompileRefused(reason)
