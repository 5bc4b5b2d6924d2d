"""The engine class `OpenVino`: options, compile, save and load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.contract.options import check_options, option
from xrt.engines.openvino.executable import (
    CompiledModel,
    OpenVinoExecutable,
    export_model,
    load_model,
    why_not_passable,
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
from xrt.engines.toolkit.rewrites import has_quantized_readers
from xrt.errors import CompileRefused
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext, Precision
    from xrt.graph import Function, Node


DEVICE = "CPU"


@dataclass(frozen=True)
class OpenVino(GraphCompiler):
    """Compiles Functions with OpenVINO's CPU plugin."""

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

    streams: int = option(1, at_least=1)
    """Maximum number of concurrent runs per executable. The threads are divided among them; further calls wait."""
    pinning: bool = False
    """Whether to pin the threads to cores. This slows down the threads of other engines."""

    precision: Literal["allowed", "fp32", "bf16", "fp16"] = "allowed"
    """The type that float32 is computed in: ``allowed`` is the precision that the module allows, by default float32; the others
    apply regardless of the module. A compile that would use another precision is declined."""

    def __post_init__(self) -> None:
        check_options(self)

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.openvino.support import why_not

        return why_not(node, function)

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        return has_quantized_readers(node, function) and self.why_not(node, function) is None

    def why_not_dynamic(self, function: Function) -> str | None:
        """Decline a Function with an input of unknown rank or an unsupported node; otherwise one executable serves all sizes."""
        for value in function.inputs:
            if isinstance(value.type, TensorType) and value.type.shape is None:
                return f"the rank of {value.name!r} is not known, and OpenVINO needs it"
        # Nodes are accepted one by one for fixed sizes; check them again with symbolic dims.
        for node in function.nodes:
            if reason := self.why_not(node, function):
                return f"{node.name!r} ({node.op}): {reason}"
        return None

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        from xrt.engines.toolkit.memory import list_scattered_inputs

        return list_scattered_inputs(node)

    def compile(self, function: Function, context: CompileContext) -> OpenVinoExecutable:
        """Compile; large constants are not copied. Raises CompileRefused if OpenVINO rejects the model."""
        from xrt.engines.openvino.export import export_function
        from xrt.engines.openvino.support import lower
        from xrt.engines.toolkit.memory import find_inplace_outputs
        from xrt.operators import compute_outputs

        check_pools()
        names, function = {node.name for node in function.nodes}, compute_outputs(function)
        _check_boundary_types(function)
        if reason := next(filter(None, (self.why_not(x, function) for x in function.nodes if x.name not in names)), None):
            raise CompileRefused(reason)
        lowered = lower(function)
        # The plugin does not report its memory, so measure the growth of the process.
        with AllocationTracker(sum(constant.nbytes for constant in function.constants.values())) as growth:
            try:
                imported = export_function(lowered)
                model = core().compile_model(imported.model, DEVICE, self._make_settings(context, function))
                # The plugin may silently choose another precision.
                check_precision(model, self._choose_precision(context))
                compiled = CompiledModel.of(model, imported.used, imported.passed)
            except (RuntimeError, ValueError, TypeError) as error:
                raise CompileRefused(f"{LIBRARY} declines: {summarize_error(error)}") from error
        uses = partial(report_memory, imported.copied, growth)
        return OpenVinoExecutable(function, compiled, imported.arrays, uses, find_inplace_outputs(function))

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Export the compiled model, constants included."""
        if not isinstance(executable, OpenVinoExecutable) or executable.compiled is None:
            raise CompileRefused("there is no compiled model to save")
        if executable.saved is not None:
            return executable.saved
        return export_model(executable.compiled, executable.inplace)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> OpenVinoExecutable:
        check_pools()
        with AllocationTracker(len(data)) as growth:
            compiled, inplace = load_model(data, DEVICE, self._make_settings(context, function))
        executable = OpenVinoExecutable(function, compiled, data, partial(report_memory, 0, growth, data), inplace)
        # `save` can return the same bytes.
        executable.saved = data
        return executable

    def serves_threads(self, saved: int, threads: int) -> bool:
        """Always: the blob contains the graph before kernel selection, which the plugin does on import."""
        return True

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Decline a precision that the processor or the engine's own ``precision`` excludes."""
        precision = context.options.precision
        if precision == "fp32":
            return None
        if self.precision in ("allowed", precision) and precision in ("bf16", "fp16") and has_precision(precision):
            return None
        return (
            "engine 'openvino' computes in the model's own types or, where it sees fit, in bf16: "
            f"it does not honour precision={precision!r}"
        )

    def lower_precision(self, precision: Precision) -> GraphCompiler | None:
        """The engine in bf16 or fp16 if the processor supports it; None if it is fixed to fp32.

        For fp32, the engine fixed to it; for int8 the engine itself, which computes quantized operators in integers.
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
        """The precision of the engine if it is fixed, else the one that the caller allows."""
        return context.options.precision if self.precision == "allowed" else self.precision

    def _make_settings(self, context: CompileContext, function: Function) -> dict[str, Any]:
        is_static = all(isinstance(value.type, TensorType) and value.type.is_static for value in function.inputs)
        precision = self._choose_precision(context)
        # Without streams a call computes in its own thread, and the library starts no threads for one.
        streams = min(self.streams, context.threads) if context.threads > 1 else 0
        # The plugin caches kernels of about 25 kB for each size; its default limit is 5,000 entries.
        return {
            "EXECUTION_MODE_HINT": "ACCURACY" if precision == "fp32" else "PERFORMANCE",
            "INFERENCE_PRECISION_HINT": HINTS[precision],
            "INFERENCE_NUM_THREADS": context.threads,
            "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": self.pinning,
            **({} if is_static else {"CPU_RUNTIME_CACHE_CAPACITY": min(max(128 * len(function.nodes), 512), 2048)}),
        }


def _check_boundary_types(function: Function) -> None:
    for value in function.inputs:
        if value.type is None:
            raise CompileRefused(f"the type of input {value.name!r} is not known, and OpenVINO needs it; infer the types first")
    for value in (*function.inputs, *function.outputs):
        if reason := why_not_passable(value.name, value.type):
            raise CompileRefused(reason)
