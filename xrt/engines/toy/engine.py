"""The toy engine: the reference that all other engines are compared with."""

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
from xrt.engines.native import NativeLibrary, open_bundled, requires_native, warn_once_of_absence, why_not_shipped
from xrt.engines.toolkit.support import close_over, why_not_bodies
from xrt.engines.toy.devices import plan_device_steps, why_not_on_device
from xrt.engines.toy.kernels import namespace, ops
from xrt.engines.toy.native import MOST_SHAPES, ByShapes, KernelSelection, fold_segments, order_updates, select_kernel
from xrt.engines.toy.reference import isolate_node
from xrt.engines.toy.tape import DeviceExecutable, InterpretedExecutable, StepKernel, Tape, make_tape
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
    """Versions of XRT and of its libraries, cached because reading them takes milliseconds of a first call."""
    from importlib import metadata

    return f"xrt {__version__}", *(f"{name} {metadata.version(name)}" for name in ("numpy", "ml_dtypes", "onnx"))


@dataclass(frozen=True)
class Toy(GraphCompiler):
    """NumPy kernels for the operators of the common models, the ``onnx`` package's reference operators for the rest.

    The Python kernels are complete and simple rather than fast, and bit-exact wherever the operator is deterministic:
    ``toy{native=off}`` is the reference. Native kernels replace them for nodes of known shapes, with other rounding, on the
    threads of the budget, which also share large matrix products. Python kernels run on the calling thread; on a device they
    compute with its array module, one kernel call per node.
    """

    name: ClassVar[str] = "toy"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    supports_dynamic_shapes: ClassVar[bool] = True
    kernels: ClassVar[OpTable[Any]] = ops
    """The Python kernels. A derived engine replaces them by ``Toy.kernels.extend(name)`` and adds to that."""

    native: Literal["auto", "on", "off"] = "auto"
    """Use of native kernels: ``auto`` where XRT's library was built, ``on`` or an error, ``off`` never."""
    libraries: tuple[str, ...] = option((), names_files=True)
    """Paths of shared libraries with more kernels, tried before XRT's own of the same priority: the tutorial "Write a kernel"."""

    def __post_init__(self) -> None:
        """Open the libraries; raises OptionError or EngineUnavailable if one cannot be used."""
        check_options(self)
        if self.libraries and self.native == "off":
            raise OptionError(f"engine {self.name!r} is given libraries of native kernels and native='off'; give one of them")
        if self.native == "on" or self.libraries:
            requires_native()
        # Opened already here, so that a wrong path is an error of the option and not of a compile.
        open_bundled(self.libraries, with_shipped=False)

    def version(self) -> str:
        """The versions of XRT and of the libraries that may affect results; native libraries are identified by their bytes."""
        python = _list_versions()
        native = [f"native {library.signature}" for library in self._list_libraries()]
        return ", ".join([*python, *(native or ["no native kernels"])])

    def available_devices(self) -> tuple[str, ...]:
        """The supported devices: ``cpu``, and CUDA devices through CuPy."""
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
            raise CompileRefused(f"engine {self.name!r} is given no device for {context.device}; compile through XRTModule")
        # Before the check, because support of a node depends on its device.
        function = function if is_cpu else plan_device_steps(function, context.device)
        for node in function.nodes:
            if reason := self.why_not(node, function):
                raise CompileRefused(f"engine {self.name!r} cannot take node {node.name!r} ({node.op}): {reason}")
        if context.accelerator is not None and not is_cpu:  # native kernels run on the CPU only
            compiler = _Compiler(select_kernel(self.name, self.kernels, ()), context.threads, context.accelerator)
            return DeviceExecutable(function, compiler.make_tape, context.accelerator)
        # An engine that is only created or listed does not warn.
        if self.native == "auto":
            warn_once_of_absence()
        return _Compiler(self._select_kernels(), context.threads).compile(function)

    def _list_libraries(self) -> tuple[NativeLibrary, ...]:
        """The enabled libraries of native kernels, the user's before XRT's."""
        return open_bundled(self.libraries, with_shipped=self.native != "off")

    def _select_kernels(self) -> KernelSelection:
        return select_kernel(self.name, self.kernels, self._list_libraries())


MOST_SHAPES_OF_A_BODY = 2
"""Maximum number of native tapes per body. The shape of a Loop's carried value stays fixed, or changes each iteration."""


class _Compiler:
    """Compiles closed Functions to executables."""

    def __init__(self, choice: KernelSelection, threads: int, accelerator: Accelerator | None = None) -> None:
        """Store the available kernels and the thread budget of native kernels."""
        self._choice = choice
        self._threads = threads
        self._accelerator = accelerator

    def compile(self, function: Function) -> Executable:
        """Compile the Function; raises CompileRefused or CompileFailed, naming the node."""
        if not self._choice.has_native:
            return self._interpret(function)
        if all(is_static(value.type) for value in function.inputs):
            return self._compile_static(function)
        return self._compile_by_shapes(function) if self._has_native_kernel(function) else self._interpret(function)

    def make_tape(self, function: Function, segment: Callable[[Node], StepKernel | None] = lambda node: None) -> Tape:
        """Build a tape of Python kernels, and of the native runs that ``segment`` returns for some nodes."""
        return make_tape(
            function, lambda node: segment(node) or self._make_kernel(node, function), self._choice.engine, self._accelerator
        )

    def _compile_by_shapes(self, function: Function, most: int = MOST_SHAPES) -> ByShapes:
        return ByShapes(function, self._compile_static, lambda: self._interpret(function), most)

    def _compile_static(self, function: Function) -> Executable:
        """Compile to one native call if native kernels support all nodes, else to a tape of Python kernels and native runs."""
        segments = fold_segments(_infer_types(function), self._choice, self._threads)
        return segments.as_executable() or self._interpret(segments.function, segments.find_kernel)

    def _interpret(
        self, function: Function, segment: Callable[[Node], StepKernel | None] = lambda node: None
    ) -> InterpretedExecutable:
        # A Function that was not folded into native runs has no edges for its updates yet.
        function = order_updates(function)
        return InterpretedExecutable(function, self.make_tape(function, segment), self._threads, self._choice.has_native)

    def _has_native_kernel(self, function: Function) -> bool:
        """Whether a native kernel may support any node once the shapes are known."""
        function, choice = _infer_types(function), self._choice
        return any(choice.joins_chain(node, function) or choice.find_native(node, function) for node in function.nodes)

    def _make_kernel(self, node: Node, function: Function) -> StepKernel:
        """The Python kernel of a node, over the array module of its device."""
        kernel = self._choice.find_python(node, function)
        if isinstance(kernel, str):
            return StepKernel(self._make_native_kernel(node, function, kernel))
        on_device = self._accelerator is not None and bool(node.device)
        module = self._accelerator.xp if self._accelerator and on_device else np
        env = KernelContext(node, function, namespace(module), self._compile_body)
        if isinstance(kernel, Kernel):
            return StepKernel(kernel.code(node, env), kernel.mutable, host=kernel.host)
        return StepKernel(kernel(node, env))

    def _make_native_kernel(self, node: Node, function: Function, reason: str) -> Run:
        """Make a kernel that compiles native code per call shape; raise CompileRefused with ``reason`` if that is impossible."""
        if self._choice.has_native and self._choice.find_native(node, function):
            executable = ByShapes(isolate_node(node, function, function.constants), self._compile_static)
            # A value that the node reads twice is one input of the isolated Function.
            reads = list(dict.fromkeys(name for name in node.inputs if name not in function.constants))
            return lambda *arrays: tuple(executable.run(_select_arrays(node, arrays, reads)))
        raise CompileRefused(f"engine {self._choice.engine!r} cannot take node {node.name!r} ({node.op}): {reason}")

    def _compile_body(self, function: Function) -> Callable[[Sequence[Any]], Any]:
        """Compile a node's body to a callable; the shapes of its inputs may differ from the declared ones."""
        if self._choice.has_native and self._has_native_kernel(function):
            return self._compile_by_shapes(function, MOST_SHAPES_OF_A_BODY).run
        # The nodes of a body name no device; they run on the device of the node that has the body.
        device = self._accelerator.name if self._accelerator else ""
        return self.make_tape(plan_device_steps(function, device)).play


def _select_arrays(node: Node, arrays: Sequence[Any], reads: Sequence[str]) -> list[Any]:
    arrays_by_name = dict(zip(node.inputs, arrays, strict=True))
    return [arrays_by_name[name] for name in reads if name]


def _infer_types(function: Function) -> Function:
    """Infer the shapes of the Function's values as completely as possible."""
    # Inference takes milliseconds; most Functions that XRT compiles have all types already.
    has_static_types = all(is_static(function.get_type(name)) for node in function.nodes for name in node.defines)
    return function if has_static_types else infer_shapes(function)
