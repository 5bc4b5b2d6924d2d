"""One pool of threads for all sessions of the process: only on request, and only before the first session."""

from __future__ import annotations

import gc
import threading

import onnxruntime
from onnxruntime import InferenceSession

from xrt.errors import OptionError

__all__ = ["share", "size", "use"]


class _State:
    """What this process has decided."""

    lock = threading.Lock()
    shared: int | None = None
    """Threads of the shared pool; None while each session has its own."""
    used = False
    """Whether a session of ours has a pool of its own."""


def size() -> int | None:
    """Return how many threads the shared pool has; None where each session has its own."""
    return _State.shared


def use() -> None:
    """Tell that a session is about to be opened."""
    with _State.lock:
        _State.used = _State.used or _State.shared is None


def share(threads: int) -> None:
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
