"""The one place that opens sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as native

from xrt.engines.ort.handing import Handed
from xrt.engines.ort.names import LIBRARY, sense
from xrt.errors import CompileRefused

__all__ = ["Provider", "open_session", "quiet_options"]

Provider: TypeAlias = str | tuple[str, dict[str, str]]
"""An execution provider, with options where it has any."""

_FATAL = 4
"""The least severity that the library prints: what else it has to say comes as an exception."""


def quiet_options() -> SessionOptions:
    """Return session options under which the library prints nothing."""
    options = SessionOptions()
    options.log_severity_level = _FATAL
    return options


def open_session(handed: Handed, options: SessionOptions, providers: Sequence[Provider]) -> InferenceSession:
    """Return a session over the model; ``handed.files`` must live as long as it does.

    Raises CompileRefused where the library says that the model is not implemented or invalid; the library's other errors pass.
    """
    if handed.files:
        sizes = [content.nbytes for content in handed.files.values()]
        options.add_external_initializers_from_files_in_memory(list(handed.files), list(handed.files.values()), sizes)
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    settings: Any = {"enable_fallback": 0}  # otherwise the library prints errors of a provider, and tries another one
    try:
        return InferenceSession(handed.model, options, list(providers), **settings)
    except (native.NotImplemented, native.InvalidGraph) as error:
        raise CompileRefused(f"{LIBRARY} declines: {sense(error)}") from error
