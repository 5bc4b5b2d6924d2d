"""Replace segments (groups of nodes with native kernels) by one node each, computed by one native call. Shapes must be known."""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, fill
from xrt.engines.contract.op_table import Kernel, OpTable
from xrt.engines.contract.options import RunOptions
from xrt.engines.kernels.table import Factory
from xrt.engines.native import NativeExecutable, NativeKernel, NativeLibrary, NativeTape, PreparedKernel
from xrt.engines.native.fusion import DOMAIN, ELEMENTWISE, convert_to_opcodes, fuse_elementwise
from xrt.engines.toolkit.memory import find_inplace_outputs
from xrt.engines.toy import reference
from xrt.engines.toy.tape import StepKernel
from xrt.errors import CompileRefused
from xrt.forking import renew_after_fork
from xrt.graph import DType, Function, Node, TensorType, Value, find_schema, is_static
from xrt.passes import infer_shapes, specialize

SEGMENT_NODE = Node("Segment", (), (), domain=DOMAIN)
"""The node that replaces a segment. Its kernel runs the native tape of the nodes of the segment."""
MAX_COMPILED_SHAPES = 16
"""Maximum number of sets of input shapes for which an executable keeps tapes. Each tape occupies memory."""


class Segments:
    """A Function in which each segment is replaced by one node, and the native tapes of the segments by the name of this node."""

    def __init__(self, function: Function, tapes: Mapping[str, NativeTape]) -> None:
        self.function = function
        self.tapes = dict(tapes)

    def make_executable(self) -> NativeExecutable | None:
        """Make the executable of a single native call if one tape computes the whole Function; None if it does not."""
        if len(self.function.nodes) != 1 or not self.tapes:
            return None
        (node,) = self.function.nodes
        (tape,) = self.tapes.values()
        inputs = tuple(value.name for value in self.function.inputs)
        outputs = tuple(value.name for value in self.function.outputs)
        # A native call has the inputs and outputs of the tape, in its order.
        if tuple(source.name for source in tape.inputs) != inputs or node.outputs != outputs:
            return None
        return NativeExecutable(self.function.name, tape)

    def find_kernel(self, node: Node) -> StepKernel | None:
        """Find the kernel of a node that replaces a segment; None for other nodes."""
        tape = self.tapes.get(node.name)
        # A node of the model may have the name of a segment.
        if tape is None or (node.op_type, node.domain) != (SEGMENT_NODE.op_type, SEGMENT_NODE.domain):
            return None

        def run(*arrays: Any, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
            return tuple(tape.run(arrays, out))

        return StepKernel(run, in_place_pairs=tape.in_place)


def fold_segments(function: Function, selection: KernelSelection, threads: int) -> Segments:
    """Replace each segment of a closed Function by one node, and build the native tapes of the segments.

    If the ``prepare`` of a kernel rejects a node, the kernel of next priority is tried. Raises CompileFailed if a kernel fails or
    declares a wrong type.
    """
    rejections: Rejections = frozenset()
    unfused: set[str] = set()

    def can_fuse(node: Node) -> bool:
        return node.name not in unfused and selection.can_join_chain(node, function)

    while True:
        try:
            return _replace_segments(fuse_elementwise(function, can_fuse), selection, threads, rejections)
        except _KernelRejection as rejection:
            # Start again, because chains and segments depend on the kernels of all nodes.
            rejections |= {(rejection.node.name, rejection.kernel)}
            if rejection.node.domain == DOMAIN:
                unfused.update(rejection.node.attr("nodes", ()))


class _KernelRejection(Exception):
    """Raised if the ``prepare`` of a kernel rejects its node."""

    def __init__(self, node: Node, kernel: NativeKernel) -> None:
        super().__init__(node, kernel)
        self.node = node
        self.kernel = kernel


def _replace_segments(function: Function, selection: KernelSelection, threads: int, rejections: Rejections) -> Segments:
    """Replace each segment by one node. Raises _KernelRejection if a kernel rejects a node."""
    prepared: dict[str, PreparedKernel] = {}
    function, kernels = _choose_kernels(function, selection, rejections, prepared)
    nodes: list[Node] = []
    tapes: dict[str, NativeTape] = {}
    folded: dict[str, list[Node]] = {}
    for is_native, group in _iter_groups(function, kernels):
        if not is_native:
            nodes += group
            continue
        part = _extract_part(function, group, f"native_{len(tapes)}")
        steps = [prepared.get(node.name) or _prepare_kernel(kernels[node.name], node, part) for node in part.nodes]
        inputs = {v.name: v.type for v in part.inputs if isinstance(v.type, TensorType)}
        outputs = [v.name for v in part.outputs]
        folded[part.name] = group
        tapes[part.name] = NativeTape(inputs, outputs, steps, part.constants, threads)
        nodes.append(Node(SEGMENT_NODE.op_type, tuple(inputs), tuple(outputs), domain=SEGMENT_NODE.domain, name=part.name))
    return Segments(function.replace(nodes=tuple(_redirect_control_edges(nodes, folded))), tapes)


def _redirect_control_edges(nodes: Sequence[Node], folded: Mapping[str, Sequence[Node]]) -> Iterator[Node]:
    """Let control edges from and to folded nodes refer to the node that replaces them, whose name is the key in ``folded``."""
    replacements = {node.name: name for name, group in folded.items() for node in group}
    for node in nodes:
        predecessors: dict[str, None] = {}
        for original in folded.get(node.name, (node,)):
            predecessors.update(dict.fromkeys(replacements.get(name, name) for name in original.control))
        predecessors.pop(node.name, None)  # edges inside the segment
        control = tuple(predecessors)
        yield node if control == node.control else replace(node, control=control)


def _choose_kernels(
    function: Function, selection: KernelSelection, rejections: Rejections, prepared: dict[str, PreparedKernel]
) -> tuple[Function, dict[str, NativeKernel]]:
    """Select native kernels. Return the Function, with the output types that kernels declare, and the kernels by node name.

    Shape inference does not support custom operators. If the model does not declare the output types of such a node, its kernel
    is prepared here, because that determines the types, and is added to ``prepared`` by node name.
    """
    kernels: dict[str, NativeKernel] = {}
    for node in function.nodes:
        if node.bodies or not all(is_static(function.get_type(name)) for name in node.inputs if name):
            continue
        kernel = selection.find_native(node, function, rejections)
        if kernel is None:
            continue
        kernels[node.name] = kernel
        if not all(is_static(function.get_type(name)) for name in node.defined_names):
            prepared[node.name] = _prepare_kernel(kernel, node, function)
            types = prepared[node.name].outputs
            outputs = [Value(v.name, types.get(v.name, v.type)) for v in function.outputs]
            function = function.with_types({**function.types, **types}, outputs)
    return function, kernels


def _prepare_kernel(kernel: NativeKernel, node: Node, function: Function) -> PreparedKernel:
    try:
        return PreparedKernel(kernel, node, function)
    except CompileRefused as reason:
        raise _KernelRejection(node, kernel) from reason


def _iter_groups(function: Function, native: Mapping[str, Any]) -> Iterator[tuple[bool, list[Node]]]:
    """Divide the nodes into groups of native nodes (segments) and groups of other nodes. Yield (is native, nodes) for each.

    The nodes are reordered to make the groups large. A group contains all nodes of its kind that depend only on nodes of this and
    of earlier groups. Time O(n log n).
    """
    position = {node.name: index for index, node in enumerate(function.nodes)}
    followers: list[list[int]] = [[] for _ in function.nodes]
    pending = [0] * len(function.nodes)  # for each node, the number of producers that are in no group yet
    for index, node in enumerate(function.nodes):
        producers = {function.producer_index(name) for name in node.uses} | {position[name] for name in node.control}
        for producer in producers - {None}:
            followers[producer].append(index)  # type: ignore[index]  # None is removed above
            pending[index] += 1
    ready: dict[bool, list[int]] = {True: [], False: []}
    for index, count in enumerate(pending):
        if not count:
            ready[function.nodes[index].name in native].append(index)
    # Native and other groups alternate. A group ends when no more nodes are ready for it.
    is_native = bool(ready[True])
    while ready[True] or ready[False]:
        group: list[int] = []
        while ready[is_native]:
            group.append(heapq.heappop(ready[is_native]))
            for follower in followers[group[-1]]:
                pending[follower] -= 1
                if not pending[follower]:
                    heapq.heappush(ready[function.nodes[follower].name in native], follower)
        if group:
            yield is_native, [function.nodes[index] for index in group]
        is_native = not is_native


def _extract_part(function: Function, nodes: Sequence[Node], name: str) -> Function:
    """Make a Function of some nodes. Its outputs are the values that other nodes read, and outputs of the whole Function."""
    node_names = {node.name for node in nodes}
    # Ordered sets of value names: computed in the part, and read from outside.
    defined = dict.fromkeys(name for node in nodes for name in node.defined_names)
    uses = dict.fromkeys(name for node in nodes for name in node.uses if name not in defined)
    # The inputs of the Function come first. A part that is the whole Function also has its unused inputs, which calls pass too.
    is_whole = len(nodes) == len(function.nodes)
    function_inputs = [v.name for v in function.inputs if is_static(v.type) and (is_whole or v.name in uses)]
    used = dict.fromkeys([*function_inputs, *uses])
    function_outputs = [v.name for v in function.outputs if v.name in defined]
    used_by_others = [n for n in defined if any(use.node.name not in node_names for use in function.users(n))]
    outputs = dict.fromkeys([*function_outputs, *used_by_others])
    return Function(
        inputs=tuple(function.value(n) for n in used if n not in function.constants),
        outputs=tuple(function.value(n) for n in outputs),
        nodes=tuple(replace(node, control=tuple(n for n in node.control if n in node_names)) for node in nodes),
        constants={n: function.constants[n] for n in used if n in function.constants},
        opsets=function.opsets,
        types={n: type_ for n in defined if n not in outputs and (type_ := function.get_type(n)) is not None},
        name=name,
    )


class PerShapeExecutable(Executable):
    """Runs a Function whose shapes are known only in a call: compiles an executable for each set of input types on first use.

    A compile takes some milliseconds, and a call may take microseconds. Therefore only the first ``max_shapes`` sets of types are
    compiled, and ``make_fallback`` makes an executable for all others. Without ``make_fallback`` all sets are compiled, and the
    executables of the last ``max_shapes`` are kept.
    """

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(
        self,
        function: Function,
        compile_function: Callable[[Function], Executable],
        make_fallback: Callable[[], Executable] | None = None,
        max_shapes: int = MAX_COMPILED_SHAPES,
    ) -> None:
        self.function = function
        self._compile_function = compile_function
        self._make_fallback = make_fallback
        self._max_shapes = max_shapes
        self._fallback: Executable | None = None
        self._executables: OrderedDict[Any, Executable] = OrderedDict()
        self._lock = renew_after_fork(threading.Lock())
        # Not the same lock, so that calls with compiled shapes do not wait for a compile.
        self._compile_lock = renew_after_fork(threading.Lock())
        self._inplace = tuple({**_find_updates(function), **find_inplace_outputs(function)}.items())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        inner = self._find_executable(inputs)
        out = options.host_buffers
        if out is None:
            return inner.run(inputs, options)
        # The executable for these shapes may read an input after it has overwritten it. Such outputs are copied after the run.
        copied = {output_index for _, output_index in {*self._inplace} - {*inner.inplace_pairs()}}
        buffers = [None if index in copied else buffer for index, buffer in enumerate(out)]
        results = inner.run(inputs, replace(options, out=buffers))
        return [result if buffer is None else fill(buffer, result) for result, buffer in zip(results, out, strict=True)]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._inplace

    def output_buffer_threshold(self) -> Sequence[int | None]:
        """0 bytes for outputs that may overwrite an input. None for others, whose buffers only some of the executables use."""
        output_indices = {output_index for _, output_index in self._inplace}
        return [0 if output_index in output_indices else None for output_index in range(len(self.function.outputs))]

    def _find_executable(self, inputs: Sequence[Any]) -> Executable:
        # Sequences and absent values do not affect which kernels are selected.
        key = tuple((x.dtype, x.shape) if type(x) is np.ndarray else None for x in inputs)
        executable = self._look_up(key)
        if executable is not None:
            return executable
        with self._compile_lock:
            # Another thread may have compiled it while this one waited for the lock.
            return self._look_up(key) or self._add_executable(key, self._compile_function(self._specialize(inputs)))

    def _look_up(self, key: object) -> Executable | None:
        """Get the executable for the types in ``key``. If there is none, get the fallback, or None without a fallback."""
        with self._lock:
            executable = self._executables.get(key)
            if executable is not None:
                self._executables.move_to_end(key)
            return executable or self._fallback

    def _add_executable(self, key: object, executable: Executable) -> Executable:
        with self._lock:
            self._executables[key] = executable
            if len(self._executables) == self._max_shapes and self._make_fallback is not None:
                # The maximum is reached: new shapes run the fallback.
                self._fallback = self._make_fallback()
            elif len(self._executables) > self._max_shapes:
                self._executables.popitem(last=False)
        return executable

    def _specialize(self, inputs: Sequence[Any]) -> Function:
        """Specialize the Function to the shapes of a call. An input without a declared type gets that of its array."""
        typed_inputs = tuple(
            Value(v.name, TensorType(DType.from_array(x), x.shape)) if v.type is None and type(x) is np.ndarray else v
            for v, x in zip(self.function.inputs, inputs, strict=True)
        )
        shapes = {v.name: x.shape for v, x in zip(typed_inputs, inputs, strict=True) if isinstance(v.type, TensorType)}
        function = self.function.replace(inputs=typed_inputs)
        return specialize(function, shapes) if shapes else infer_shapes(function)


def _find_updates(function: Function) -> dict[int, int]:
    """Map the index of each input with an alias to that of the aliased output, if both have the same static type."""
    inputs = [value.name for value in function.inputs]
    outputs = [value.name for value in function.outputs]
    updates = {}
    for source, result in function.aliases:
        i, o = inputs.index(source), outputs.index(result)
        if function.inputs[i].type == function.outputs[o].type and is_static(function.inputs[i].type):
            updates[i] = o
    return updates


Rejections: TypeAlias = frozenset[tuple[str, NativeKernel]]
"""(node name, native kernel) pairs: kernels whose ``prepare`` has rejected the node."""
SelectedKernel: TypeAlias = Kernel[Any] | Factory | str
"""A kernel of the table, the factory for reference operators, or the reason why no kernel supports the node."""


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """The kernels of an engine and of its native libraries, from which it selects one for a node."""

    engine: str
    python_kernels: OpTable[Any]
    all_kernels: OpTable[Any]
    """The Python and the native kernels. Of kernels with equal priority a Python kernel is preferred."""
    has_native: bool
    chain_priority: int | None
    """The priority of the kernel for chains of elementwise nodes; None if there is no such kernel."""

    def why_not(self, node: Node, function: Function) -> str | None:
        """Explain why no kernel supports the node, without its bodies. None if a Python or a native kernel does."""
        kernel = self.find_python(node, function)
        if isinstance(kernel, str) and self.has_native:
            kernel = self.find_best(node, function)
        return kernel if isinstance(kernel, str) else None

    def find_python(self, node: Node, function: Function) -> SelectedKernel:
        return _find_kernel(node, function, self.python_kernels)

    def find_best(self, node: Node, function: Function, excluded: Collection[Any] = ()) -> SelectedKernel:
        """Find the kernel of highest priority, Python or native, that is not in ``excluded``; or the reason why there is none."""
        return _find_kernel(node, function, self.all_kernels, excluded)

    def find_native(self, node: Node, function: Function, rejections: Rejections = frozenset()) -> NativeKernel | None:
        """Find the native kernel to use for the node, except those in ``rejections``; None if a Python kernel has priority."""
        kernel = self.find_best(node, function, tuple(kernel for name, kernel in rejections if name == node.name))
        return kernel.code if isinstance(kernel, Kernel) and isinstance(kernel.code, NativeKernel) else None

    def can_join_chain(self, node: Node, function: Function) -> bool:
        """Whether the node may be part of an elementwise chain: the chain kernel has priority over all kernels of the node."""
        if self.chain_priority is None or convert_to_opcodes(node, function) is None:
            return False
        kernel = self.find_best(node, function)
        return not isinstance(kernel, Kernel) or kernel.priority < self.chain_priority

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        """List the indices of the inputs whose memory the output may overwrite. For a node in a chain these are all inputs."""
        if self.can_join_chain(node, function):
            return tuple(range(len(node.inputs)))
        kernel = self.find_python(node, function)
        return kernel.mutable[: len(node.inputs)] if isinstance(kernel, Kernel) else ()


@lru_cache(maxsize=64)
def make_kernel_selection(engine: str, table: OpTable[Any], libraries: tuple[NativeLibrary, ...]) -> KernelSelection:
    """Make the selection from an engine's table of Python kernels and the kernels of native libraries."""
    # Extend a copy, because all instances of the engine share the table.
    all_kernels = table.extend(engine) if libraries else table
    for library in libraries:
        library.register(all_kernels)
    chains = [kernel.priority for kernel in all_kernels if (kernel.domain, kernel.op_type) == (DOMAIN, ELEMENTWISE)]
    return KernelSelection(engine, table, all_kernels, bool(libraries), max(chains, default=None))


def _find_kernel(node: Node, function: Function, table: OpTable[Any], excluded: Collection[Any] = ()) -> SelectedKernel:
    """Find the kernel of highest priority in ``table``; if none supports the node, the reference operator of the onnx package.

    Return the reason if the operator does not exist, or if the reference does not support the node either.
    """
    version = function.opsets.get(node.domain)
    if version is None:
        return f"the function imports no opset for domain {node.domain!r}"
    has_kernels = (node.domain, node.op_type) in table
    # A custom operator exists if it has a kernel.
    is_custom = node.domain not in reference.DOMAINS and has_kernels
    if not is_custom and find_schema(node.op_type, version, node.domain) is None:
        domain = node.domain or "ai.onnx"
        return f"the onnx package has no operator {node.op_type!r} in version {version} of domain {domain!r}"
    kernel = table.find(node, function, node.device or "cpu", excluded)
    if not isinstance(kernel, str):
        return kernel
    reference_reason = reference.why_not(node, function)
    if reference_reason is None:
        return reference.make_reference_kernel
    return f"{kernel}; {reference_reason}" if has_kernels else reference_reason
