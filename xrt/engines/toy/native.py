"""Group nodes with native kernels into runs that are one native call each, once all their shapes are known."""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.op_table import Kernel, OpTable
from xrt.engines.contract.options import RunOptions
from xrt.engines.kernels.table import Factory
from xrt.engines.native import NativeExecutable, NativeKernel, NativeLibrary, NativeTape, PreparedKernel
from xrt.engines.native.bindings import address_of
from xrt.engines.native.fusion import DOMAIN, ELEMENTWISE, fuse_elementwise, lower_to_opcodes
from xrt.engines.toolkit.memory import find_inplace_outputs
from xrt.engines.toy import reference
from xrt.engines.toy.tape import StepKernel
from xrt.errors import CompileRefused, ModelError
from xrt.forking import renew_after_fork
from xrt.graph import DType, Function, Node, TensorType, Type, Value, find_schema, is_static
from xrt.passes import infer_shapes, specialize

SEGMENT = Node("Segment", (), (), domain=DOMAIN)
"""Replaces a run of native nodes; its kernel is the tape of the run."""
MOST_SHAPES = 16
"""Maximum number of input-shape sets for which one executable keeps tapes; each tape holds memory until it is evicted."""


class Segments:
    """A Function in which each run of native nodes is folded into one node, and the tapes of these nodes."""

    def __init__(self, function: Function, tapes: Mapping[str, NativeTape]) -> None:
        self.function = function
        self.tapes = dict(tapes)
        """Tape by node name."""

    def as_executable(self) -> NativeExecutable | None:
        """The executable of a single native call if that covers the whole Function; None if Python has work to do."""
        if len(self.function.nodes) != 1 or not self.tapes:
            return None
        (node,), (tape,) = self.function.nodes, self.tapes.values()
        inputs, outputs = (tuple(v.name for v in values) for values in (self.function.inputs, self.function.outputs))
        if tuple(check.name for check in tape.inputs) != inputs or node.outputs != outputs:
            return None
        return NativeExecutable(self.function.name, tape, outputs)

    def find_kernel(self, node: Node) -> StepKernel | None:
        """The kernel of a folded node; None for other nodes."""
        tape = self.tapes.get(node.name)
        if tape is None or (node.op_type, node.domain) != (SEGMENT.op_type, SEGMENT.domain):
            return None

        def run(*arrays: Any, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
            return tuple(tape.run(arrays, out))

        return StepKernel(run, pairs=tape.in_place)


def fold_segments(function: Function, choice: KernelSelection, threads: int) -> Segments:
    """Fold the runs of nodes with native kernels in a closed Function, and build their tapes.

    If a kernel refuses a node in ``prepare``, the node is tried with the next kernel. Raises CompileFailed if a kernel fails
    or declares a wrong type.
    """
    refused: Refusals = frozenset()
    single: frozenset[str] = frozenset()
    while True:
        try:
            # After a refusal plan the whole Function again: chains and runs depend on the kernels of all nodes.
            return _fold_runs(order_updates(_fuse_chains(function, choice, single)), choice, threads, refused)
        except _KernelRefusal as refusal:
            refused |= {(refusal.node.name, refusal.kernel)}
            single |= {*refusal.node.attr("nodes", ())} if refusal.node.domain == DOMAIN else frozenset()


def _fuse_chains(function: Function, choice: KernelSelection, single: frozenset[str]) -> Function:
    return fuse_elementwise(function, lambda node: node.name not in single and choice.joins_chain(node, function))


class _KernelRefusal(Exception):
    """Raised when a kernel refuses its node in ``prepare``."""

    def __init__(self, node: Node, kernel: NativeKernel) -> None:
        super().__init__(node, kernel)
        self.node, self.kernel = node, kernel


def _fold_runs(function: Function, choice: KernelSelection, threads: int, refused: Refusals) -> Segments:
    prepared: dict[str, PreparedKernel] = {}
    function, kernels = _choose_kernels(function, choice, refused, prepared)
    nodes: list[Node] = []
    tapes: dict[str, NativeTape] = {}
    runs: dict[str, list[Node]] = {}
    for is_native, run in _iter_runs(function, kernels):
        if not is_native:
            nodes += run
            continue
        part = _extract_part(function, run, f"native_{len(tapes)}")
        steps = [prepared.get(node.name) or _prepare_kernel(kernels[node.name], node, part) for node in part.nodes]
        inputs = {v.name: v.type for v in part.inputs if isinstance(v.type, TensorType)}
        outputs = [v.name for v in part.outputs]
        runs[part.name] = run
        tapes[part.name] = NativeTape(inputs, outputs, steps, part.constants, threads)
        nodes.append(Node(SEGMENT.op_type, tuple(inputs), tuple(outputs), domain=SEGMENT.domain, name=part.name))
    return Segments(function.replace(nodes=tuple(_redirect_control(nodes, runs))), tapes)


def _redirect_control(nodes: Sequence[Node], runs: Mapping[str, Sequence[Node]]) -> Iterator[Node]:
    """Redirect control edges from folded nodes to the node of their run; ``runs`` maps names of run nodes to folded nodes."""
    owner = {node.name: name for name, run in runs.items() for node in run}
    for node in nodes:
        names = [name for source in runs.get(node.name, (node,)) for name in source.control]
        control = tuple(dict.fromkeys(owner.get(name, name) for name in names if owner.get(name, name) != node.name))
        yield node if control == node.control else replace(node, control=control)


VIEWS = frozenset(
    {"Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results are often views of an argument."""


def order_updates(function: Function) -> Function:
    """Add control edges from the nodes that read an aliased input, or a view of it, to the node that writes its output.

    A reader that depends on the output gets no edge; the output is then copied. Linear if the Function's order already satisfies
    the edges.
    """
    if not function.aliases:
        return function
    index = {node.name: number for number, node in enumerate(function.nodes)}
    earlier: dict[str, set[str]] = {}
    for source, result in function.aliases:
        writer = function.producer(result)
        if writer is None:
            continue
        readers = _find_readers(function, source) - {writer.name, *writer.control}
        # No node behind the last reader can be a dependent that matters.
        late = max((index[name] for name in readers), default=-1)
        if readers := readers - _find_dependents(function, writer, index[writer.name], late):
            earlier.setdefault(writer.name, set()).update(readers)
    if not earlier:
        return function
    nodes = [replace(node, control=(*node.control, *sorted(earlier.get(node.name, ())))) for node in function.nodes]
    try:
        return function.replace(nodes=tuple(nodes))
    except ModelError:  # two updates that depend on each other
        return function


def _find_readers(function: Function, value: str) -> set[str]:
    """Names of the nodes that read a value or a view of it."""
    readers: set[str] = set()
    names = [value]
    for name in names:
        for use in function.users(name):
            if use.node.name not in readers and use.node.op in VIEWS:
                names += filter(None, use.node.outputs)
            readers.add(use.node.name)
    return readers


def _find_dependents(function: Function, writer: Node, place: int, end: int) -> set[str]:
    """Names of the nodes up to position ``end`` that depend on the writer, and of the writer."""
    dependents, values = {writer.name}, set(writer.defines)
    for node in function.nodes[place + 1 : end + 1]:
        if not values.isdisjoint(node.uses) or not dependents.isdisjoint(node.control):
            dependents.add(node.name)
            values.update(node.defines)
    return dependents


# ---------------------------------------------------------------------- selection of nodes


def _choose_kernels(
    function: Function, choice: KernelSelection, refused: Refusals, prepared: dict[str, PreparedKernel]
) -> tuple[Function, dict[str, NativeKernel]]:
    """Select the native kernel of each node that has one; also return the Function with the output types that kernels declare.

    Shape inference does not know custom operators. If the model does not declare their types, the kernel is prepared to get
    them; ``prepared`` collects these kernels by node name.
    """
    kernels: dict[str, NativeKernel] = {}
    for node in function.nodes:
        if node.bodies or not all(is_static(function.get_type(name)) for name in node.inputs if name):
            continue
        kernel = choice.find_native(node, function, refused)
        if kernel is None:
            continue
        kernels[node.name] = kernel
        if not all(is_static(function.get_type(name)) for name in node.defines):
            prepared[node.name] = _prepare_kernel(kernel, node, function)
            function = _add_types(function, prepared[node.name].outputs)
    return function, kernels


def _prepare_kernel(kernel: NativeKernel, node: Node, function: Function) -> PreparedKernel:
    try:
        return PreparedKernel(kernel, node, function)
    except CompileRefused as reason:
        raise _KernelRefusal(node, kernel) from reason


def _add_types(function: Function, types: Mapping[str, Type]) -> Function:
    outputs = [Value(v.name, types.get(v.name, v.type)) for v in function.outputs]
    return function.with_types({**function.types, **types}, outputs)


def _iter_runs(function: Function, native: Mapping[str, Any]) -> Iterator[tuple[bool, list[Node]]]:
    """Yield runs of native and of other nodes in turn, ordered so that runs are long: (is native, nodes).

    A run takes every ready node of its kind, in the Function's order. Cost: O(n log n).
    """
    position = {node.name: index for index, node in enumerate(function.nodes)}
    followers: list[list[int]] = [[] for _ in function.nodes]
    pending = [0] * len(function.nodes)
    for index, node in enumerate(function.nodes):
        producers = {function.position(name) for name in node.uses} | {position[name] for name in node.control}
        for producer in producers - {None}:
            followers[producer].append(index)  # type: ignore[index]  # None is removed above
            pending[index] += 1
    ready: dict[bool, list[int]] = {True: [], False: []}
    for index, count in enumerate(pending):
        if not count:
            ready[function.nodes[index].name in native].append(index)
    # Kinds alternate; a run ends when no node of its kind is ready.
    kind = bool(ready[True])
    while ready[True] or ready[False]:
        run: list[int] = []
        while ready[kind]:
            run.append(heapq.heappop(ready[kind]))
            for follower in followers[run[-1]]:
                pending[follower] -= 1
                if not pending[follower]:
                    heapq.heappush(ready[function.nodes[follower].name in native], follower)
        if run:
            yield kind, [function.nodes[index] for index in run]
        kind = not kind


def _extract_part(function: Function, nodes: Sequence[Node], name: str) -> Function:
    """Extract the nodes as a Function: its inputs are the values read from outside, its outputs the values read outside."""
    inside = {node.name for node in nodes}
    defined = dict.fromkeys(name for node in nodes for name in node.defines)
    entries = [v.name for v in function.inputs if is_static(v.type)]
    uses = dict.fromkeys(name for node in nodes for name in node.uses if name not in defined)
    # A part that is the whole Function has its unused inputs too, so that a call passes its arguments on unchanged.
    is_whole = len(nodes) == len(function.nodes)
    read = dict.fromkeys([*(name for name in entries if is_whole or name in uses), *uses])
    results = dict.fromkeys(v.name for v in function.outputs if v.name in defined)
    crossing = [n for n in defined if any(use.node.name not in inside for use in function.users(n))]
    outputs = dict.fromkeys([*results, *crossing])
    return Function(
        inputs=tuple(function.value(n) for n in read if n not in function.constants),
        outputs=tuple(function.value(n) for n in outputs),
        nodes=tuple(replace(node, control=tuple(n for n in node.control if n in inside)) for node in nodes),
        constants={n: function.constants[n] for n in read if n in function.constants},
        opsets=function.opsets,
        types={n: type_ for n in defined if n not in outputs and (type_ := function.get_type(n)) is not None},
        name=name,
    )


# ---------------------------------------------------------------------- shapes known only at a call


class ByShapes(Executable):
    """A Function whose shapes are known only at a call: compiles one executable per set of input types on first use.

    Each needs shape inference and kernel preparation: some milliseconds, for a call that may take microseconds. So only the
    first ``most`` sets are compiled; later ones run ``otherwise``, which supports every shape. Without ``otherwise``, the
    ``most`` sets used last are kept.
    """

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(
        self,
        function: Function,
        compiler: Callable[[Function], Executable],
        otherwise: Callable[[], Executable] | None = None,
        most: int = MOST_SHAPES,
    ) -> None:
        self.function = function
        self._compiler = compiler
        self._otherwise = otherwise
        self._most = most
        self._any_shape: Executable | None = None
        self._executables: OrderedDict[Any, Executable] = OrderedDict()
        self._lock = renew_after_fork(threading.Lock())
        # Separate from the lock of the table, so that calls of compiled shapes do not wait for a compile.
        self._compile_lock = renew_after_fork(threading.Lock())
        self._inplace = tuple({**_find_updates(function), **find_inplace_outputs(function)}.items())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        inner, out = self._find_executable(inputs), options.host_buffers
        if out is None:
            return inner.run(inputs, options)
        pairs = {(source, place) for source, place in self._inplace if _has_same_memory(inputs[source], out[place])}
        if pairs <= {*inner.inplace_pairs()}:
            return inner.run(inputs, options)
        # The executable for these shapes would read the input after writing the output over it.
        written = {place for _, place in pairs}
        results = [*inner.run(inputs, replace(options, out=[None if i in written else buffer for i, buffer in enumerate(out)]))]
        for place in written:
            np.copyto(out[place], results[place])
            results[place] = out[place]
        return results

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._inplace

    def output_buffer_threshold(self) -> Sequence[int | None]:
        """0 for outputs that may overwrite an input, otherwise None: nothing is known about them before a call."""
        places = {place for _, place in self._inplace}
        return [0 if place in places else None for place in range(len(self.function.outputs))]

    def _find_executable(self, inputs: Sequence[Any]) -> Executable:
        # Sequences and absent values do not influence which kernels are chosen.
        key = tuple((x.dtype, x.shape) if type(x) is np.ndarray else None for x in inputs)
        executable = self._look_up(key)
        if executable is not None:
            return executable
        with self._compile_lock:
            # Another thread may have compiled it while this one waited for the lock.
            return self._look_up(key) or self._store(key, self._compiler(self._specialize(inputs)))

    def _look_up(self, key: object) -> Executable | None:
        """Look up the executable for these types; falls back to the one for every shape once that exists."""
        with self._lock:
            executable = self._executables.get(key)
            if executable is not None:
                self._executables.move_to_end(key)
            return executable or self._any_shape

    def _store(self, key: object, executable: Executable) -> Executable:
        with self._lock:
            self._executables[key] = executable
            if len(self._executables) == self._most and self._otherwise is not None:
                # From now on, new shapes run this one and are not compiled.
                self._any_shape = self._otherwise()
            elif len(self._executables) > self._most:
                self._executables.popitem(last=False)
        return executable

    def _specialize(self, inputs: Sequence[Any]) -> Function:
        """Specialize the Function for the types of these inputs."""
        typed_inputs = tuple(_declare_type(value, array) for value, array in zip(self.function.inputs, inputs, strict=True))
        shapes = {v.name: x.shape for v, x in zip(typed_inputs, inputs, strict=True) if isinstance(v.type, TensorType)}
        function = self.function.replace(inputs=typed_inputs)
        return specialize(function, shapes) if shapes else infer_shapes(function)


def _has_same_memory(array: Any, buffer: Any) -> bool:
    """Whether the buffer is the array or a view of all of it."""
    return isinstance(array, np.ndarray) and isinstance(buffer, np.ndarray) and address_of(array) == address_of(buffer)


def _find_updates(function: Function) -> dict[int, int]:
    """Map the position of each aliased input to that of the output that updates it, if both have the same static type."""
    inputs, outputs = ([value.name for value in values] for values in (function.inputs, function.outputs))
    places = ((inputs.index(source), outputs.index(result)) for source, result in function.aliases)
    types = {(i, o): (function.inputs[i].type, function.outputs[o].type) for i, o in places}
    return {i: o for (i, o), (source, result) in types.items() if source == result and is_static(source)}


def _declare_type(value: Value, array: Any) -> Value:
    """Declare an input without a type as a tensor of the array's type."""
    if value.type is not None or type(array) is not np.ndarray:
        return value
    return Value(value.name, TensorType(DType.of(array), array.shape))


Refusals: TypeAlias = frozenset[tuple[str, NativeKernel]]
"""(node name, kernel that refused it)."""
NONE: Refusals = frozenset()
SelectedKernel: TypeAlias = Kernel[Any] | Factory | str
"""A kernel of the table, the factory for reference operators, or the reason why no kernel supports the node."""


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """Selects kernels among those of an engine and of its native libraries."""

    engine: str
    python: OpTable[Any]
    """The engine's Python kernels."""
    everything: OpTable[Any]
    """Python kernels, then those of native libraries; of kernels of equal priority, the first is tried first."""
    has_native: bool
    chain: int | None
    """Priority of the kernel for elementwise chains; None if there is none."""

    def why_not(self, node: Node, function: Function) -> str | None:
        """Explain why no kernel supports the node, ignoring bodies; native kernels are tried only if no Python kernel fits."""
        kernel = self.find_python(node, function)
        if isinstance(kernel, str) and self.has_native:
            kernel = self.find_best(node, function)
        return kernel if isinstance(kernel, str) else None

    def find_python(self, node: Node, function: Function) -> SelectedKernel:
        """Find the Python kernel of highest priority for the node."""
        return self._find(node, function, self.python, ())

    def find_best(self, node: Node, function: Function, without: tuple[Any, ...] = ()) -> SelectedKernel:
        """Find the kernel of highest priority for the node, native ones included, skipping those in ``without``."""
        return self._find(node, function, self.everything, without)

    def find_native(self, node: Node, function: Function, refused: Refusals = NONE) -> NativeKernel | None:
        """The native kernel selected for the node, skipping those that ``refused`` it; None if a Python kernel is selected."""
        kernel = self.find_best(node, function, tuple(kernel for name, kernel in refused if name == node.name))
        return kernel.code if isinstance(kernel, Kernel) and isinstance(kernel.code, NativeKernel) else None

    def joins_chain(self, node: Node, function: Function) -> bool:
        """Whether the node may join a chain of elementwise operators: it has no kernel of the chain's priority or higher."""
        if self.chain is None or lower_to_opcodes(node, function) is None:
            return False
        kernel = self.find_best(node, function)
        return not isinstance(kernel, Kernel) or kernel.priority < self.chain

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        """Positions of the inputs whose memory the result may overwrite; all inputs if the node joins a chain."""
        if self.joins_chain(node, function):
            return tuple(range(len(node.inputs)))
        kernel = self.find_python(node, function)
        return kernel.mutable[: len(node.inputs)] if isinstance(kernel, Kernel) else ()

    def _find(self, node: Node, function: Function, table: OpTable[Any], without: tuple[Any, ...]) -> SelectedKernel:
        if reason := _why_not_defined(node, function, table):
            return reason
        kernel = table.find(node, function, node.device or "cpu", without)
        if not isinstance(kernel, str):
            return kernel
        # The implementation of the onnx package is the last resort.
        absent = reference.why_not(node, function)
        if absent is None:
            return reference.make_reference_kernel
        return f"{kernel}; {absent}" if (node.domain, node.op_type) in table else absent


@lru_cache(maxsize=64)
def select_kernel(engine: str, table: OpTable[Any], libraries: tuple[NativeLibrary, ...]) -> KernelSelection:
    """Combine a complete table with the kernels of the libraries, which come after it."""
    # A copy, because the table is shared by all instances of the engine.
    everything = table.extend(engine) if libraries else table
    for library in libraries:
        library.register(everything)
    chains = [kernel.priority for kernel in everything if (kernel.domain, kernel.op_type) == (DOMAIN, ELEMENTWISE)]
    return KernelSelection(engine, table, everything, bool(libraries), max(chains, default=None))


def _why_not_defined(node: Node, function: Function, table: OpTable[Any]) -> str | None:
    """Explain why the operator is not defined; None if it is. A custom operator is defined by having a kernel in the table."""
    version = function.opsets.get(node.domain)
    if version is None:
        return f"the function imports no opset for domain {node.domain!r}"
    if node.domain not in reference.DOMAINS and (node.domain, node.op_type) in table:
        return None
    if find_schema(node.op_type, version, node.domain) is None:
        domain = node.domain or "ai.onnx"
        return f"the onnx package describes no operator {node.op_type!r} in version {version} of domain {domain!r}"
    return None
