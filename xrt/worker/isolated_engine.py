"""An engine behind a wall: it compiles, and if asked runs, in a process of its own, where a crash or a hang is one more fault.

Why not the same: an exception is contained anyhow; a crash of native code ends its process, and native code that hangs
cannot be stopped from outside of it.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.engines.toolkit.memory_planner import put_function, put_values, read_values
from xrt.errors import CompileFailed, CompileRefused, EngineError, OptionError, RunFailed
from xrt.forking import renew_after_fork
from xrt.formats.bundle import make_working_directory
from xrt.processes.client import RemoteError, WorkerFailure, WorkerLost, WorkerProcess
from xrt.processes.ipc import Message, SharedBuffer, read_block
from xrt.runtime.devices.registry import list_device_factories

if TYPE_CHECKING:
    from xrt.graph import Function, Node

__all__ = ["IsolatedEngine", "RemoteExecutable", "WorkerLimits", "describe_compile", "identify", "why_not_isolated"]


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker may take."""

    seconds: float | None = None
    """For each compile and for each run; None is no limit."""
    memory: int | None = None
    """Bytes of address space, the libraries' included; None is no limit."""


class WorkerHandle:
    """Where an engine's executables live: a worker, and after its death another."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        self.engine = engine
        self._limits = limits
        self.seconds = limits.seconds
        """What the next requests may take each."""
        self.lock = renew_after_fork(threading.RLock())
        self._worker: WorkerProcess | None = None
        self._closed = False
        self.generation = 0
        """Counts the workers."""

    def ask(self, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Ask the worker; raises WorkerFailure, or what the engine has raised if that is in `_PASSED_ON`."""
        with self.lock:
            worker = self._start()
            try:
                return worker.ask(message, buffer, self.seconds)
            except RemoteError as error:
                raise (error.restore() if error.kind in _PASSED_ON else error) from None
            finally:
                if not worker.is_alive:
                    self._worker = None
                    self.generation += 1

    @property
    def is_at_work(self) -> bool:
        """Whether there is a worker."""
        return self._worker is not None and self._worker.is_alive

    def _start(self) -> WorkerProcess:
        if self._closed:
            raise WorkerLost("its process ended when the module was closed")
        if self._worker is not None and not self._worker.is_alive:  # the worker of a parent process
            self._worker = None
            self.generation += 1
        if self._worker is None:
            self._worker = WorkerProcess("xrt.worker.server:main", str(self._limits.memory or 0), keeps_output=False)
        return self._worker

    def close(self) -> None:
        """End the worker for good; a request under way fails, and is not waited for."""
        self._closed = True
        if (worker := self._worker) is not None:
            worker.kill()
        with self.lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


_PASSED_ON = ("CompileRefused", "InputError", "OutOfDeviceMemory")
"""Errors of an engine that are the same here as in its worker."""
_numbers = itertools.count(1)


class IsolatedEngine(GraphCompiler):
    """An engine whose compiles, and runs where `runs`, happen in a worker. What it can take it is asked here."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits, *, runs: bool) -> None:
        """Raises OptionError where that cannot be: the class must be one that another process can import."""
        if reason := why_not_isolated(engine):
            raise OptionError(f"engine {engine.spec!r} cannot be isolated: {reason}")
        cls = type(engine)
        self.inner = engine
        self.runs = runs or cls.save is GraphCompiler.save
        self.name = engine.name  # type: ignore[misc]  # each is the one of its engine
        self.devices = ("cpu",) if self.runs else engine.devices  # type: ignore[misc]  # no array of a device comes over
        self.supports_dynamic_shapes = engine.supports_dynamic_shapes  # type: ignore[misc]
        self._home = WorkerHandle(engine, limits)
        self._number = next(_numbers)
        self.close = weakref.finalize(self, self._home.close)
        """Ends the worker."""

    @property
    def spec(self) -> str:
        return self.inner.spec

    @property
    def implementation(self) -> type[GraphCompiler]:
        return self.inner.implementation

    def why_not(self, node: Node, function: Function) -> str | None:
        return self.inner.why_not(node, function)

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        return self.inner.fuses_dequantization(node, function)

    def list_mutable_inputs(self, node: Node, function: Function) -> Sequence[int]:
        return () if self.runs else self.inner.list_mutable_inputs(node, function)

    def why_not_dynamic(self, function: Function) -> str | None:
        return self.inner.why_not_dynamic(function)

    def version(self) -> str:
        """Return the engine's version. If executables run in a worker, it names the worker, so that they are not shared."""
        version = self.library_version()
        return f"{version} in worker {self._number} of process {os.getpid()}" if self.runs else version

    def library_version(self) -> str:
        """Return the version of the engine without its worker: it identifies saved executables."""
        return self.inner.version()

    def unsupported_options(self, context: CompileContext) -> str | None:
        return self.inner.unsupported_options(context)

    def remarks(self, function: Function) -> tuple[str, ...]:
        what = "compiles and runs" if self.runs else "compiles"
        return (*self.inner.remarks(function), f"{what} in a process of its own")

    def start(self) -> None:
        """Start the worker, and have it import the engine, ahead of the first compile, which would; raises EngineError."""
        try:
            self._home.ask({"do": "meet", **identify(self._home.engine)})
        except WorkerFailure as error:
            raise CompileFailed(f"engine {self.spec!r} did not start: {error}") from error.__cause__

    def compile(self, function: Function, context: CompileContext) -> Executable:
        remote = RemoteExecutable(self._home, function, context)
        return remote if self.runs else self._loaded(remote, function, context)

    def _loaded(self, remote: RemoteExecutable, function: Function, context: CompileContext) -> Executable:
        """Return here what was compiled there; what does not come over is compiled here too, since there it did no harm."""
        try:
            with make_working_directory() as folder:
                return self.inner.load(remote.save(), function, replace(context, workdir=folder))
        except CompileRefused:
            return self.inner.compile(function, context)
        finally:
            remote.close()

    def is_worth_saving(self, function: Function) -> bool:
        return self.inner.is_worth_saving(function)

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        if self.runs:
            raise CompileRefused(f"an executable of {self.spec!r} that lives in a worker cannot be saved")
        return self.inner.save(executable, context)

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        return RemoteExecutable(self._home, function, context, data) if self.runs else self.inner.load(data, function, context)

    def serves_threads(self, saved: int, threads: int) -> bool:
        return self.inner.serves_threads(saved, threads)


class RemoteExecutable(Executable):
    """An executable in a worker. If the worker died because of another region, it is made again in the next one."""

    updates_inputs: ClassVar[bool] = False
    concurrent_runs = 1  # a worker answers one question after the other

    def __init__(self, home: WorkerHandle, function: Function, context: CompileContext, saved: memoryview | None = None) -> None:
        """Compile there, or load what is ``saved``."""
        self._home = home
        self._function = function
        self._context = context
        self._saved = saved
        self._made, self._generation = self._compiled()

    def _compiled(self) -> tuple[int, int]:
        home, buffer = self._home, SharedBuffer()
        message = {
            "do": "compile" if self._saved is None else "load",
            "saved": None if self._saved is None else buffer.put(self._saved.cast("B")),
            **describe_compile(buffer, home.engine, self._function, self._context),
        }
        with home.lock:
            try:
                answer, _ = home.ask(message, buffer)
            except WorkerFailure as error:
                said = f"engine {home.engine.spec!r} failed to compile {self._function.name}: {error}"
                raise CompileFailed(said) from error.__cause__
            self.outputs_are_fresh = bool(answer["fresh"])  # type: ignore[misc]  # nothing is shared between processes
            return answer["made"], home.generation

    def _ask(self, message: Mapping[str, Any], buffer: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Ask the worker that has the executable; it is made again if the one that had it is no more."""
        with self._home.lock:
            if self._generation != self._home.generation:
                self._made, self._generation = self._compiled()
            return self._home.ask({**message, "made": self._made}, buffer)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        buffer = SharedBuffer()
        try:
            answer, memory = self._ask({"do": "run", "inputs": put_values(buffer, inputs)}, buffer)
        except WorkerFailure as error:
            raise RunFailed(str(error)) from error.__cause__  # which region it is, the program knows
        return _filled(read_values(memory, answer["outputs"]), options)

    def measure(self, inputs: Sequence[Any], seconds: float, *, inner: bool = False) -> tuple[list[Any], list[float]]:
        """Return what it computes, and the seconds of a call, sample by sample, measured where it lives; raises RunFailed.

        With ``inner`` its results lie in memory that is there, as between two regions.
        """
        buffer = SharedBuffer()
        asked = {"do": "measure", "inputs": put_values(buffer, inputs), "seconds": seconds, "inner": inner}
        try:
            answer, memory = self._ask(asked, buffer)
        except WorkerFailure as error:
            raise RunFailed(str(error)) from error.__cause__
        return read_values(memory, answer["outputs"]), answer["samples"]

    @property
    def is_held(self) -> bool:
        """Whether the worker that compiled it is still there."""
        return self._generation == self._home.generation and self._home.is_at_work

    def save(self) -> memoryview:
        """Return what the engine saves of it; raises CompileRefused, or CompileFailed."""
        try:
            answer, memory = self._ask({"do": "save"})
        except WorkerFailure as error:
            said = f"engine {self._home.engine.spec!r} failed to save {self._function.name}: {error}"
            raise CompileFailed(said) from error.__cause__
        return read_block(memory, answer["saved"]).toreadonly()

    def close(self) -> None:
        """Let go of it where it lives; a worker that is gone, or whose module is closed, has let go of it already."""
        with self._home.lock:
            if self.is_held:
                try:
                    self._home.ask({"do": "close", "made": self._made})
                except (WorkerFailure, EngineError):
                    return


def why_not_isolated(engine: GraphCompiler) -> str | None:
    """Return why no other process can be given the engine; None where one can."""
    cls = type(engine)
    if not hasattr(os, "memfd_create"):
        return "shared memory without a name is Linux's alone"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        return f"{cls.__qualname__} of {cls.__module__} can be imported by no other process; move it to a module"
    return None


def identify(engine: GraphCompiler) -> dict[str, str]:
    """Return what tells a worker which engine is meant."""
    cls = type(engine)
    return {"class": f"{cls.__module__}:{cls.__qualname__}", "spec": engine.spec}


def describe_compile(buffer: SharedBuffer, engine: GraphCompiler, function: Function, context: CompileContext) -> Message:
    """Put a Function into the memory, and return what tells a worker to compile it."""
    return {
        **identify(engine),
        "function": put_function(buffer, function),
        "options": asdict(context.options),
        "device": context.device,
        "plugs": list_device_factories() if context.device != "cpu" else {},
        "threads": context.threads,
        "keep": str(context.keep or ""),
    }


def _filled(results: list[Any], options: RunOptions) -> list[Any]:
    for index, buffer in enumerate(options.out or ()):
        if buffer is not None and index < len(results) and isinstance(results[index], np.ndarray):
            fill(buffer, results[index])
            results[index] = buffer
    return results
