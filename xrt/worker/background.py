"""A worker of low priority for what a module prepares while it serves calls.

A library may hold the interpreter's lock while it compiles or saves: then no call goes on, however many cores there are. And
what is compiled or measured with normal priority takes half of the cores from the calls. Neither is so in another process with
a raised nice value. What is compiled there comes back through the directory of the cache, where one is used, else through shared
memory, and is loaded here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileRequest, Signature
from xrt.engines.contract.proxy import load_engine
from xrt.errors import CompileFailed
from xrt.formats.bundle import make_working_directory
from xrt.processes.client import RemoteError, WorkerDied, WorkerLost, WorkerProcess
from xrt.processes.ipc import Message, SharedBuffer, read_block
from xrt.worker.isolated_engine import IsolatedEngine, describe_compile, why_not_isolated

if TYPE_CHECKING:
    from xrt.engines import Executable, GraphCompiler

__all__ = ["NICENESS", "BackgroundWorker"]

NICENESS = 10
"""What is added to the nice value: a busy core is then shared one to nine with a call, on Linux."""

_RAISED = ("CompileFailed", "CompileRefused", "OutOfDeviceMemory")
"""Errors of an engine that are the same here as in the worker."""
_log = logging.getLogger(__name__)


class BackgroundWorker:
    """One process for all that a module compiles and measures in the background; started when it is first needed."""

    def __init__(self, entry: str = "xrt.worker.server:main", niceness: int = NICENESS) -> None:
        """``entry`` serves the messages of `xrt.worker.server`, and what else the caller asks."""
        self._entry, self._niceness = entry, niceness
        self._lock = threading.Lock()  # one request at a time
        self._worker: WorkerProcess | None = None
        self.is_closed = False

    def ask(
        self,
        message: Mapping[str, Any],
        buffer: SharedBuffer | None = None,
        on_progress: Callable[[Any], object] = lambda value: None,
    ) -> tuple[Message, memoryview]:
        """Ask the worker; raises WorkerFailure, and OSError where no process can be started."""
        with self._lock:
            if self.is_closed:
                raise WorkerLost("the module is closed")
            if self._worker is None:
                self._worker = WorkerProcess(self._entry, "0", keeps_output=False, niceness=self._niceness)
            worker = self._worker
            try:
                return worker.ask(message, buffer, on_progress=on_progress)
            finally:
                if not worker.is_alive:
                    self._worker = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._worker is not None

    def rest(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """End the process for good; a request under way fails."""
        self.is_closed = True
        if (worker := self._worker) is not None:
            worker.kill()
        self.rest()

    # ------------------------------------------------------------------ compiles

    def takes(self, request: CompileRequest) -> bool:
        """Whether a compile may happen there: its engine is one that another process can import, and saves what it compiles.

        A compile that the engine does not find worth saving takes no longer than a load.
        """
        engine = request.engine
        if request.context.device != "cpu" or isinstance(engine, IsolatedEngine):
            return False
        request = replace(request, engine=load_engine(engine))
        return request.is_kept and why_not_isolated(request.engine) is None

    def store(self, request: CompileRequest, signature: Signature, directory: Path, limit: int) -> bool:
        """Compile, and store the executable or the failure in a cache directory; return whether that could be tried.

        Raises CompileRefused or CompileFailed, as the engine does.
        """
        target = {"signature": signature.ingredients, "directory": str(directory), "limit": limit}
        return self._make(request, target) is not None

    def compile(self, request: CompileRequest) -> Executable | None:
        """Compile there, and load it here; return None where that cannot be.

        Raises CompileRefused or CompileFailed, as the engine does.
        """
        made = self._make(request, None)
        if made is None or made[0]["saved"] is None:
            return None
        answer, memory = made
        with make_working_directory() as folder:
            context = replace(request.context, workdir=folder)
            return request.engine.load(read_block(memory, answer["saved"]).toreadonly(), request.function, context)

    def _make(self, request: CompileRequest, store: Mapping[str, Any] | None) -> tuple[Message, memoryview] | None:
        """Return the answer of the worker; None where there is no worker, or the system has ended it."""
        engine, function, buffer = load_engine(request.engine), request.function, SharedBuffer()
        message = {"do": "make", "store": store, **describe_compile(buffer, engine, function, request.context)}
        try:
            return self.ask(message, buffer)
        except RemoteError as error:
            if error.kind in _RAISED:
                raise error.restore() from None
            raise CompileFailed(_describe(engine, request, error)) from error
        except WorkerDied as error:
            if error.is_crash and not self.is_closed:
                raise CompileFailed(_describe(engine, request, error)) from error
            _log.info("the worker of low priority ended: %s", error)
        except (WorkerLost, OSError) as error:
            _log.info("no worker of low priority compiles: %s", error)
        return None


def _describe(engine: GraphCompiler, request: CompileRequest, error: Exception) -> str:
    return f"engine {engine.spec!r} failed to compile {request.function.name}: {error}"
