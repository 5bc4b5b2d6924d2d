"""Validation of the options of `Ort`.

ONNX Runtime silently ignores unknown session configuration entries, so a misspelled key would have no effect. The known keys are
listed here because the library cannot list them: they are constants in ``onnxruntime_session_options_config_keys.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime

from xrt.errors import OptionError, did_you_mean
from xrt.graph import FrozenDict

ENGINE_KEYS: Mapping[str, str] = {
    "session.load_model_format": "the engine passes the model itself, in ONNX's format",
    "session.model_external_initializers_file_folder_path": "the engine passes the constants itself, by reference",
    "session.use_external_initializer_file_buffers_directly": "the engine passes the constants itself, by reference",
    "session.use_ort_model_bytes_directly": "the engine passes the model itself, in ONNX's format",
    "session.use_ort_model_bytes_for_initializers": "the engine passes the model itself, in ONNX's format",
}
"""Keys that the engine sets itself, with the reason."""

KNOWN_KEYS = frozenset(
    {
        "memory.enable_memory_arena_shrinkage",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        "mlas.qnbit.force_fp32",
        "mlas.use_lut_gemm",
        "optimization.constant_folding_max_output_size_in_bytes",
        "optimization.disable_specified_optimizers",
        "optimization.enable_cast_chain_elimination",
        "optimization.enable_gelu_approximation",
        "optimization.minimal_build_optimizations",
        "session.collect_node_memory_stats_to_file",
        "session.debug_layout_transformation",
        "session.disable_aot_function_inlining",
        "session.disable_cpu_ep_fallback",
        "session.disable_double_qdq_remover",
        "session.disable_prepacking",
        "session.disable_qdq_constant_folding",
        "session.disable_quant_qdq",
        "session.dynamic_block_base",
        "session.enable_dq_matmulnbits_fusion",
        "session.enable_quant_qdq",
        "session.enable_quant_qdq_cleanup",
        "session.force_spinning_stop",
        "session.function_expansion_byte_limit",
        "session.function_expansion_node_limit",
        "session.graph_optimizations_loop_level",
        "session.inter_op.allow_spinning",
        "session.inter_op.spin_backoff_max",
        "session.inter_op.spin_duration_us",
        "session.intra_op.allow_spinning",
        "session.intra_op.spin_backoff_max",
        "session.intra_op.spin_duration_us",
        "session.intra_op_thread_affinities",
        "session.prepack.enable_parallel",
        "session.qdq_matmulnbits_accuracy_level",
        "session.qdq_matmulnbits_block_size",
        "session.qdqisint8allowed",
        "session.record_ep_graph_assignment_info",
        "session.set_denormal_as_zero",
        "session.strict_shape_type_inference",
        "session.use_device_allocator_for_initializers",
        "session.use_env_allocators",
        "session.x64quantprecision",
    }
)
"""All session keys of ONNX Runtime 1.31 that affect computation; keys of execution providers (``ep.``) are also accepted."""


def check_config(config: Mapping[str, str]) -> None:
    """Raise OptionError for a key that is unknown or reserved."""
    for key in config:
        if key in ENGINE_KEYS:
            raise OptionError(f"engine 'ort' sets config entry {key!r} itself: {ENGINE_KEYS[key]}; leave it out")
        if key not in KNOWN_KEYS and not key.startswith("ep."):
            raise OptionError(
                f"ONNX Runtime reads no session config entry {key!r}, and would ignore it.{did_you_mean(key, KNOWN_KEYS)} "
                "(Keys of an execution provider start with 'ep.'.)"
            )


def as_names(field: str, value: Any) -> tuple[str, ...]:
    """Convert the value of a field to a tuple of names; a single name is allowed."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise OptionError(f"{field} of engine 'ort' must be a tuple of names; got {value!r}")


def as_texts(field: str, value: Any) -> FrozenDict[str, str]:
    """Convert the value of a field to a mapping of text, sorted by key; booleans become 0 and 1."""
    if not isinstance(value, Mapping):
        raise OptionError(f"{field} of engine 'ort' must map names to values; got {value!r}")
    return FrozenDict({str(key): _to_text(value[key]) for key in sorted(value, key=str)})


def _to_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def check_providers(providers: tuple[str, ...], options: Mapping[str, str]) -> None:
    """Raise OptionError for an unknown, unavailable or repeated provider, or for options of an unlisted one."""
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
            raise OptionError(f"ONNX Runtime's {provider} has no options of its own, and would ignore {option!r}; leave it out")
        if provider not in providers or not option:
            raise OptionError(
                f"provider_options of engine 'ort' are named <provider>.<option>, for a provider in use "
                f"({', '.join(providers)}); got {key!r}"
            )


def check_inter_op_threads(value: int | None, mode: str) -> None:
    """Raise OptionError for a number of threads that would have no effect."""
    if value is not None and mode != "parallel":
        raise OptionError(
            f"inter_op_threads={value} of engine 'ort' has a meaning only with execution_mode='parallel'; it is {mode!r}"
        )
