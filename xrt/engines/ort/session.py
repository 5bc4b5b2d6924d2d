"""ONNX Runtime itself: sessions, what the library knows, its names and errors, and the pool of threads.

This is the one place that opens sessions. Kernels and schemas are read from the library once, when first asked for.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession, SessionOptions, get_available_providers
from onnxruntime.capi import onnxruntime_pybind11_state as native

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.toolkit.libraries import AllocationTracker, remove_noise, shorten
from xrt.errors import CompileRefused, OptionError
from xrt.forking import renew_after_fork
from xrt.graph import DType, FrozenDict, Function, Node, OptionalType, SequenceType, TensorType, Type, Value

__all__ = [
    "LIBRARY",
    "AllocationTracker",
    "Bytes",
    "ExportedModel",
    "OrtKernelDef",
    "OrtParameter",
    "OrtSchema",
    "Provider",
    "get_tensor_bytes",
    "give_files",
    "kernels",
    "make_tensor_type",
    "newest_ir",
    "newest_opset",
    "open_session",
    "plain_type",
    "quiet_options",
    "report_memory",
    "schema",
    "share_pool",
    "shared_pool_size",
    "summarize_error",
    "type_name",
    "use_own_pool",
    "why_not_opened",
]

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

Provider: TypeAlias = str | tuple[str, dict[str, str]]
"""An execution provider, with options where it has any."""

_CPU = "CPUExecutionProvider"
_FATAL = 4
"""The least severity that the library prints: what else it has to say comes as an exception."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What a session is made from."""

    model: bytes
    files: Mapping[str, Bytes] = FrozenDict()
    """The content of each external file that the model names. It must live as long as the session, which reads it there."""
    copied: int = 0
    """How many bytes of the files are copies of constants, as the library does not take these where they lie."""
    mapped: int = 0
    """How many bytes are weights as the library lays them out and packs them, in a file that processes share."""
    folder: str = ""
    """The folder of the file that the library maps itself; empty where it maps none."""

    @property
    def nbytes(self) -> int:
        """Bytes of the model and its files."""
        return len(self.model) + sum(content.nbytes for content in self.files.values())


def get_tensor_bytes(array: np.ndarray[Any, Any]) -> Bytes:
    """Return the array's memory; an array that does not lie in order, or is not aligned, is copied."""
    return np.require(array, requirements=["C", "A"]).reshape(-1).view(np.uint8)


def quiet_options() -> SessionOptions:
    """Return session options under which the library prints nothing."""
    options = SessionOptions()
    options.log_severity_level = _FATAL
    return options


def open_session(handed: ExportedModel, options: SessionOptions, providers: Sequence[Provider]) -> InferenceSession:
    """Return a session over the model; ``handed.files`` must live as long as it does.

    Where the process has one pool of threads for all sessions (``onnxruntime.set_global_thread_pool_sizes``), the library
    allows no other, and the session runs on that. Raises CompileRefused where the library says that the model is not
    implemented or invalid; the library's other errors pass.
    """
    give_files(handed, options)
    try:
        session = _opened(handed.model, options, providers)
    except (native.NotImplemented, native.InvalidGraph) as error:
        raise CompileRefused(f"{LIBRARY} declines: {summarize_error(error)}") from error
    except RuntimeError as error:
        if not options.use_per_session_threads or "use_per_session_threads" not in str(error):
            raise
        options.use_per_session_threads = False
        options.intra_op_num_threads = options.inter_op_num_threads = 0  # the library warns on stderr of any other number
        return open_session(ExportedModel(handed.model), options, providers)
    if options.intra_op_num_threads != 1:
        with suppress(AttributeError):  # where the library has no such inner session any more, its threads spin
            _end_spinning(session._sess)
    return session


def _end_spinning(session: native.InferenceSession) -> None:
    """Let the threads of a new session block until its first run: they would spin for 30 ms, at the cost of a core.

    ``session.force_spinning_stop`` ends spinning after each run, so one that is refused does.
    """
    with suppress(Exception):  # the refusal: for want of outputs, or because the session is not initialized yet
        session.run([], {}, None)


class _BlockedSession(InferenceSession):  # type: ignore[misc]  # the library has no types
    """A session of the CPU whose threads block while it is initialized, as well: that is half of the time of small models."""

    _sess_options: SessionOptions

    def _create_inference_session(self, providers: Any, provider_options: Any, disabled_optimizers: Any = None) -> None:
        """Do for one provider what the library's own method does, or call that where the library has changed."""
        try:
            self._open_blocked(providers, set(disabled_optimizers or ()))
        except (AttributeError, TypeError):
            super()._create_inference_session(providers, provider_options, disabled_optimizers)

    def _open_blocked(self, providers: list[str], disabled_optimizers: set[str]) -> None:
        opened = native.InferenceSession(self._sess_options, self._model_bytes, False, self._read_config_from_model)
        _end_spinning(opened)
        opened.initialize_session(providers, [{} for _ in providers], disabled_optimizers)
        self._fallback_providers = [_CPU]
        self._sess, self._sess_options = opened, opened.session_options
        self._inputs_meta, self._outputs_meta = opened.inputs_meta, opened.outputs_meta
        self._overridable_initializers = opened.overridable_initializers
        self._input_meminfos, self._output_meminfos = opened.input_meminfos, opened.output_meminfos
        self._input_epdevices, self._model_meta = opened.input_epdevices, opened.model_meta
        self._providers, self._provider_options = opened.get_providers(), opened.get_provider_options()
        self._profiling_start_time_ns = opened.get_profiling_start_time_ns


def give_files(handed: ExportedModel, options: SessionOptions) -> None:
    """Let a session with these options find the model's external files in memory, and use them there, or map the one on disk."""
    if handed.folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", handed.folder)
    if handed.files:
        sizes = [content.nbytes for content in handed.files.values()]
        options.add_external_initializers_from_files_in_memory(list(handed.files), list(handed.files.values()), sizes)
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")


def _opened(model: bytes, options: SessionOptions, providers: Sequence[Provider]) -> InferenceSession:
    settings: Any = {"enable_fallback": 0}  # otherwise the library prints a provider's errors, and tries another one
    if options.intra_op_num_threads != 1 and options.use_per_session_threads and list(providers) in ([_CPU], [(_CPU, {})]):
        return _BlockedSession(model, options, [_CPU], **settings)
    return InferenceSession(model, options, list(providers), **settings)


def why_not_opened(handed: ExportedModel, providers: Sequence[Provider]) -> str | None:
    """Return why the library opens no session over the model, which is closed again at once; None when it does."""
    options = quiet_options()
    options.intra_op_num_threads = 1  # the session is closed at once, and threads take longer to start than the rest of it
    try:
        open_session(handed, options, providers)
    except CompileRefused as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # the library's errors have no common base
        return f"{LIBRARY} refuses it: {summarize_error(error)}"
    return None


# ---------------------------------------------------------------------- the library's own answers

_NO_END = 2**31 - 1
_TRIVIAL_OPSET = 14


@dataclass(frozen=True, slots=True)
class OrtKernelDef:
    """One implementation of an operator by an execution provider."""

    provider: str
    since: int
    until: int | None
    """The last version of the operator that it serves; None: it serves `since` alone, until the operator changes again."""
    types: Mapping[str, frozenset[str]]
    """Allowed types by the name of a type constraint, or of an input."""

    def serves(self, version: int) -> bool:
        """Whether it serves the operator as of the version at which it took its meaning (the library's own rule)."""
        return self.since == version or (self.until is not None and self.since <= version <= self.until)


@dataclass(frozen=True, slots=True)
class OrtParameter:
    """A formal input or output of an operator."""

    name: str
    constraint: str
    """The name of its type constraint, or a type."""


@dataclass(frozen=True, slots=True)
class OrtSchema:
    """An operator as ONNX Runtime knows it."""

    since: int
    deprecated: bool
    inputs: tuple[OrtParameter, ...]
    outputs: tuple[OrtParameter, ...]
    attributes: frozenset[str]


_LISTED = frozenset({"CPUExecutionProvider", "AzureExecutionProvider"})
"""Providers of builds whose kernels can be listed."""


@lru_cache(maxsize=1)
def _all_kernels() -> Mapping[tuple[str, str], tuple[OrtKernelDef, ...]]:
    """Return all kernels; none in a build with providers in libraries of their own, where sessions are tried instead.

    There the library ends the process when it is asked and one of those does not load (onnxruntime-gpu 1.31 without cuBLAS).
    """
    if set(get_available_providers()) - _LISTED:
        return {}
    found: dict[tuple[str, str], list[OrtKernelDef]] = {}
    for definition in native.get_all_opkernel_def():
        since, until = definition.version_range
        types = {name: frozenset(allowed) for name, allowed in definition.type_constraints.items()}
        kernel = OrtKernelDef(definition.provider, since, None if until == _NO_END else until, types)
        found.setdefault((definition.domain, definition.op_name), []).append(kernel)
    return {key: tuple(kernels) for key, kernels in found.items()}


@lru_cache(maxsize=1)
def _all_schemas() -> Mapping[tuple[str, str], tuple[OrtSchema, ...]]:
    found: dict[tuple[str, str], list[OrtSchema]] = {}
    for known in native.get_all_operator_schema():
        formals = _formals(known.inputs), _formals(known.outputs)
        one = OrtSchema(known.since_version, known.deprecated, *formals, frozenset(known.attributes))
        found.setdefault((known.domain, known.name), []).append(one)
    return {key: tuple(sorted(schemas, key=lambda s: -s.since)) for key, schemas in found.items()}


def _formals(parameters: Iterable[Any]) -> tuple[OrtParameter, ...]:
    return tuple(OrtParameter(p.name, p.typeStr) for p in parameters)


def kernels(domain: str, op_type: str) -> tuple[OrtKernelDef, ...]:
    """Return every kernel for the operator, of whichever provider and version."""
    return _all_kernels().get((domain, op_type), ())


def schema(domain: str, op_type: str, version: int) -> OrtSchema | None:
    """Return the operator's schema in force at an opset version; None where the library does not know the operator."""
    return next((s for s in _all_schemas().get((domain, op_type), ()) if s.since <= version), None)


@lru_cache(maxsize=1)
def newest_opset() -> int:
    """Return the newest version of ai.onnx that a model may declare, found by trying."""
    from xrt.graph import latest_opset  # a start from the cache does not import onnx

    return next((version for version in range(latest_opset(), _TRIVIAL_OPSET, -1) if _reads(opset=version)), _TRIVIAL_OPSET)


@lru_cache(maxsize=1)
def newest_ir() -> int:
    """Return the newest IR version that a model may declare, found by trying."""
    ir = _trivial_model().ir_version
    return max(version for version in range(ir, ir + 32) if version == ir or _reads(ir=version))


def _trivial_model() -> Any:
    from xrt.formats.onnx import lowest_model  # a start from the cache writes no model

    value = TensorType(DType.FLOAT32, (1,))
    node = Node("Relu", ("x",), ("y",))
    return lowest_model(Function((Value("x", value),), (Value("y", value),), (node,), opsets={"": _TRIVIAL_OPSET}))


def _reads(opset: int | None = None, ir: int | None = None) -> bool:
    model = _trivial_model()
    if opset is not None:
        model.opset_import[0].version = opset
    if ir is not None:
        model.ir_version = ir
    return why_not_opened(ExportedModel(model.SerializeToString()), ["CPUExecutionProvider"]) is None


# ---------------------------------------------------------------------- names and errors

LIBRARY = f"ONNX Runtime {onnxruntime.__version__}"
"""The library as reasons and errors call it."""

_C_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
_PLAIN = {"float": "float32", "double": "float64"}
_TENSORS = {dtype: f"tensor({_C_NAMES.get(dtype, dtype)})" for dtype in DType}


def type_name(type_: Type) -> str:
    """Return the type as ONNX Runtime spells it, without its shape.

    >>> type_name(SequenceType(TensorType(DType.FLOAT32, (2, 3))))
    'seq(tensor(float))'
    """
    if isinstance(type_, TensorType):
        return _TENSORS[type_.dtype]
    if isinstance(type_, SequenceType):
        return f"seq({type_name(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({type_name(type_.element)})"
    key, value = (type_.key, type_.value)
    return f"map({_C_NAMES.get(key, key)},{type_name(value)})"


def make_tensor_type(name: str) -> TensorType | None:
    """Return the type that ONNX Runtime spells so, without its shape; None where it is not a tensor.

    >>> make_tensor_type("tensor(float)")
    TensorType(dtype=DType.FLOAT32, shape=None)
    """
    found = re.fullmatch(r"tensor\((\w+)\)", name)
    return TensorType(DType.parse(_PLAIN.get(found[1], found[1]))) if found else None


def plain_type(name: str) -> str:
    """Return ONNX Runtime's spelling of a type as XRT spells it.

    >>> plain_type("seq(tensor(float))")
    'seq(float32)'
    """
    return re.sub(r"tensor\((\w+)\)", lambda found: _PLAIN.get(found[1], found[1]), name)


_NOISE = (
    r"\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"Error in execution: ",
    r"Load model from .*? failed:",
    r"Exception during (?:loading|initialization): ",
    r"This is an invalid model\. ",
    r"Non-zero status code returned while running \w+ node\. Name:'[^']*' Status Message: ",
    r"\S*\.(?:cc|h):\d+ ",  # the source file of a check, and after it the check
    r"^.*::\S*\(.*\).* was false\. (?=\S)",
    r"^.*::<lambda\(\)> ",
    r"^[\w:*&<> ]*onnxruntime::[\w:~<>]+\([^)]*\)(?: const)?(?: \[with [^\]]*\])? ",  # the signature of what failed
)


def summarize_error(error: BaseException, limit: int = 300) -> str:
    """Return the sense of one of ONNX Runtime's errors: on one line, without codes, source files, signatures and stack traces.

    >>> summarize_error(RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation"))
    'Could not find an implementation'
    """
    return shorten(remove_noise(str(error).partition("\nStacktrace")[0], _NOISE), limit)


# ---------------------------------------------------------------------- memory


def report_memory(copied: int, mapped: int, growth: AllocationTracker) -> tuple[MemoryUse, ...]:
    """Return what an executable holds and takes: constants in other forms, and what its session has grown the process by."""
    held = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    held += [MemoryUse("mapped weights", mapped, _MAPPED, shared=True)] if mapped else []
    return (*held, MemoryUse("session", growth.nbytes, _SESSION), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


_COPIED = "constants in another form than the model's: packed to a byte, put in order, or laid out again in a saved session"
_MAPPED = "weights as the library lays them out and packs them, in the file that was loaded"
_SESSION = "weights packed for its products and convolutions, constants that it has folded, kernels and plans"
_WORKSPACE = "inner values and scratch, in an arena that grows to the largest calls; the library does not tell"


# ---------------------------------------------------------------------- a shared pool of threads


class _State:
    """What this process has decided."""

    lock = renew_after_fork(threading.Lock())
    shared: int | None = None
    """Threads of the shared pool; None while each session has its own."""
    used = False
    """Whether a session of ours has a pool of its own."""


def shared_pool_size() -> int | None:
    """Return how many threads the shared pool has; None where each session has its own."""
    return _State.shared


def use_own_pool() -> None:
    """Tell that a session is about to be opened."""
    with _State.lock:
        _State.used = _State.used or _State.shared is None


def share_pool(threads: int) -> None:
    """Make the pool; once it is there, asking for the same again does nothing.

    Raises OptionError where it has another size, or a session with a pool of its own exists: the library would leave that
    one as it is, and refuse every further one of its kind.
    """
    with _State.lock:
        if _State.shared == threads:
            return
        if _State.shared is not None:
            raise OptionError(
                f"the sessions of this process share a pool of {_State.shared} threads; it cannot be replaced by one of {threads}"
            )
        if _State.used or any(issubclass(type(thing), InferenceSession) for thing in gc.get_objects()):
            raise OptionError(
                "a session of ONNX Runtime exists already, with threads of its own; call xrt.configure(shared_pool='ort') "
                "before anything of this process compiles for 'ort' or opens a session"
            )
        try:
            onnxruntime.set_global_thread_pool_sizes(threads, 1)
        except RuntimeError as error:
            raise OptionError(
                "onnxruntime.set_global_thread_pool_sizes was called already; a shared pool stays as it is"
            ) from error
        _State.shared = threads
