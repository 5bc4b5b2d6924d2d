"""The engine class `Toy`: the reference that all other engines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from xrt import __version__
from xrt.engines.contract.graph_compiler import Executable, GraphCompiler
from xrt.engines.contract.op_table import Kernel
from xrt.engines.contract.options import check_options, option
from xrt.engines.kernels.table import KernelContext
from xrt.engines.native import NativeLibrary, open_bundled, require_native_library, warn_once_of_absence, why_not_shipped
from xrt.engines.toolkit.support import close_over, why_not_bodies
from xrt.engines.toy.devices import plan_device_steps, why_not_on_device
from xrt.engines.toy.kernels import get_namespace, ops
from xrt.engines.toy.native import (
    MAX_COMPILED_SHAPES,
    KernelSelection,
    PerShapeExecutable,
    fold_segments,
    make_kernel_selection,
)
from xrt.engines.toy.reference import isolate_node
from xrt.engines.toy.tape import DeviceExecutable, InterpretedExecutable, StepKernel, Tape, TapeBuilder
from xrt.errors import CompileRefused, OptionError
from xrt.graph import Function, Node, is_static
from xrt.passes import infer_shapes

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.engines.contract.op_table import OpTable
    from xrt.engines.contract.options import CompileContext
    from xrt.engines.kernels.table import Run


@cache
def _list_versions() -> tuple[str, ...]:
    """List the versions of XRT and of its libraries. Cached, because reading them takes milliseconds."""
    from importlib import metadata

    return f"xrt {__version__}", *(f"{name} {metadata.version(name)}" for name in ("numpy", "ml_dtypes", "onnx"))


@dataclass(frozen=True)
class Toy(GraphCompiler):
    """NumPy kernels for the operators of common models, and the reference operators of the ``onnx`` package for all others.

    ``toy{native=off}`` is the reference: its Python kernels are simple rather than fast, and their results are the same bits in
    every run. Native kernels replace them for nodes of known shapes, and round differently. Native kernels and large matrix
    products use the threads that the module allows; Python kernels otherwise run on the calling thread. On a GPU the Python
    kernels compute with CuPy, one kernel call per node.
    """

    name: ClassVar[str] = "toy"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    supports_dynamic_shapes: ClassVar[bool] = True
    kernels: ClassVar[OpTable[Any]] = ops
    """The Python kernels. A derived engine sets this to ``Toy.kernels.extend(name)``, and registers its own kernels there."""

    native: Literal["auto", "on", "off"] = "auto"
    """Whether to use native kernels: ``auto`` if XRT's library was built, ``on`` always (raises without it), ``off`` never."""
    libraries: tuple[str, ...] = option((), names_files=True)
    """Paths of shared libraries with more kernels, which are tried before XRT's of the same priority. See the tutorial "Write a
    kernel"."""

    def __post_init__(self) -> None:
        """Open the libraries. Raises OptionError or EngineUnavailable if one cannot be used."""
        check_options(self)
        if self.libraries and self.native == "off":
            raise OptionError(f"engine {self.name!r} has libraries of native kernels and native='off'; set only one of them")
        if self.native == "on" or self.libraries:
            require_native_library()
        # Open them here, so that a wrong path is an error of the option and not of a later compile.
        open_bundled(self.libraries, with_shipped=False)

    def version(self) -> str:
        native = [f"native {library.signature}" for library in self._list_libraries()] or ["no native kernels"]
        return ", ".join([*_list_versions(), *native])

    def available_devices(self) -> tuple[str, ...]:
        return self.devices if find_spec("cupy") is not None else ("cpu",)

    def missing_features(self) -> str:
        return "" if self.native == "off" else why_not_shipped() or ""

    def why_not(self, node: Node, function: Function) -> str | None:
        reason = self._select_kernels().why_not(node, function) or why_not_on_device(node, function)
        return reason or why_not_bodies(
            node, function, self.why_not, lambda body, outer: plan_device_steps(close_over(body, outer), node.device)
        )

    def list_mutable_inputs(self, node: Node, function: Function) -> tuple[int, ...]:
        if node.device.partition(":")[0] not in ("", "cpu"):
            return ()
        return self._select_kernels().list_mutable_inputs(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        is_cpu = context.device == "cpu"
        if not is_cpu and context.accelerator is None:
            raise CompileRefused(f"engine {self.name!r} needs an accelerator for {context.device}; compile through XRTModule")
        # Assign devices before the check, because the support of a node depends on its device.
        function = function if is_cpu else plan_device_steps(function, context.device)
        for node in function.nodes:
            if reason := self.why_not(node, function):
                raise CompileRefused(f"engine {self.name!r} does not support node {node.name!r} ({node.op}): {reason}")
        if context.accelerator is not None and not is_cpu:  # native kernels run on the CPU only
            compiler = _Compiler(make_kernel_selection(self.name, self.kernels, ()), context.threads, context.accelerator)
            return DeviceExecutable(function, compiler.make_tape, context.accelerator)
        # Warn here rather than in `__post_init__`, which also runs when engines are only listed.
        if self.native == "auto":
            warn_once_of_absence()
        return _Compiler(self._select_kernels(), context.threads).compile(function)

    def _list_libraries(self) -> tuple[NativeLibrary, ...]:
        """List the native libraries in use: those of option ``libraries``, then XRT's."""
        return open_bundled(self.libraries, with_shipped=self.native != "off")

    def _select_kernels(self) -> KernelSelection:
        return make_kernel_selection(self.name, self.kernels, self._list_libraries())


MAX_COMPILED_BODY_SHAPES = 2
"""`MAX_COMPILED_SHAPES` for a body. If the shapes in a Loop change at all, they usually change in every iteration."""


class _Compiler:
    """Compiles closed Functions to executables, and for devices to tapes."""

    def __init__(self, selection: KernelSelection, threads: int, accelerator: Accelerator | None = None) -> None:
        """``threads`` is the number of threads that native kernels and matrix products may use."""
        self._selection = selection
        self._threads = threads
        self._accelerator = accelerator

    def compile(self, function: Function) -> Executable:
        """Compile the Function. Raises CompileRefused or CompileFailed with the name of the node."""
        if not self._selection.has_native:
            return self._compile_to_tape(function)
        if all(is_static(value.type) for value in function.inputs):
            return self._compile_static(function)
        return self._compile_by_shapes(function) if self._has_native_kernel(function) else self._compile_to_tape(function)

    def make_tape(self, function: Function, find_segment: Callable[[Node], StepKernel | None] = lambda node: None) -> Tape:
        """Build a tape. ``find_segment`` finds the kernels of nodes that replace segments; others have Python kernels."""

        def make_kernel(node: Node) -> StepKernel:
            return find_segment(node) or self._make_kernel(node, function)

        return TapeBuilder(function, make_kernel, self._accelerator).build(self._selection.engine)

    def _compile_by_shapes(self, function: Function, max_shapes: int = MAX_COMPILED_SHAPES) -> PerShapeExecutable:
        return PerShapeExecutable(function, self._compile_static, lambda: self._compile_to_tape(function), max_shapes)

    def _compile_static(self, function: Function) -> Executable:
        """Compile to one native call if native kernels support all nodes, else to a tape of Python kernels and segments."""
        segments = fold_segments(_infer_types(function), self._selection, self._threads)
        return segments.make_executable() or self._compile_to_tape(segments.function, segments.find_kernel)

    def _compile_to_tape(
        self, function: Function, find_segment: Callable[[Node], StepKernel | None] = lambda node: None
    ) -> InterpretedExecutable:
        return InterpretedExecutable(function, self.make_tape(function, find_segment), self._threads, self._selection.has_native)

    def _has_native_kernel(self, function: Function) -> bool:
        """Whether there is a node that a native kernel may support when the shapes are known."""
        function = _infer_types(function)
        selection = self._selection
        return any(selection.can_join_chain(node, function) or selection.find_native(node, function) for node in function.nodes)

    def _make_kernel(self, node: Node, function: Function) -> StepKernel:
        """Make the Python kernel of a node, which computes with NumPy, or with CuPy if the node is on a device."""
        kernel = self._selection.find_python(node, function)
        if isinstance(kernel, str):
            return StepKernel(self._make_native_kernel(node, function, kernel))
        module = self._accelerator.xp if self._accelerator and node.device else np
        ctx = KernelContext(node, function, get_namespace(module), self._compile_body)
        if isinstance(kernel, Kernel):
            return StepKernel(kernel.code(node, ctx), kernel.mutable, host=kernel.host)
        return StepKernel(kernel(node, ctx))

    def _make_native_kernel(self, node: Node, function: Function, reason: str) -> Run:
        """Make a kernel for a node that no Python kernel supports: it compiles a native kernel for each set of input shapes.

        Raises CompileRefused with ``reason`` if no native kernel supports the node either.
        """
        if self._selection.has_native and self._selection.find_native(node, function):
            executable = PerShapeExecutable(isolate_node(node, function, function.constants), self._compile_static)
            # A value that is two inputs of the node is one input of the isolated Function.
            input_indices = [node.inputs.index(value.name) for value in executable.function.inputs]
            return lambda *arrays: tuple(executable.run([arrays[i] for i in input_indices]))
        raise CompileRefused(f"engine {self._selection.engine!r} does not support node {node.name!r} ({node.op}): {reason}")

    def _compile_body(self, function: Function) -> Callable[[Sequence[Any]], Any]:
        """Compile the body of a node to a callable. Its inputs may have other shapes than it declares."""
        if self._selection.has_native and self._has_native_kernel(function):
            return self._compile_by_shapes(function, MAX_COMPILED_BODY_SHAPES).run
        # The nodes of a body have no device yet. They run on the device of the node that has the body.
        device = self._accelerator.name if self._accelerator else ""
        return self.make_tape(plan_device_steps(function, device)).run


def _infer_types(function: Function) -> Function:
    # Most Functions that XRT compiles have all types already, and inference takes milliseconds.
    has_static_types = all(is_static(function.get_type(name)) for node in function.nodes for name in node.defined_names)
    return function if has_static_types else infer_shapes(function)
