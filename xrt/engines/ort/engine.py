"""The engine classes `Ort` and `TensorRT`: options, compile, save and load."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import onnxruntime
from onnxruntime import GraphOptimizationLevel, SessionOptions

from xrt.engines.contract.graph_compiler import Deviation, Executable, GraphCompiler
from xrt.engines.contract.options import check_options, option
from xrt.engines.ort import cuda
from xrt.engines.ort.executable import OrtExecutable
from xrt.engines.ort.saving import SavedSession, open_memory_file, optimize_model
from xrt.engines.ort.session import ExportedModel, Provider, make_quiet_options, open_session, report_memory
from xrt.engines.toolkit.libraries import AllocationTracker
from xrt.errors import CompileRefused, EngineUnavailable, OptionError, did_you_mean
from xrt.graph import FrozenDict, Function, Node

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext, Precision

_log = logging.getLogger(__name__)
_LEVELS = {
    "none": GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_CPU = ("CPUExecutionProvider",)
MIN_SAVED_NODES = 24
"""Sessions with fewer nodes are not worth saving, because optimizing them takes no longer than reading the cache."""
MIN_SAVED_CONSTANT_BYTES = 1 << 20
"""A smaller session is worth saving if it has a constant of this size, because packing the constant takes time."""


@dataclass(frozen=True)
class Ort(GraphCompiler):
    """Compiles Functions to ONNX Runtime sessions.

    >>> Ort(config={"session.intra_op.allow_spinning": False}).config["session.intra_op.allow_spinning"]
    '0'
    """

    name: ClassVar[str] = "ort"
    deviations: ClassVar[tuple[Deviation, ...]] = (
        Deviation("nan", ("GlobalMaxPool", "LRN", "LogSoftmax", "MaxPool", "ReduceMax", "ReduceMin", "Sign")),
        Deviation("infinity", ("Attention", "Clip", "GlobalMaxPool", "MaxPool")),
        Deviation("float16"),
        Deviation("integer", ("Pow",)),
        Deviation("empty", ("ReduceMean",)),
    )
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    on_device: ClassVar[str] = cuda.CUDA
    """The execution provider for CUDA devices."""
    supports_dynamic_shapes: ClassVar[bool] = True

    providers: tuple[str, ...] = option(("CPUExecutionProvider",), names_files=False)
    """Names of ONNX Runtime's execution providers, in order of preference. The CPU provider runs the remaining nodes."""
    provider_options: Mapping[str, str] = option(FrozenDict(), names_files=True)
    """Options of the providers, each under ``<provider>.<option>``."""
    optimization: Literal["none", "basic", "extended", "layout", "all"] = "all"
    """The level of ONNX Runtime's graph optimizations."""
    memory_arena: bool = True
    """Whether to keep freed CPU memory for later calls."""
    deterministic: bool = False
    """Whether kernels must be bitwise reproducible."""
    config: Mapping[str, str] = option(FrozenDict(), names_files=True)
    """Session configuration entries, such as ``session.intra_op.allow_spinning``."""

    def __post_init__(self) -> None:
        for field, convert in (("providers", _as_names), ("provider_options", _as_strings), ("config", _as_strings)):
            # The dataclass is frozen, but still under construction.
            object.__setattr__(self, field, convert(field, getattr(self, field)))
        _check_providers(self.providers, self.provider_options)
        check_options(self)
        _check_config(self.config)

    def why_not(self, node: Node, function: Function) -> str | None:
        from xrt.engines.ort.support import why_not

        if node.device.partition(":")[0] in ("", "cpu"):
            return why_not(node, function, self.providers)
        reason = cuda.why_not_on_device(node, function, self.on_device)
        return reason or why_not(replace(node, device=""), function, _CPU)

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        from xrt.engines.ort.tables import is_fused

        return self.optimization != "none" and is_fused(node, function) and self.why_not(node, function) is None

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        from xrt.operators import Trait, has_trait

        return (0,) if has_trait(node, Trait.UPDATES) else ()

    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Open a session for the Function. Raises CompileRefused if the library rejects the model, or any other library error."""
        from xrt.operators import ensure_computed_outputs  # not needed for a start from the cache

        function = ensure_computed_outputs(function)
        try:
            export = _export(function)
        except ValueError as error:  # ModelError, or a name that is not valid UTF-8
            raise CompileRefused(f"the function cannot be written for ONNX Runtime: {error}") from error
        options = self.make_session_options(context.threads, context.device, function)
        if context.device != "cpu":
            return self._open_on_device(function, export, options, context)
        if context.is_kept and self.providers == _CPU:
            # Keep the optimized model for `save`, so that the library optimizes only once. If this fails, open a plain session,
            # which reports the error.
            with suppress(Exception), open_memory_file() as file:
                kept_options = self.make_session_options(context.threads, function=function)
                return self.load(optimize_model(function, export, kept_options, file), function, context)
        return self._open(function, export, options)

    def _open_on_device(
        self, function: Function, export: ExportedModel, options: SessionOptions, context: CompileContext
    ) -> cuda.OrtOnDevice:
        """Open a session on a device. Raises CompileRefused with the nodes that would compute floats on the CPU."""
        accelerator = context.accelerator
        if accelerator is None or not accelerator.has_addresses:
            raise CompileRefused(f"ONNX Runtime needs addresses of arrays, which {context.device} does not have")
        if reason := cuda.why_not_present(self.on_device):
            raise CompileRefused(reason)
        # The stream of a session is fixed when it is opened.
        stream = accelerator.new_stream()
        stream_options = {"user_compute_stream": str(accelerator.address(stream))}
        index = int(accelerator.name.partition(":")[2] or 0)
        if index:  # with the default device_id, too, the library warns that no plugin has this device
            stream_options["device_id"] = str(index)
        options.add_session_config_entry(cuda.RECORD_ASSIGNMENTS, "1")  # for `check_assigned`
        cuda.load_libraries()
        with accelerator.activate(stream):
            session = open_session(export, options, self._list_device_providers(stream_options, context))
        cuda.check_opened(session, self.on_device)
        cuda.check_assigned(session, function)
        return cuda.OrtOnDevice(function, session, accelerator, stream, cuda.DeviceBuffer("cuda", index), export.files)

    def _list_device_providers(self, stream_options: dict[str, str], context: CompileContext) -> list[Provider]:
        """List the providers of a session on a device. ``stream_options`` select the device and the stream."""
        # By default the provider multiplies float32 in TF32, which has 10 bits of mantissa.
        return [(cuda.CUDA, {"use_tf32": "0", **self._select_options(cuda.CUDA), **stream_options}), *_CPU]

    def _open(
        self, function: Function, export: ExportedModel, options: SessionOptions, saved: SavedSession | None = None
    ) -> OrtExecutable:
        """Open a session on ``export``, the model of the Function, or with ``saved`` the model of that saved session."""
        if saved is None:
            from xrt.engines.toolkit.memory import find_inplace_outputs  # not needed for a start from the cache

            inputs, outputs = function.inputs, function.outputs
            inplace = find_inplace_outputs(function)
        else:
            # The saved model has the names of the Function that was saved.
            inputs, outputs = saved.rename("inputs", function.inputs), saved.rename("outputs", function.outputs)
            inplace = dict(saved.footer["inplace"])
        with AllocationTracker() as allocations:
            session = open_session(export, options, [(name, self._select_options(name)) for name in self.providers])
        uses = partial(report_memory, export.copied, export.mapped, allocations)
        executable = OrtExecutable(function, session, inputs, outputs, export.files, uses, inplace)
        executable.idle_threads = options.intra_op_num_threads - 1  # the calling thread counts too
        return executable

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Serialize the optimized model. If `compile` did not keep it, the library optimizes the model again."""
        if not isinstance(executable, OrtExecutable):
            raise CompileRefused("there is no session to save")
        # `optimize_model` supports only the CPU.
        if self.providers != _CPU:
            raise CompileRefused(f"only sessions of CPUExecutionProvider are saved, not of {', '.join(self.providers)}")
        function, data = executable.function, executable.saved
        if data is None:
            if context.workdir is None:
                raise CompileRefused("an optimised model is saved through a file, and there is no working directory")
            options = self.make_session_options(context.threads, function=function)
            with (context.workdir / "session").open("w+b") as file:
                data = optimize_model(function, _export(function), options, file)
        return self._pack(data, function, context)

    def _pack(self, data: memoryview, function: Function, context: CompileContext) -> memoryview:
        """Add packed weights to the saved session in ``data`` if several processes will load it; otherwise return ``data``."""
        saved = SavedSession.read(data)
        is_packed = "mapped" in saved.footer
        if not context.is_shared or context.workdir is None or is_packed or self.config.get(_NO_PACKING, "0") == "1":
            return data
        try:
            return saved.pack(function, self._load_options(1), context.workdir)
        except Exception:  # noqa: BLE001  # the library's errors have no common base class
            # Then each process packs the weights itself.
            _log.info("ONNX Runtime cannot save packed weights", exc_info=True)
            return data

    def is_worth_saving(self, function: Function) -> bool:
        """Whether optimizing the model takes longer than loading a file from the cache."""
        return len(function.nodes) >= MIN_SAVED_NODES or any(
            c.nbytes >= MIN_SAVED_CONSTANT_BYTES for c in function.constants.values()
        )

    def load(self, data: memoryview, function: Function, context: CompileContext) -> OrtExecutable:
        saved = SavedSession.read(data)
        executable = self._open_mapped(saved, function, context.threads)
        if executable is None:
            executable = self._open(function, saved.export(function), self._load_options(context.threads), saved)
        executable.saved = data  # `save` can return the same bytes
        return executable

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """Always True, because the thread count is set when a session is opened."""
        return True

    def with_precision(self, precision: Precision) -> GraphCompiler | None:
        """Return this engine for int8, because the CPU provider computes quantized Functions in integers; else None."""
        return self if precision == "int8" and self.providers == _CPU and self.optimization != "none" else None

    def _open_mapped(self, saved: SavedSession, function: Function, threads: int) -> OrtExecutable | None:
        """Open a session with memory-mapped packed weights; None if that is not possible."""
        export = saved.export_mapped(function)
        if export is None or export.mapping is None:
            return None
        try:
            executable = self._open(function, export, self._load_options(threads), saved)
        except Exception:  # noqa: BLE001  # the library's errors have no common base class
            # If the model is invalid, the caller gets the error without the mapping.
            _log.info("ONNX Runtime cannot map packed weights", exc_info=True)
            return None
        # Another process may have replaced the file before the library opened it.
        return executable if export.mapping.is_at_path() else None

    def _load_options(self, threads: int) -> SessionOptions:
        """Make session options for a model that is already optimized."""
        options = self.make_session_options(threads)
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
        return options

    def version(self) -> str:
        return f"onnxruntime {onnxruntime.__version__} ({onnxruntime.get_build_info()})"

    def available_devices(self) -> tuple[str, ...]:
        has_provider = self.on_device in onnxruntime.get_available_providers()
        return tuple(device for device in self.devices if device != "cuda" or has_provider)

    def missing_features(self) -> str:
        if self.available_devices() == self.devices:
            return ""
        return (
            f"no cuda, since this build has no {self.on_device}; onnxruntime-gpu has it: pip install 'xrt-engine[cuda]' in an "
            "environment without onnxruntime"
        )

    def make_session_options(self, threads: int, device: str = "cpu", function: Function | None = None) -> SessionOptions:
        options = make_quiet_options()
        options.graph_optimization_level = _LEVELS[self.optimization]
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = self.memory_arena
        options.use_deterministic_compute = self.deterministic
        config = dict(_CPU_CONFIG if device == "cpu" and self.providers == _CPU else _CONFIG)
        if has_saturating_sums():
            config[_EXACT_SUMS] = "1"
        config.update(self.config)  # the user's entries have priority
        if function is not None:
            from xrt.engines.ort.tables import has_exact_weights, has_vector_products  # not needed for a start from the cache

            disabled = [config[_DISABLED]] if config.get(_DISABLED) else []
            # These optimizers have defects (see `tables`). The entry is a list separated by semicolons.
            if has_vector_products(function):
                disabled.append("MatmulTransposeFusion")
            if has_exact_weights(function):
                disabled.append("WeightBiasQuantization")
            if disabled:
                config[_DISABLED] = ";".join(disabled)
        for key, value in config.items():
            options.add_session_config_entry(key, value)
        return options

    def _select_options(self, provider: str) -> dict[str, str]:
        prefix = f"{provider}."
        return {key.removeprefix(prefix): value for key, value in self.provider_options.items() if key.startswith(prefix)}


@cache
def has_saturating_sums(info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is an x86 without VNNI. There ONNX Runtime by default adds products of uint8 and int8 in 16 bits.

    These sums saturate: a quantized MobileNet v2 had an error of 17 % instead of 4.8 %. On processors with VNNI, the setting for
    exact sums makes quantized networks 1.5 to 2 times slower.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        # The flags of the first processor are enough; large servers have hundreds.
        with info.open(encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return True
    return re.search(r"\bavx(512)?_vnni\b", flags) is None


_EXACT_SUMS = "session.x64quantprecision"
_NO_PACKING = "session.disable_prepacking"
_DISABLED = "optimization.disable_specified_optimizers"
_CONFIG = {
    # Without this, threads spin after a run. That makes the next region up to eight times slower.
    "session.force_spinning_stop": "1",
    # Multiply 4-bit weights in float32. By default the library rounds the other operand to 8 bits.
    "session.qdq_matmulnbits_accuracy_level": "1",
}
_CPU_CONFIG = {**_CONFIG, _DISABLED: "SkipLayerNormFusion"}
"""Disables the fusion of Add and LayerNormalization to SkipLayerNormalization, which is slower on the CPU: 1.3 times for [24,
32], 6 times for [512, 1024] with two threads (ONNX Runtime 1.31.1)."""


def _export(function: Function) -> ExportedModel:
    from xrt.engines.ort.export import export_model, rewrite_for_session  # not needed for a start from the cache

    return export_model(rewrite_for_session(function))


# ONNX Runtime ignores session configuration entries with unknown keys. It has no function that lists the known keys, which are
# constants in ``onnxruntime_session_options_config_keys.h``.
ENGINE_KEYS: Mapping[str, str] = {
    "session.load_model_format": "the engine passes the model itself, in ONNX's format",
    "session.model_external_initializers_file_folder_path": "the engine passes the constants itself, by reference",
    "session.use_external_initializer_file_buffers_directly": "the engine passes the constants itself, by reference",
    "session.use_ort_model_bytes_directly": "the engine passes the model itself, in ONNX's format",
    "session.use_ort_model_bytes_for_initializers": "the engine passes the model itself, in ONNX's format",
}
"""Keys that only the engine sets, with the reason."""
_KEYS = {
    "memory": "enable_memory_arena_shrinkage",
    "mlas": "enable_gemm_fastmath_arm64_bfloat16 qnbit.force_fp32 use_lut_gemm",
    "optimization": """
        constant_folding_max_output_size_in_bytes disable_specified_optimizers enable_cast_chain_elimination
        enable_gelu_approximation minimal_build_optimizations
    """,
    "session": """
        collect_node_memory_stats_to_file debug_layout_transformation disable_aot_function_inlining disable_cpu_ep_fallback
        disable_double_qdq_remover disable_prepacking disable_qdq_constant_folding disable_quant_qdq dynamic_block_base
        enable_dq_matmulnbits_fusion enable_quant_qdq enable_quant_qdq_cleanup force_spinning_stop
        function_expansion_byte_limit function_expansion_node_limit graph_optimizations_loop_level inter_op.allow_spinning
        inter_op.spin_backoff_max inter_op.spin_duration_us intra_op.allow_spinning intra_op.spin_backoff_max
        intra_op.spin_duration_us intra_op_thread_affinities prepack.enable_parallel qdq_matmulnbits_accuracy_level
        qdq_matmulnbits_block_size qdqisint8allowed record_ep_graph_assignment_info set_denormal_as_zero
        strict_shape_type_inference use_device_allocator_for_initializers use_env_allocators x64quantprecision
    """,
}
KNOWN_KEYS = frozenset(f"{group}.{key}" for group, keys in _KEYS.items() for key in keys.split())
"""All session keys of ONNX Runtime 1.31 that affect computations, except those of execution providers (``ep.``)."""


def _check_config(config: Mapping[str, str]) -> None:
    """Raise OptionError for an unknown key, or one that only the engine sets."""
    for key in config:
        if key in ENGINE_KEYS:
            raise OptionError(f"engine 'ort' sets config entry {key!r} itself: {ENGINE_KEYS[key]}; leave it out")
        if key not in KNOWN_KEYS and not key.startswith("ep."):
            raise OptionError(
                f"ONNX Runtime reads no session config entry {key!r}, and would ignore it.{did_you_mean(key, KNOWN_KEYS)} "
                "(Keys of an execution provider start with 'ep.'.)"
            )


def _as_names(field: str, value: Any) -> tuple[str, ...]:
    """Convert the value of a field to a tuple of names; a single name is allowed."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise OptionError(f"{field} of engine 'ort' must be a tuple of names; got {value!r}")


def _as_strings(field: str, value: Any) -> FrozenDict[str, str]:
    """Convert keys and values of a mapping to text, and sort it by key. Booleans become 0 and 1."""
    if not isinstance(value, Mapping):
        raise OptionError(f"{field} of engine 'ort' must map names to values; got {value!r}")
    texts = {str(key): str(int(item) if isinstance(item, bool) else item) for key, item in value.items()}
    return FrozenDict(sorted(texts.items()))


def _check_providers(providers: tuple[str, ...], options: Mapping[str, str]) -> None:
    """Raise OptionError for an unavailable or repeated provider, or an option of a provider that is not in use."""
    available = onnxruntime.get_available_providers()
    for name in providers:
        if name not in available:
            raise OptionError(
                f"ONNX Runtime has no execution provider {name!r} here.{did_you_mean(name, available)} "
                f"Available: {', '.join(available)}. Others come with other builds, such as onnxruntime-gpu."
            )
    if not providers or len(set(providers)) < len(providers):
        raise OptionError(f"providers of engine 'ort' must be one or more different names; got {providers!r}")
    for key in options:
        provider, _, option = key.partition(".")
        if provider == "CPUExecutionProvider":
            raise OptionError(f"ONNX Runtime's {provider} has no options, and would ignore {option!r}; leave it out")
        if provider not in providers or not option:
            raise OptionError(
                f"provider_options of engine 'ort' are named <provider>.<option>, for a provider in use "
                f"({', '.join(providers)}); got {key!r}"
            )
        if option in ("enable_cuda_graph", "trt_cuda_graph_enable"):
            raise OptionError(
                f"{key} replays a run at the addresses of the first one, and each call of XRT has other addresses; leave it out"
            )


TENSORRT_PROVIDER = "TensorrtExecutionProvider"


@dataclass(frozen=True)
class TensorRT(Ort):
    """Compiles Functions with TensorRT, also for ``precision="fp16"``. The CUDA provider runs nodes that TensorRT does not
    support.

    Building a TensorRT engine takes seconds to minutes per region; with `engine_cache`, later processes reuse it.
    """

    name: ClassVar[str] = "tensorrt"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    on_device: ClassVar[str] = TENSORRT_PROVIDER

    engine_cache: str = option("", names_files=True)
    """Directory in which TensorRT stores built engines for later processes; empty for none."""
    min_subgraph_size: int = option(1, at_least=1)
    """Subgraphs with fewer nodes run on the CUDA provider."""
    max_workspace_size: int | None = option(None, at_least=1)
    """Maximum scratch memory in bytes; None for TensorRT's default."""

    def __post_init__(self) -> None:
        """Raises EngineUnavailable if the library was built without TensorRT, or TensorRT is not installed."""
        super().__post_init__()
        if reason := cuda.why_not_present(TENSORRT_PROVIDER) or cuda.why_no_tensorrt():
            raise EngineUnavailable(f"engine 'tensorrt' cannot serve: {reason}; TensorRT itself comes as 'tensorrt-cu13<11'")

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Decline bf16 and int8, and also fp32 if TensorRT would multiply in TF32."""
        if context.options.precision not in ("fp32", "fp16"):
            return f"engine 'tensorrt' computes in fp32 or fp16: it does not support precision={context.options.precision!r}"
        if context.options.precision == "fp32" and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0":
            return (
                "engine 'tensorrt' multiplies fp32 in TF32, with 10 bits of mantissa, unless the process starts with "
                "NVIDIA_TF32_OVERRIDE=0 in its environment; set that, or precision='fp16'"
            )
        return None

    def _list_device_providers(self, stream_options: dict[str, str], context: CompileContext) -> list[Provider]:
        provider_options = {"trt_min_subgraph_size": str(self.min_subgraph_size)}
        if context.options.precision == "fp16":
            provider_options["trt_fp16_enable"] = "1"
        if self.max_workspace_size is not None:
            provider_options["trt_max_workspace_size"] = str(self.max_workspace_size)
        if self.engine_cache:
            provider_options |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": self.engine_cache}
        fallbacks = super()._list_device_providers(stream_options, context)
        return [
            (TENSORRT_PROVIDER, {**self._select_options(TENSORRT_PROVIDER), **provider_options, **stream_options}),
            *fallbacks,
        ]
