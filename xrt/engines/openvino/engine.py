"""The engine class `OpenVino`: options, compile, save and load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import openvino

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.contract.options import check_options, option
from xrt.engines.openvino.executable import CompiledModel, OpenVinoExecutable, export_model, load_model
from xrt.engines.openvino.library import (
    LIBRARY,
    PRECISIONS,
    check_precision,
    check_thread_pools,
    get_core,
    has_precision,
    report_memory,
)
from xrt.engines.toolkit.libraries import AllocationTracker, summarize_error
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
    """Maximum number of concurrent runs of an executable, which share its threads. Further calls wait."""
    pinning: bool = False
    """Whether to pin the threads to cores. Pinning slows down the threads of other engines."""
    precision: Literal["allowed", "fp32", "bf16", "fp16"] = "allowed"
    """The precision of float32 operators. ``allowed``: the precision that the module allows, which is float32 by default. Other
    values override the module. Compilation fails if OpenVINO would use another precision."""

    def __post_init__(self) -> None:
        check_options(self)

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.openvino.support import why_not

        return why_not(node, function)

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        return has_quantized_readers(node, function) and self.why_not(node, function) is None

    def why_not_dynamic(self, function: Function) -> str | None:
        """Explain why one executable cannot serve all sizes: an input of unknown rank, or an unsupported node. Otherwise None."""
        for value in function.inputs:
            if isinstance(value.type, TensorType) and value.type.shape is None:
                return f"the rank of {value.name!r} is not known, and OpenVINO needs it"
        # Nodes that are supported with fixed sizes may be unsupported with symbolic dims.
        for node in function.nodes:
            if reason := self.why_not(node, function):
                return f"{node.name!r} ({node.op}): {reason}"
        return None

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        from xrt.operators import Trait, has_trait

        return (0,) if has_trait(node, Trait.UPDATES) else ()

    def compile(self, function: Function, context: CompileContext) -> OpenVinoExecutable:
        """Compile a Function. Large constants are not copied. Raises CompileRefused if OpenVINO rejects the model."""
        from xrt.engines.openvino.export import export_function
        from xrt.engines.openvino.support import lower
        from xrt.engines.toolkit.memory import find_inplace_outputs
        from xrt.operators import ensure_computed_outputs

        check_thread_pools()
        checked_names = {node.name for node in function.nodes}
        function = ensure_computed_outputs(function)
        for node in function.nodes:
            if node.name not in checked_names and (reason := self.why_not(node, function)):
                raise CompileRefused(reason)
        lowered = lower(function)
        # The plugin does not report its memory use, so measure the growth of the process.
        with AllocationTracker() as growth:
            try:
                imported = export_function(lowered)
                model = get_core().compile_model(imported.model, DEVICE, self._make_settings(context, function))
                # The plugin may silently choose another precision.
                check_precision(model, self._choose_precision(context))
                compiled = CompiledModel.from_model(model, imported.used_inputs, imported.passed_through)
            except (RuntimeError, ValueError, TypeError) as error:
                raise CompileRefused(f"{LIBRARY} declines: {summarize_error(error)}") from error
        report = partial(report_memory, imported.copied_bytes, growth)
        return OpenVinoExecutable(function, compiled, imported.arrays, report, find_inplace_outputs(function))

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Serialize the compiled model, including its constants."""
        if not isinstance(executable, OpenVinoExecutable) or executable.compiled is None:
            raise CompileRefused("there is no compiled model to save")
        if executable.saved is not None:
            return executable.saved
        return export_model(executable.compiled, executable.inplace)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> OpenVinoExecutable:
        check_thread_pools()
        with AllocationTracker() as growth:
            compiled, inplace = load_model(data, DEVICE, self._make_settings(context, function))
        executable = OpenVinoExecutable(function, compiled, data, partial(report_memory, 0, growth, data), inplace)
        # `save` can return the same bytes.
        executable.saved = data
        return executable

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """True for all thread counts: the plugin selects kernels for the thread count when it loads the graph."""
        return True

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Explain why the requested precision is not possible with this CPU and the option ``precision``; None if it is."""
        precision = context.options.precision
        if precision == "fp32":
            return None
        if self.precision in ("allowed", precision) and precision in ("bf16", "fp16") and has_precision(precision):
            return None
        return (
            "engine 'openvino' computes in the model's types, or a reduced precision of this CPU: "
            f"it does not honour precision={precision!r}"
        )

    def with_precision(self, precision: Precision) -> GraphCompiler | None:
        """Return this engine with its option ``precision`` set to ``precision``.

        None if the CPU does not support that precision, or if the option is already fp32. For int8 return the engine unchanged,
        because it computes quantized operators in integers anyway.
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
        """The engine's option ``precision``; if the option is ``allowed``, the precision that the module allows."""
        return context.options.precision if self.precision == "allowed" else self.precision

    def _make_settings(self, context: CompileContext, function: Function) -> dict[str, Any]:
        is_static = all(isinstance(value.type, TensorType) and value.type.is_static for value in function.inputs)
        precision = self._choose_precision(context)
        # With one thread use no streams: then a call computes in the calling thread, and OpenVINO starts no other threads.
        streams = min(self.streams, context.threads) if context.threads > 1 else 0
        settings = {
            "EXECUTION_MODE_HINT": "ACCURACY" if precision == "fp32" else "PERFORMANCE",
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
            "INFERENCE_NUM_THREADS": context.threads,
            "NUM_STREAMS": streams,
            "ENABLE_CPU_PINNING": self.pinning,
        }
        if not is_static:
            # The plugin caches kernels for each size, of about 25 kB each. Its default limit is 5,000 kernels.
            settings["CPU_RUNTIME_CACHE_CAPACITY"] = min(max(128 * len(function.nodes), 512), 2048)
        return settings
