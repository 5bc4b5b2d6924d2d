"""The one place that opens sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as native

from xrt.engines.ort.errors import LIBRARY, summarize_error
from xrt.errors import CompileRefused
from xrt.graph import FrozenDict

__all__ = [
    "Bytes",
    "ExportedModel",
    "Provider",
    "get_tensor_bytes",
    "give_files",
    "open_session",
    "quiet_options",
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
