"""Open ONNX Runtime sessions, query the library's versions and operators, and convert its type names and errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as native

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.toolkit.libraries import AllocationTracker, summarize_error
from xrt.errors import CompileRefused
from xrt.graph import DType, FrozenDict, TensorType
from xrt.graph.constants import FileMapping

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Provider: TypeAlias = str | tuple[str, dict[str, str]]
"""An execution provider, optionally with options."""
_FATAL_SEVERITY = 4
"""With this severity the library prints only fatal errors. It raises other errors as exceptions anyway."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model ready to be opened as a session."""

    model: bytes
    files: Mapping[str, Bytes] = FrozenDict()
    """The memory of the model's external files. The session reads it, so it must live as long as the session."""
    copied: int = 0
    """Bytes of constants that were copied because the library cannot read them in place."""
    mapped: int = 0
    """Bytes of weights in a file that several processes map."""
    mapping: FileMapping | None = None
    """The file that the library maps; None if the weights are in ``files``."""


def get_tensor_bytes(array: np.ndarray[Any, Any]) -> Bytes:
    """View the array's memory as bytes; an array that is not C-contiguous or not aligned is copied."""
    return np.require(array, requirements=["C", "A"]).reshape(-1).view(np.uint8)


def make_quiet_options() -> SessionOptions:
    options = SessionOptions()
    options.log_severity_level = _FATAL_SEVERITY
    return options


def open_session(export: ExportedModel, options: SessionOptions, providers: Sequence[Provider]) -> InferenceSession:
    """Open a session. The memory of ``export.files`` must live as long as the session.

    Raises CompileRefused if the model is invalid or not implemented, or any other library error.
    """
    register_files(export, options)
    try:
        # With a fallback the library would print an error and open the session on another provider.
        session = InferenceSession(export.model, options, list(providers), enable_fallback=0)
    except (native.NotImplemented, native.InvalidGraph, native.Fail) as error:
        # With the same class the library reports a lack of device memory, for which the model is not to blame.
        if "out of memory" in str(error):
            raise
        raise CompileRefused(f"{LIBRARY} declines: {summarize_error(error)}") from error
    if options.intra_op_num_threads != 1:
        # The threads of a new session would spin for 30 ms on a full core. ``session.force_spinning_stop`` ends that after a run,
        # even after this one, which the library always rejects because it requests no outputs.
        with suppress(Exception):
            session._sess.run([], {}, None)
    return session


def register_files(export: ExportedModel, options: SessionOptions) -> None:
    """Add the external files of the model, in memory or on disk, to the session options."""
    if export.mapping is not None and export.mapping.path is not None:
        folder = os.fspath(export.mapping.path.parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if export.files:
        sizes = [content.nbytes for content in export.files.values()]
        options.add_external_initializers_from_files_in_memory(list(export.files), list(export.files.values()), sizes)
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")


def why_not_opened(export: ExportedModel, providers: Sequence[Provider]) -> str | None:
    """Explain why the library cannot open a session on the model; None if it can."""
    options = make_quiet_options()
    options.intra_op_num_threads = 1  # starting threads takes most of the time
    try:
        open_session(export, options, providers)
    except CompileRefused as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # the library's errors have no common base class
        return f"{LIBRARY} refuses it: {summarize_error(error)}"
    return None


NEWEST_OPSET = 26
"""The newest version of ai.onnx that ONNX Runtime 1.31 reads."""


@lru_cache(maxsize=1)
def registered_operators() -> frozenset[tuple[str, str]]:
    """List the (domain, name) of each operator for which the library has a schema."""
    return frozenset((schema.domain, schema.name) for schema in native.get_all_operator_schema())


LIBRARY = f"ONNX Runtime {onnxruntime.__version__}"
_DTYPE_NAMES = {"float": "float32", "double": "float64"}


def make_tensor_type(name: str) -> TensorType | None:
    """Parse ONNX Runtime's name of a tensor type, which has no shape. None for other types.

    >>> make_tensor_type("tensor(float)")
    TensorType(dtype=DType.FLOAT32, shape=None)
    """
    match = re.fullmatch(r"tensor\((\w+)\)", name)
    return TensorType(DType.parse(_DTYPE_NAMES.get(match[1], match[1]))) if match else None


def report_memory(copied: int, mapped: int, growth: AllocationTracker) -> tuple[MemoryUse, ...]:
    """Describe the memory of an executable. ``growth`` measured the allocations when its session was opened."""
    uses = [MemoryUse("copied weights", copied, _COPIED)] if copied else []
    uses += [MemoryUse("mapped weights", mapped, _MAPPED, shared=True)] if mapped else []
    return (*uses, MemoryUse("session", growth.nbytes, _SESSION), MemoryUse("workspace", None, _WORKSPACE, per_call=True))


# Reasons for `MemoryUse.why`.
_COPIED = "constants in another form than the model's: packed to a byte, put in order, or laid out again in a saved session"
_MAPPED = "weights as the library lays them out and packs them, in the file that was loaded"
_SESSION = "weights packed for its products and convolutions, constants that it has folded, kernels and plans"
_WORKSPACE = "inner values and scratch, in an arena that grows to the largest calls; the library does not tell"
