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
from xrt.processes.ipc import Answer, Message, Request, read_block, serve
from xrt.runtime.devices.registry import register_device
from xrt.runtime.host_adapter import adapt_to_host, make_timed_call, on_device
from xrt.runtime.inputs import copy_values

if TYPE_CHECKING:
    from xrt.graph import Function


class WorkerServer:
    """Holds the executables of this process by number. A request's field "do" names the public method that handles it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._executables: dict[int, tuple[Executable, GraphCompiler, Function, CompileContext]] = {}
        self._engines: dict[tuple[str, str], GraphCompiler] = {}

    def respond(self, request: Request) -> Message:
        """Handle a request by the method that its field "do" names; return the response."""
        handlers: Sequence[Answer] = (self.import_engine, self.compile, self.load, self.save, self.run, self.measure, self.close)
        return {handler.__name__: handler for handler in handlers}[request.message["do"]](request)

    def import_engine(self, request: Request) -> Message:
        self._get_engine(request.message["class"], request.message["spec"])
        return {}

    def compile(self, request: Request) -> Message:
        """Compile and prepare a Function. The response has the executable's number, and as ``fresh`` its `outputs_are_fresh`."""
        engine, function, context = self._read_request(request)
        return self._register(engine.compile(function, context), engine, function, context)

    def load(self, request: Request) -> Message:
        """Load and prepare a saved executable. The response is as for `compile`."""
        engine, function, context = self._read_request(request)
        data = read_block(request.memory, request.message["saved"]).toreadonly()
        with make_working_directory() as folder:
            executable = engine.load(data, function, replace(context, workdir=folder))
        return self._register(executable, engine, function, context)

    def _read_request(self, request: Request) -> tuple[GraphCompiler, Function, CompileContext]:
        """Read engine, Function and context from the fields that `describe_compile` wrote."""
        message = request.message
        context = CompileContext(ExecutionOptions(**message["options"]), threads=message["threads"])
        # The client may have registered devices that are not in every process, such as simulated ones.
        for kind, origin in message["device_factories"].items():
            register_device(kind, origin)
        context = on_device(message["device"], context)
        return self._get_engine(message["class"], message["spec"]), read_function(request.memory, message["function"]), context

    def _register(self, executable: Executable, engine: GraphCompiler, function: Function, context: CompileContext) -> Message:
        # Prepared here and not in the first run, which may be measured. The adapter is dropped: it prepares `executable` itself.
        prepare_or_close(adapt_to_host(executable, context))
        number = next(self._numbers)
        self._executables[number] = executable, engine, function, context
        return {"number": number, "fresh": executable.outputs_are_fresh}

    def _get_engine(self, class_path: str, spec: str) -> GraphCompiler:
        """Get the engine with the class ``class_path`` (``module:name``) and the options of ``spec``; create it on first use."""
        if (class_path, spec) not in self._engines:
            module, _, name = class_path.partition(":")
            cls = getattr(importlib.import_module(module), name)
            _, options = parse_spec(spec)
            self._engines[class_path, spec] = build(cls, options)
        return self._engines[class_path, spec]

    def save(self, request: Request) -> Message:
        """Serialize an executable into the shared buffer. The response's ``saved`` locates the bytes."""
        executable, engine, _, context = self._executables[request.message["number"]]
        with make_working_directory() as folder:
            data = engine.save(executable, replace(context, workdir=folder))
            copy = bytes(data)
        return {"saved": request.buffer.put(memoryview(copy))}

    def run(self, request: Request) -> Message:
        """Run an executable on inputs in shared memory. The response locates the outputs in the shared buffer."""
        executable, _, _, context = self._executables[request.message["number"]]
        results = adapt_to_host(executable, context).run(read_values(request.memory, request.message["inputs"]))
        return {"outputs": put_values(request.buffer, results)}

    def measure(self, request: Request) -> Message:
        """Run an executable once for its outputs, then repeatedly to time it. The response has outputs and seconds per call."""
        compiled, _, function, context = self._executables[request.message["number"]]
        executable = adapt_to_host(compiled, context)
        # Private memory may use larger pages than shared memory.
        inputs = copy_values(read_values(request.memory, request.message["inputs"]))
        results = executable.run(inputs)
        call = make_timed_call(executable, inputs, results if request.message["inner"] else None, function)
        samples = sample_call_times(call, request.message["seconds"])
        return {"outputs": put_values(request.buffer, results), "samples": samples}

    def close(self, request: Request) -> Message:
        executable, _, _, _ = self._executables.pop(request.message["number"])
        executable.close()
        return {}


def main(handle: str, memory_limit: str) -> None:
    """Serve the socket with this handle until it closes. ``memory_limit`` is in bytes of address space; 0 means no limit."""
    # Set before any engine is imported, so that its libraries count.
    if limit := int(memory_limit):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(handle, WorkerServer().respond)
