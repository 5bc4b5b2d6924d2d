"""An engine behind a wall: it compiles, and if asked runs, in a process of its own, where a crash or a hang is one more fault.

Why not the same: an exception is contained anyhow; a crash of native code ends its process, and native code that hangs
cannot be stopped from outside of it.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.contract.graph_compiler import fill
from xrt.errors import CompileFailed, CompileRefused, EngineError, InputError, OptionError, OutOfDeviceMemory, RunFailed
from xrt.formats.bundle import make_working_directory
from xrt.processes import end, start_python
from xrt.runtime.devices.registry import list_device_factories
from xrt.worker.ipc import Message, SharedBuffer, read_values, receive, send

if TYPE_CHECKING:
    from xrt.graph import Function, Node

__all__ = ["IsolatedEngine", "RemoteExecutable", "WorkerLimits", "WorkerLost", "WorkerProcess", "identify", "why_not_isolated"]

START = 120.0
"""Seconds in which a worker must have started."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker may take."""

    seconds: float | None = None
    """For each compile and for each run; None is no limit."""
    memory: int | None = None
    """Bytes of address space, the libraries' included; None is no limit."""


class WorkerLost(Exception):
    """A worker was killed because it took too long, or ended by itself."""


class WorkerProcess:
    """One process, and the way to talk to it; one request at a time."""

    def __init__(self, limits: WorkerLimits, entry: str = "xrt.worker.server:main") -> None:
        """Start ``entry``, which `xrt.worker.server.serve`s the socket of the number that it is given."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with its:
            numbers = (str(its.fileno()), str(limits.memory or 0))
            self._process = start_python(entry, *numbers, inherited=[its.fileno()], stdin=subprocess.DEVNULL)
        self._channel = mine
        self.end = weakref.finalize(self, _end, self._process, mine)
        mine.settimeout(START)
        self._hear(START)

    def ask(self, message: Mapping[str, Any], room: SharedBuffer | None, seconds: float | None) -> tuple[Message, memoryview]:
        """Return the answer and its memory; raises Lost, and the process is no more."""
        self._channel.settimeout(seconds)
        try:
            send(self._channel, message, room)
        except OSError as error:
            raise WorkerLost(self._how_it_ended()) from error
        return self._hear(seconds)

    def _hear(self, seconds: float | None) -> tuple[Message, memoryview]:
        try:
            return receive(self._channel)
        except TimeoutError as error:
            self.end()
            raise WorkerLost(f"it gave no answer within {seconds:.3g} s, and its process was killed") from error
        except (OSError, EOFError) as error:
            raise WorkerLost(self._how_it_ended()) from error

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = 0
        self.end()
        if code >= 0:
            return f"its process ended by itself, with status {code}"
        return f"its process was ended by {signal.Signals(-code).name}: a crash, or the system had no memory left"


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    """Kill the process, with all that it has started, such as a compiler, and let go of all that belongs to it."""
    end(process)
    channel.close()


class WorkerHandle:
    """Where an engine's executables live: a worker, and after its death another."""

    def __init__(self, engine: GraphCompiler, limits: WorkerLimits) -> None:
        self.engine = engine
        self._limits = limits
        self.seconds = limits.seconds
        """What the next requests may take each."""
        self.lock = threading.RLock()
        self._worker: WorkerProcess | None = None
        self._closed = False
        self.generation = 0
        """Counts the workers."""

    def ask(self, message: Mapping[str, Any], room: SharedBuffer | None = None) -> tuple[Message, memoryview]:
        """Ask the worker; raises Lost where there is none any more, and what the engine has raised as `_raised` makes it."""
        with self.lock:
            worker = self._at_work()
            try:
                answer, memory = worker.ask(message, room, self.seconds)
            except BaseException as error:  # an interrupt too: the answer that is still to come would be taken for the next one's
                self._worker = None
                self.generation += 1
                if not isinstance(error, WorkerLost):
                    worker.end()
                raise
        if "error" in answer:
            raise _raised(answer)
        return answer, memory

    @property
    def is_at_work(self) -> bool:
        """Whether there is a worker."""
        return self._worker is not None

    def _at_work(self) -> WorkerProcess:
        if self._closed:
            raise WorkerLost("its process ended when the module was closed")
        if self._worker is None:
            self._worker = WorkerProcess(self._limits)
        return self._worker

    def close(self) -> None:
        """End the worker for good."""
        with self.lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


def _raised(answer: Message) -> Exception:
    """Return the exception that a worker tells of."""
    if answer["kind"] == "CompileRefused":
        return CompileRefused(answer["error"], answer["nodes"])
    passed_on = {"InputError": InputError, "OutOfDeviceMemory": OutOfDeviceMemory}
    return passed_on.get(answer["kind"], RemoteError)(answer["error"])


class RemoteError(EngineError):
    """What an engine raised in its worker."""


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

    def version(self) -> str:
        """Return the engine's version. If executables run in a worker, it names the worker, so that they are not shared."""
        told = self.library_version()
        return f"{told} in worker {self._number} of process {os.getpid()}" if self.runs else told

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
        except WorkerLost as error:
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


class RemoteExecutable(Executable):
    """An executable in a worker. If the worker died because of another region, it is made again in the next one."""

    def __init__(self, home: WorkerHandle, function: Function, context: CompileContext, saved: memoryview | None = None) -> None:
        """Compile there, or load what is ``saved``."""
        self._home = home
        self._function = function
        self._context = context
        self._saved = saved
        self._made, self._generation = self._compiled()

    def _compiled(self) -> tuple[int, int]:
        home, context, room = self._home, self._context, SharedBuffer()
        message = {
            "do": "compile" if self._saved is None else "load",
            "saved": None if self._saved is None else room.put(self._saved.cast("B")),
            **identify(home.engine),
            "function": room.put_function(self._function),
            "options": asdict(context.options),
            "device": context.device,
            "plugs": list_device_factories() if context.device != "cpu" else {},
            "threads": context.threads,
            "keep": str(context.keep or ""),
        }
        with home.lock:
            try:
                answer, _ = home.ask(message, room)
            except (WorkerLost, RemoteError) as error:
                told = f"engine {home.engine.spec!r} failed to compile {self._function.name}: {error}"
                raise CompileFailed(told) from error.__cause__
            self.outputs_are_fresh = bool(answer["fresh"])  # type: ignore[misc]  # nothing is shared between processes
            return answer["made"], home.generation

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        room = SharedBuffer()
        message = {"do": "run", "inputs": [room.put_value(value) for value in inputs]}
        with self._home.lock:
            if self._generation != self._home.generation:
                self._made, self._generation = self._compiled()
            try:
                answer, memory = self._home.ask({**message, "made": self._made}, room)
            except (WorkerLost, RemoteError) as error:
                raise RunFailed(str(error)) from error.__cause__  # which region it is, the program knows
        return _filled(read_values(memory, answer["outputs"]), options)

    def measure(self, inputs: Sequence[Any], seconds: float, *, inner: bool = False) -> tuple[list[Any], list[float]]:
        """Return what it computes, and the seconds of a call, sample by sample, measured where it lives; raises RunFailed.

        With ``inner`` its results lie in memory that is there, as between two regions.
        """
        room = SharedBuffer()
        given = [room.put_value(value) for value in inputs]
        try:
            asked = {"do": "measure", "made": self._made, "inputs": given, "seconds": seconds, "inner": inner}
            answer, memory = self._home.ask(asked, room)
        except (WorkerLost, RemoteError) as error:
            raise RunFailed(str(error)) from error.__cause__
        return read_values(memory, answer["outputs"]), answer["samples"]

    @property
    def is_held(self) -> bool:
        """Whether the worker that compiled it is still there."""
        return self._generation == self._home.generation and self._home.is_at_work

    def save(self) -> memoryview:
        """Return what the engine saves of it; raises CompileRefused, or CompileFailed."""
        try:
            answer, memory = self._home.ask({"do": "save", "made": self._made})
        except (WorkerLost, RemoteError) as error:
            told = f"engine {self._home.engine.spec!r} failed to save {self._function.name}: {error}"
            raise CompileFailed(told) from error.__cause__
        offset, length = answer["saved"]
        return memory[offset : offset + length].toreadonly()

    def close(self) -> None:
        """Let go of it where it lives; a worker that is gone, or whose module is closed, has let go of it already."""
        with self._home.lock:
            if self.is_held:
                try:
                    self._home.ask({"do": "close", "made": self._made})
                except (WorkerLost, EngineError):
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


def _filled(results: list[Any], options: RunOptions) -> list[Any]:
    for index, buffer in enumerate(options.out or ()):
        if buffer is not None and index < len(results) and isinstance(results[index], np.ndarray):
            fill(buffer, results[index])
            results[index] = buffer
    return results
