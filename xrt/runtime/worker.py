"""The other side of `isolation`: a process that compiles and runs for an engine, and ends when nobody speaks to it."""

from __future__ import annotations

import importlib
import itertools
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xrt.engines import CompileContext, Executable, ExecutionOptions, GraphCompiler, parse_spec
from xrt.engines.spec import build
from xrt.errors import CompileRefused, InputError, OutOfDeviceMemory
from xrt.formats.bundle import working_folder
from xrt.graph import Function
from xrt.runtime.devices.registry import plug
from xrt.runtime.placed.host_adapter import hosted, on_device, repeated
from xrt.runtime.shared import Message, Room, function_in, receive, send, values_in
from xrt.runtime.timing import sampled

__all__ = ["Served", "main", "serve"]


class Served:
    """The executables of the process, and what it is asked to do with them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._made: dict[int, tuple[Executable, GraphCompiler, Function, CompileContext]] = {}
        self._engines: dict[tuple[str, str], GraphCompiler] = {}

    def answer(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Do what a message asks; what is raised is told, and not raised."""
        ways: dict[str, Callable[[Message, memoryview, Room], Message]] = {
            "meet": self.meet,
            "compile": self.compile,
            "load": self.load,
            "save": self.save,
            "run": self.run,
            "measure": self.measure,
            "close": self.close,
        }
        try:
            return ways[message["do"]](message, memory, room)
        except Exception as error:  # noqa: BLE001  # it belongs to who asked
            return _told(error)

    def meet(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Import an engine."""
        self._engine(message["class"], message["spec"])
        return {}

    def compile(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Compile and prepare a Function; the number of the executable is the answer."""
        engine, function, context = self._asked(message, memory)
        return self._kept(engine.compile(function, context), engine, function, context)

    def load(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Load and prepare what an engine has saved of a Function; the same answer."""
        engine, function, context = self._asked(message, memory)
        offset, length = message["saved"]
        with working_folder() as folder:
            data = memory[offset : offset + length].toreadonly()
            executable = engine.load(data, function, replace(context, workdir=folder))
        return self._kept(executable, engine, function, context)

    def _asked(self, message: Message, memory: memoryview) -> tuple[GraphCompiler, Function, CompileContext]:
        keep = Path(message["keep"]) if message["keep"] else None
        context = CompileContext(ExecutionOptions(**message["options"]), threads=message["threads"], keep=keep)
        for kind, origin in message["plugs"].items():
            plug(kind, origin)
        context = on_device(message["device"], context)
        return self._engine(message["class"], message["spec"]), function_in(memory, message["function"]), context

    def _kept(self, executable: Executable, engine: GraphCompiler, function: Function, context: CompileContext) -> Message:
        hosted(executable, context).prepare()
        number = next(self._numbers)
        self._made[number] = executable, engine, function, context
        return {"made": number, "fresh": executable.outputs_are_fresh}

    def _engine(self, path: str, spec: str) -> GraphCompiler:
        if (path, spec) not in self._engines:
            module, _, name = path.partition(":")
            cls = getattr(importlib.import_module(module), name)
            self._engines[path, spec] = build(cls, parse_spec(spec)[1])
        return self._engines[path, spec]

    def save(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Give an executable out as its engine saves it."""
        executable, engine, _, context = self._made[message["made"]]
        with working_folder() as folder:
            data = engine.save(executable, replace(context, workdir=folder))
            held = bytes(data)
        return {"saved": room.put(memoryview(held))}

    def run(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Run an executable on inputs that lie in the memory."""
        executable, _, _, context = self._made[message["made"]]
        results = hosted(executable, context).run(values_in(memory, message["inputs"]))
        return {"outputs": [room.put_value(result) for result in results]}

    def measure(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Run an executable once for what it computes, and then over and over for how long that takes, alone or among others."""
        made, _, _, context = self._made[message["made"]]
        executable = hosted(made, context)
        inputs = [_own(value) for value in values_in(memory, message["inputs"])]
        results = executable.run(inputs)
        call = repeated(executable, inputs, results if message["inner"] else None)
        samples = sampled(call, message["seconds"])
        return {"outputs": [room.put_value(result) for result in results], "samples": samples}

    def close(self, message: Message, memory: memoryview, room: Room) -> Message:
        """Let go of an executable."""
        self._made.pop(message["made"])[0].close()
        return {}


def _own(value: Any) -> Any:
    """Return a copy of an array in memory of this process's own, which may lie on larger pages than what is shared."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _told(error: Exception) -> Message:
    kind = next(
        (one.__name__ for one in (CompileRefused, InputError, OutOfDeviceMemory, MemoryError) if isinstance(error, one)), ""
    )
    said = str(error) if kind in ("CompileRefused", "InputError", "OutOfDeviceMemory") else f"{type(error).__name__}: {error}"
    return {"error": said, "kind": kind, "nodes": list(getattr(error, "nodes", ()))}


def main(handle: str, memory_limit: str) -> None:
    """Serve the socket of that number until nobody asks any more. A ``memory_limit`` of 0 bytes is none."""
    if limit := int(memory_limit):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(handle, Served().answer)


def serve(handle: str, answer: Callable[[Message, memoryview, Room], Message]) -> None:
    """Answer what comes through the socket of that number until nobody asks any more."""
    channel = socket.socket(fileno=int(handle))
    try:
        send(channel, {"ready": os.getpid()})
    except ConnectionError:  # whoever has started it has ended meanwhile
        return
    while True:
        try:
            message, memory = receive(channel)
            room = Room()
            send(channel, answer(message, memory, room), room)
        except (EOFError, ConnectionError):
            return
        except MemoryError as error:
            send(channel, _told(error))
        message, memory, room = {}, memoryview(b""), Room()
