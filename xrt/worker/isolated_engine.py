"""An engine that compiles, and optionally runs, in a worker process, so that crashes and hangs of native code become exceptions.

A crash ends the process that it happens in, and a hang cannot be interrupted from within it.
"""

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
    """Limits of the time and memory of a worker."""

    seconds: float | None = None
    """Time limit of each compile and each run in seconds; None for no limit."""
    memory: int | None = None
    """Limit of the address space in bytes, which includes libraries; None for no limit."""


_CLOSED = "its process ended when the module was closed"


class WorkerHandle:
    """The worker process of an engine, started at the first request and again after it has died."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        self.engine = engine
        self._limits = limits
        self.seconds = limits.seconds
        """Time limit of a request; None for no limit."""
        self.lock = renew_after_fork(threading.RLock())
        self.dropped: list[tuple[int, int]] = []
        """Numbers and generations of executables that were garbage-collected, for `release_dropped`."""
        self._worker: WorkerProcess | None = None
        self._closed = False
        self.generation = 0
        """Number of workers that have ended: executables of an earlier one are gone."""

    def ask(self, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Send a request; return the response and the shared memory that it refers to.

        Raises WorkerFailure, or an error of the engine if its class is in `_PASSED_ON`.
        """
        with self.lock:
            worker = self._start()
            try:
                return worker.ask(message, buffer, self.seconds)
            except RemoteError as error:
                raise (error.restore() if error.kind in _PASSED_ON else error) from None
            except WorkerLost as error:
                # `close` kills the worker: the request did not fail by itself.
                raise (WorkerLost(_CLOSED) if self._closed else error) from error.__cause__
            finally:
                if not worker.is_alive:
                    self._worker = None
                    self.generation += 1

    def release_dropped(self) -> None:
        """Release the executables that were garbage-collected. As with any request, the worker may end meanwhile."""
        while self.dropped:
            self.release(*self.dropped.pop())

    def release(self, number: int, generation: int) -> None:
        """Close an executable in the worker, unless the worker of its ``generation`` has ended."""
        with self.lock, suppress(WorkerFailure, EngineError):  # the executable ended with its worker
            if generation == self.generation and self.has_worker:
                self.ask({"do": "close", "number": number})

    @property
    def has_worker(self) -> bool:
        """Whether a worker is running."""
        return self._worker is not None and self._worker.is_alive

    def _start(self) -> WorkerProcess:
        """Return the running worker, or start one; raises WorkerLost after `close`."""
        if self._closed:
            raise WorkerLost(_CLOSED)
        if self._worker is not None and not self._worker.is_alive:  # inherited from the parent of a fork
            self._worker = None
            self.generation += 1
        if self._worker is None:
            self._worker = WorkerProcess("xrt.worker.server:main", str(self._limits.memory or 0), keeps_output=False)
        return self._worker

    def close(self) -> None:
        """End the worker and start no other one; a request in progress fails immediately."""
        self._closed = True
        if (worker := self._worker) is not None:
            # Without the lock, which a request in progress holds.
            worker.kill()
        with self.lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


_PASSED_ON = ("CompileRefused", "InputError", "OutOfDeviceMemory")
"""Errors of an engine that callers handle, so that they are raised as if it ran in this process."""
_numbers = itertools.count(1)


class IsolatedEngine(EngineProxy):
    """Compiles with ``engine`` in a worker, and also runs there if ``runs`` is True or the engine cannot save executables.

    Otherwise executables are saved in the worker and loaded in this process. All other methods of the engine run here, too.
    """

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits, *, runs: bool) -> None:
        """Raises OptionError if the engine cannot be isolated, because another process could not import its class."""
        if reason := why_not_isolated(engine):
            raise OptionError(f"engine {engine.spec!r} cannot be isolated: {reason}")
        cls = type(engine)
        self.inner = engine
        # Without `save` an executable cannot leave the worker.
        self.runs = runs or cls.save is GraphCompiler.save
        self.name = engine.name  # type: ignore[misc]  # an instance attribute shadows the class variable
        self.devices = ("cpu",) if self.runs else engine.devices  # type: ignore[misc]  # device arrays cannot be passed between processes
        self._home = WorkerHandle(engine, limits)
        self._number = next(_numbers)
        self.close = weakref.finalize(self, self._home.close)
        """End the worker; also when the engine is garbage collected."""

    def list_mutable_inputs(self, node: Node, function: Function) -> Sequence[int]:
        # The worker would update its copy.
        return () if self.runs else self.inner.list_mutable_inputs(node, function)

    def version(self) -> str:
        """The engine's version. If executables run in a worker, it names the worker, so that caches do not share them."""
        version = self.library_version()
        return f"{version} in worker {self._number} of process {os.getpid()}" if self.runs else version

    def library_version(self) -> str:
        """The engine's version without the worker, which identifies saved executables."""
        return self.inner.version()

    def remarks(self, function: Function) -> tuple[str, ...]:
        actions = "compiles and runs" if self.runs else "compiles"
        return (*self.inner.remarks(function), f"{actions} in a process of its own")

    def start(self) -> None:
        """Start the worker and import the engine before the first compile; raises EngineError."""
        with _convert_failure(CompileFailed, f"engine {self.spec!r} did not start: "):
            self._home.ask({"do": "import_engine", **identify(self._home.engine)})

    def compile(self, function: Function, context: CompileContext) -> Executable:
        remote = self.compile_in_worker(function, context)
        if self.runs:
            return remote
        try:
            with make_working_directory() as folder:
                return self.inner.load(remote.save(), function, replace(context, workdir=folder))
        except CompileRefused:  # it cannot be saved: compile it here, as it did not crash there
            return self.inner.compile(function, context)
        finally:
            remote.close()

    def compile_in_worker(self, function: Function, context: CompileContext) -> RemoteExecutable:
        """Compile in the worker; the executable stays there, even if `runs` is False."""
        return RemoteExecutable(self._home, function, context)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        if self.runs:
            raise CompileRefused(f"an executable of {self.spec!r} that lives in a worker cannot be saved")
        return self.inner.save(executable, context)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        return RemoteExecutable(self._home, function, context, data) if self.runs else self.inner.load(data, function, context)


class RemoteExecutable(Executable):
    """An executable in a worker. If the worker dies, for example in another region, it is compiled again in the next one."""

    updates_inputs: ClassVar[bool] = False
    concurrent_runs = 1  # a worker answers one request at a time

    def __init__(self, home: WorkerHandle, function: Function, context: CompileContext, saved: memoryview | None = None) -> None:
        """Compile in the worker, or load ``saved``, the bytes of a saved executable, there."""
        self._home = home
        self._function = function
        self._context = context
        self._saved = saved
        self._compile()

    def _compile(self) -> None:
        home, buffer = self._home, SharedBuffer()
        message = {
            "do": "compile" if self._saved is None else "load",
            "saved": None if self._saved is None else buffer.put(self._saved.cast("B")),
            **describe_compile(buffer, home.engine, self._function, self._context),
        }
        failure = f"engine {home.engine.spec!r} failed to compile {self._function.name}: "
        with home.lock, _convert_failure(CompileFailed, failure):
            home.release_dropped()
            response, _ = home.ask(message, buffer)
            self.outputs_are_fresh = bool(response["fresh"])  # type: ignore[misc]  # set per instance
            self._number, self._generation = response["number"], home.generation
            # A module that is dropped with its private cache closes none, and others may use the worker.
            self._finalizer = weakref.finalize(self, home.dropped.append, (self._number, self._generation))

    def _ask(self, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Send a request about this executable. If its worker has died, compile it again first."""
        with self._home.lock:
            self._home.release_dropped()
            # Another region's crash ended the worker and all executables in it.
            if self._generation != self._home.generation:
                self._compile()
            return self._home.ask({**message, "number": self._number}, buffer)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        buffer, buffers = SharedBuffer(), options.host_buffers or ()
        with _convert_failure(RunFailed):  # the program adds the region
            response, memory = self._ask({"do": "run", "inputs": put_values(buffer, inputs)}, buffer)
        results = read_values(memory, response["outputs"])
        # The worker cannot write to memory of this process: copy.
        for index, out in enumerate(buffers):
            if out is not None and index < len(results) and isinstance(results[index], np.ndarray):
                results[index] = fill(out, results[index])
        return results

    def measure(self, inputs: Sequence[Any], seconds: float, *, inner: bool = False) -> tuple[list[Any], list[float]]:
        """Run in the worker for about ``seconds``; return the results and samples of seconds per call. Raises RunFailed.

        The samples exclude the transport to the worker. With ``inner``, results are written to existing memory, as in a plan
        where another region reads them.
        """
        buffer = SharedBuffer()
        request = {"do": "measure", "inputs": put_values(buffer, inputs), "seconds": seconds, "inner": inner}
        with _convert_failure(RunFailed):
            response, memory = self._ask(request, buffer)
        return read_values(memory, response["outputs"]), response["samples"]

    @property
    def is_in_worker(self) -> bool:
        """Whether the worker that compiled it is still running."""
        return self._generation == self._home.generation and self._home.has_worker

    def save(self) -> memoryview:
        """Serialize the executable with the engine's `save`; raises CompileRefused or CompileFailed."""
        with _convert_failure(CompileFailed, f"engine {self._home.engine.spec!r} failed to save {self._function.name}: "):
            response, memory = self._ask({"do": "save"})
        return read_block(memory, response["saved"]).toreadonly()

    def close(self) -> None:
        """Close the executable in the worker, unless the worker has ended."""
        if self._finalizer.detach() is not None:
            self._home.release(self._number, self._generation)


@contextmanager
def _convert_failure(kind: type[EngineError], prefix: str = "") -> Iterator[None]:
    """Convert a WorkerFailure of the block to an error of class ``kind`` with the same cause, and ``prefix`` before its text."""
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
    """The fields of a request that name the engine: its class, as ``module:name``, and its spec."""
    cls = type(engine)
    return {"class": f"{cls.__module__}:{cls.__qualname__}", "spec": engine.spec}


def describe_compile(buffer: SharedBuffer, engine: GraphCompiler, function: Function, context: CompileContext) -> Message:
    """Create the fields of a request to compile or load, and put the Function into ``buffer``."""
    return {
        **identify(engine),
        "function": put_function(buffer, function),
        "options": asdict(context.options),
        "device": context.device,
        "device_factories": list_device_factories() if context.device != "cpu" else {},
        "threads": context.threads,
    }
