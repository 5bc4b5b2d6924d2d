"""An engine that compiles, and optionally runs, in a worker process. Crashes and hangs of its library become exceptions."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.engines.contract.proxy import EngineProxy
from xrt.engines.toolkit.shared_values import put_function, put_values, read_values
from xrt.errors import CompileFailed, CompileRefused, EngineError, OptionError, RunFailed
from xrt.forking import renew_after_fork
from xrt.formats.bundle import make_working_directory
from xrt.processes.client import RemoteError, WorkerFailure, WorkerLost, WorkerProcess
from xrt.processes.ipc import Message, SharedBuffer, read_block
from xrt.runtime.devices.registry import list_device_factories

if TYPE_CHECKING:
    from xrt.graph import Function, Node


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    seconds: float | None = None
    """Time limit of each compile and each run in seconds; None for no limit."""
    memory: int | None = None
    """Limit of the address space in bytes, which includes libraries; None for no limit."""


_CLOSED_TEXT = "its process ended when the module was closed"


class WorkerHandle:
    """The worker process of an engine. It is started by the first request, and again by the next request after it has died."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        self.engine = engine
        self._limits = limits
        self.seconds = limits.seconds
        """Time limit of a request; None for no limit."""
        self.lock = renew_after_fork(threading.RLock())
        self.unreleased: list[tuple[int, int]] = []
        """Numbers and generations of garbage-collected executables that the worker still holds."""
        self._worker: WorkerProcess | None = None
        self._closed = False
        self.generation = 0
        """Number of workers that have ended. An executable of an earlier generation ended with its worker."""

    def ask(self, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Send a request; return the response and the shared memory that it refers to.

        Raises WorkerFailure. An error of the engine whose class is in `_HANDLED_ERRORS` is raised as such.
        """
        with self.lock:
            worker = self._start()
            try:
                return worker.ask(message, buffer, self.seconds)
            except RemoteError as error:
                raise (error.restore() if error.kind in _HANDLED_ERRORS else error) from None
            except WorkerLost as error:
                # If `close` killed the worker, the request is not to blame.
                raise (WorkerLost(_CLOSED_TEXT) if self._closed else error) from error.__cause__
            finally:
                if not worker.is_open:
                    self._worker = None
                    self.generation += 1

    def release_collected(self) -> None:
        """Close the executables in the worker that were garbage-collected here."""
        while self.unreleased:
            self.release(*self.unreleased.pop())

    def release(self, number: int, generation: int) -> None:
        """Close an executable in the worker, unless the worker of its ``generation`` has ended."""
        # If the worker ends meanwhile, the executable has ended, too.
        with self.lock, suppress(WorkerFailure, EngineError):
            if generation == self.generation and self.has_worker:
                self.ask({"do": "close", "number": number})

    @property
    def has_worker(self) -> bool:
        return self._worker is not None and self._worker.is_open

    def _start(self) -> WorkerProcess:
        """Return the running worker, or start one; raises WorkerLost after `close`."""
        if self._closed:
            raise WorkerLost(_CLOSED_TEXT)
        # In a forked child the worker belongs to the parent.
        if self._worker is not None and not self._worker.is_open:
            self._worker = None
            self.generation += 1
        if self._worker is None:
            self._worker = WorkerProcess("xrt.worker.server:main", str(self._limits.memory or 0), keeps_output=False)
        return self._worker

    def close(self) -> None:
        """End the worker and start no more workers. A request in progress fails immediately."""
        self._closed = True
        if (worker := self._worker) is not None:
            # Not under the lock, which a request in progress holds.
            worker.kill()
        with self.lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


_HANDLED_ERRORS = ("CompileRefused", "InputError", "OutOfDeviceMemory")
"""Errors of an engine that callers handle. They are raised here as the worker raised them."""
_engine_numbers = itertools.count(1)


class IsolatedEngine(EngineProxy):
    """Compiles with ``engine`` in a worker. With ``runs``, executables run there too, as for an engine that cannot save them.

    Otherwise executables are saved in the worker and loaded in this process. All other methods of the engine run here.
    """

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits, *, runs: bool) -> None:
        """Raises OptionError if another process could not import the engine's class."""
        if reason := why_not_isolated(engine):
            raise OptionError(f"engine {engine.spec!r} cannot be isolated: {reason}")
        cls = type(engine)
        self.inner = engine
        # Without `save` an executable cannot leave the worker.
        self.runs = runs or cls.save is GraphCompiler.save
        self.name = engine.name  # type: ignore[misc]  # an instance attribute shadows the class variable
        self.devices = ("cpu",) if self.runs else engine.devices  # type: ignore[misc]  # device arrays cannot be passed between processes
        self._worker = WorkerHandle(engine, limits)
        self._number = next(_engine_numbers)
        self.close = weakref.finalize(self, self._worker.close)
        """End the worker. Garbage collection of the engine ends it too."""

    def list_mutable_inputs(self, node: Node, function: Function) -> Sequence[int]:
        # The worker would update its copy of the input.
        return () if self.runs else self.inner.list_mutable_inputs(node, function)

    def version(self) -> str:
        """The engine's version. If executables run in a worker, it includes the worker, so that no cache shares them."""
        version = self.library_version()
        return f"{version} in worker {self._number} of process {os.getpid()}" if self.runs else version

    def library_version(self) -> str:
        """The engine's version without the worker: that of an executable in a bundle, which does not depend on the worker."""
        return self.inner.version()

    def remarks(self, function: Function) -> tuple[str, ...]:
        actions = "compiles and runs" if self.runs else "compiles"
        return (*self.inner.remarks(function), f"{actions} in a process of its own")

    def start(self) -> None:
        """Start the worker and import the engine before the first compile; raises EngineError."""
        with _convert_failure(CompileFailed, f"engine {self.spec!r} did not start: "):
            self._worker.ask({"do": "import_engine", **identify(self._worker.engine)})

    def compile(self, function: Function, context: CompileContext) -> Executable:
        remote = self.compile_in_worker(function, context)
        if self.runs:
            return remote
        try:
            with make_working_directory() as folder:
                return self.inner.load(remote.save(), function, replace(context, workdir=folder))
        except CompileRefused:
            # It cannot be saved. It did not crash in the worker, so compile it here.
            return self.inner.compile(function, context)
        finally:
            remote.close()

    def compile_in_worker(self, function: Function, context: CompileContext) -> RemoteExecutable:
        """Compile in the worker; the executable stays there, even if `runs` is False."""
        return RemoteExecutable(self._worker, function, context)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        if self.runs:
            raise CompileRefused(f"an executable of {self.spec!r} that lives in a worker cannot be saved")
        return self.inner.save(executable, context)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        return RemoteExecutable(self._worker, function, context, data) if self.runs else self.inner.load(data, function, context)


class RemoteExecutable(Executable):
    """An executable in a worker. If the worker has died, the next call compiles the executable in a new worker."""

    updates_inputs: ClassVar[bool] = False
    concurrent_runs = 1  # a worker answers one request at a time

    def __init__(
        self, worker: WorkerHandle, function: Function, context: CompileContext, saved: memoryview | None = None
    ) -> None:
        """Compile in the worker, or load the bytes of a saved executable there."""
        self._worker = worker
        self._function = function
        self._context = context
        self._saved = saved
        self._compile()

    def _compile(self) -> None:
        worker, buffer = self._worker, SharedBuffer()
        message = {
            "do": "compile" if self._saved is None else "load",
            "saved": None if self._saved is None else buffer.put(self._saved.cast("B")),
            **describe_compile(buffer, worker.engine, self._function, self._context),
        }
        failure = f"engine {worker.engine.spec!r} failed to compile {self._function.name}: "
        with worker.lock, _convert_failure(CompileFailed, failure):
            worker.release_collected()
            response, _ = worker.ask(message, buffer)
            self.outputs_are_fresh = bool(response["fresh"])  # type: ignore[misc]  # set per instance
            self._number, self._generation = response["number"], worker.generation
            # A module that is garbage-collected does not close its executables, and other modules may use the worker.
            self._finalizer = weakref.finalize(self, worker.unreleased.append, (self._number, self._generation))

    def _ask(self, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Send a request about this executable. If its worker has died, compile it again before."""
        with self._worker.lock:
            self._worker.release_collected()
            # A crash, perhaps in another region, ended the worker and all executables in it.
            if self._generation != self._worker.generation:
                self._compile()
            return self._worker.ask({**message, "number": self._number}, buffer)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        caller_buffers = options.host_buffers or ()  # before the run, because it refuses a stream
        buffer = SharedBuffer()
        with _convert_failure(RunFailed):  # the program adds the region's name
            response, memory = self._ask({"do": "run", "inputs": put_values(buffer, inputs)}, buffer)
        results = read_values(memory, response["outputs"])
        # The worker cannot write to the caller's buffers.
        for index, out in enumerate(caller_buffers):
            if out is not None and index < len(results) and isinstance(results[index], np.ndarray):
                results[index] = fill(out, results[index])
        return results

    def measure(self, inputs: Sequence[Any], seconds: float, *, inner: bool = False) -> tuple[list[Any], list[float]]:
        """Run in the worker for about ``seconds``; return the results and samples of seconds per call. Raises RunFailed.

        The samples exclude the transport of values. With ``inner``, results are written to existing memory, as for a region whose
        results another region reads.
        """
        buffer = SharedBuffer()
        request = {"do": "measure", "inputs": put_values(buffer, inputs), "seconds": seconds, "inner": inner}
        with _convert_failure(RunFailed):
            response, memory = self._ask(request, buffer)
        return read_values(memory, response["outputs"]), response["samples"]

    @property
    def is_in_worker(self) -> bool:
        return self._generation == self._worker.generation and self._worker.has_worker

    def save(self) -> memoryview:
        """Serialize the executable with the engine's `save`; raises CompileRefused or CompileFailed."""
        with _convert_failure(CompileFailed, f"engine {self._worker.engine.spec!r} failed to save {self._function.name}: "):
            response, memory = self._ask({"do": "save"})
        return read_block(memory, response["saved"]).toreadonly()

    def close(self) -> None:
        """Close the executable in the worker, unless the worker has ended."""
        if self._finalizer.detach() is not None:
            self._worker.release(self._number, self._generation)


@contextmanager
def _convert_failure(kind: type[EngineError], prefix: str = "") -> Iterator[None]:
    """Context manager: convert a WorkerFailure to an error of class ``kind``, with ``prefix`` before its text."""
    try:
        yield
    except WorkerFailure as error:
        raise kind(f"{prefix}{error}") from error.__cause__


def why_not_isolated(engine: GraphCompiler) -> str | None:
    """Explain why another process cannot create the engine; None if it can."""
    cls = type(engine)
    if not hasattr(os, "memfd_create"):
        return "shared memory without a name is Linux's alone"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        return f"{cls.__qualname__} of {cls.__module__} can be imported by no other process; move it to a module"
    return None


def identify(engine: GraphCompiler) -> dict[str, str]:
    """Make the fields of a request that name the engine: its class, as ``module:name``, and its spec."""
    cls = type(engine)
    return {"class": f"{cls.__module__}:{cls.__qualname__}", "spec": engine.spec}


def describe_compile(buffer: SharedBuffer, engine: GraphCompiler, function: Function, context: CompileContext) -> Message:
    """Make the fields of a request to compile or load, and put the Function into ``buffer``."""
    return {
        **identify(engine),
        "function": put_function(buffer, function),
        "options": asdict(context.options),
        "device": context.device,
        "device_factories": list_device_factories() if context.device != "cpu" else {},
        "threads": context.threads,
    }
