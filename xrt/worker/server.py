"""The worker process of an isolated engine: compiles, loads, runs and measures executables on request."""

from __future__ import annotations

import importlib
import itertools
import resource
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xrt.engines import CompileContext, Executable, ExecutionOptions, GraphCompiler, parse_spec
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.engines.contract.spec import build
from xrt.engines.toolkit.shared_values import put_values, read_function, read_values
from xrt.formats.bundle import make_working_directory
from xrt.measure.timing import sample_call_times
from xrt.processes.ipc import Message, read_block
from xrt.processes.server import Answer, Request, serve
from xrt.runtime.devices.registry import register_device
from xrt.runtime.host_adapter import adapt_to_host, make_timed_call, on_device
from xrt.runtime.inputs import copy_values

if TYPE_CHECKING:
    from xrt.graph import Function


class WorkerServer:
    """The executables of this process and the requests on them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._executables: dict[int, tuple[Executable, GraphCompiler, Function, CompileContext]] = {}
        self._engines: dict[tuple[str, str], GraphCompiler] = {}

    def answer(self, request: Request) -> Message:
        """Dispatch a request."""
        answers: Sequence[Answer] = (self.meet, self.compile, self.load, self.save, self.run, self.measure, self.close)
        return {answer.__name__: answer for answer in answers}[request.message["do"]](request)

    def meet(self, request: Request) -> Message:
        """Import an engine."""
        self._get_engine(request.message["class"], request.message["spec"])
        return {}

    def compile(self, request: Request) -> Message:
        """Compile and prepare a Function; answer with the executable's number."""
        engine, function, context = self._read_request(request)
        return self._store(engine.compile(function, context), engine, function, context)

    def load(self, request: Request) -> Message:
        """Load and prepare a saved executable; answer with its number."""
        engine, function, context = self._read_request(request)
        data = read_block(request.memory, request.message["saved"]).toreadonly()
        with make_working_directory() as folder:
            executable = engine.load(data, function, replace(context, workdir=folder))
        return self._store(executable, engine, function, context)

    def _read_request(self, request: Request) -> tuple[GraphCompiler, Function, CompileContext]:
        message = request.message
        context = CompileContext(ExecutionOptions(**message["options"]), threads=message["threads"])
        for kind, origin in message["plugs"].items():
            register_device(kind, origin)
        context = on_device(message["device"], context)
        return self._get_engine(message["class"], message["spec"]), read_function(request.memory, message["function"]), context

    def _store(self, executable: Executable, engine: GraphCompiler, function: Function, context: CompileContext) -> Message:
        prepare_or_close(adapt_to_host(executable, context))
        number = next(self._numbers)
        self._executables[number] = executable, engine, function, context
        return {"made": number, "fresh": executable.outputs_are_fresh}

    def _get_engine(self, path: str, spec: str) -> GraphCompiler:
        if (path, spec) not in self._engines:
            module, _, name = path.partition(":")
            cls = getattr(importlib.import_module(module), name)
            self._engines[path, spec] = build(cls, parse_spec(spec)[1])
        return self._engines[path, spec]

    def save(self, request: Request) -> Message:
        """Serialize an executable."""
        executable, engine, _, context = self._executables[request.message["made"]]
        with make_working_directory() as folder:
            data = engine.save(executable, replace(context, workdir=folder))
            copy = bytes(data)
        return {"saved": request.buffer.put(memoryview(copy))}

    def run(self, request: Request) -> Message:
        """Run an executable on inputs in shared memory."""
        executable, _, _, context = self._executables[request.message["made"]]
        results = adapt_to_host(executable, context).run(read_values(request.memory, request.message["inputs"]))
        return {"outputs": put_values(request.buffer, results)}

    def measure(self, request: Request) -> Message:
        """Run an executable once for its results, then repeatedly to time it."""
        compiled, _, function, context = self._executables[request.message["made"]]
        executable = adapt_to_host(compiled, context)
        # Private memory may use larger pages than shared memory.
        inputs = copy_values(read_values(request.memory, request.message["inputs"]))
        results = executable.run(inputs)
        call = make_timed_call(executable, inputs, results if request.message["inner"] else None, function)
        samples = sample_call_times(call, request.message["seconds"])
        return {"outputs": put_values(request.buffer, results), "samples": samples}

    def close(self, request: Request) -> Message:
        """Close an executable."""
        self._executables.pop(request.message["made"])[0].close()
        return {}


def main(handle: str, memory_limit: str) -> None:
    """Serve the socket with this handle until it closes. A ``memory_limit`` of 0 bytes means none."""
    # Set before any engine is imported, so that its libraries count.
    if limit := int(memory_limit):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(handle, WorkerServer().answer)
