"""The base classes that an engine implements: `GraphCompiler`, `Executable`, and the `Accelerator` it receives for a device.

An engine is a frozen dataclass that derives from `GraphCompiler`. The fields are its options: they define the constructor, the
spec text ``"tvm{opt_level=3}"``, validation and a part of the signature. `why_not` and `compile` are mandatory; every other
method has a safe default.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from xrt.engines.contract.options import CompileContext, RunOptions
from xrt.errors import CompileRefused, RunFailed

if TYPE_CHECKING:
    from xrt.engines.contract.options import Precision
    from xrt.graph import Function, Node


class Executable(abc.ABC):
    """A compiled Function. Several threads can run it at the same time."""

    outputs_are_fresh: ClassVar[bool] = False
    """Whether outputs never share memory with an input, a constant or another output. If False, XRT copies outputs that might."""

    updates_inputs: ClassVar[bool] = True
    """Whether `run` may update an aliased input in place, so that XRT cannot repeat a failed call. Set it to False if `run`
    writes only to the buffers in ``options.out``."""

    survives_fork: bool = True
    """Whether a forked child may run it. If False, the child compiles again, and `run` in the child must raise RunFailed."""

    idle_threads: int = 0
    """Number of threads that stay alive between runs. The cache keeps only a few executables with idle threads."""

    concurrent_runs: int | None = None
    """The maximum number of runs that compute at the same time, while further runs wait; None for no limit."""

    def prepare(self) -> None:  # noqa: B027  # optional: doing nothing is a correct default
        """Allocate memory, bind inputs, choose kernels. Called once, before the first run."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Compute the outputs from the inputs, both in the order of the Function. Several threads may call it at the same time.

        Tensors are NumPy arrays of the declared type in native byte order, with any strides. A 0-d tensor is an array, not a
        scalar. Sequences are lists, and an absent optional is None. Allocate new outputs, or fill the buffers in ``options.out``
        and return these. Do not modify inputs, except that an output with an alias may overwrite the input of the alias; then
        return that input as the output. If `run` does not do this, XRT copies the output to the input.

        On another device, inputs and outputs are arrays of that device. Put the work on ``options.stream``, which is the current
        stream, and return without waiting for it.
        """

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        """Return the fastest function that does the same as `run` without options. The arguments of the function are the inputs.

        XRT calls this method after `prepare`, and the returned function until `close`, from several threads at the same time. By
        default the function calls `run`.
        """
        run = self.run
        return lambda *inputs: run(inputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Return a function that runs the Function on these arrays. Each call reads ``inputs`` again and writes to ``outputs``.

        All arrays are C-contiguous and of the declared types; inputs that are not tensors are passed unchanged. Threads do not
        call the function at the same time. An output shares memory with an input only if `inplace_pairs` lists the pair.
        """
        call = self.bind_outputs(outputs)
        return lambda: call(*inputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        """Like `bind`, but the inputs are arguments of the returned function. They need not be contiguous."""
        options = RunOptions(out=tuple(outputs))

        def call(*inputs: Any) -> None:
            # An engine may return new arrays and ignore `out`.
            for result, buffer in zip(self.run(inputs, options), outputs, strict=True):
                fill(buffer, result)

        return call

    def supports_io_binding(self) -> bool:
        """Whether XRT should use `bind` and `bind_outputs`: their functions take no longer than `run` and do not copy arrays."""
        return False

    def output_buffer_threshold(self) -> Sequence[int | None]:
        """For each output, the size in bytes from which XRT should pass a buffer in ``options.out`` for it.

        None if `run` would compute the output elsewhere and copy it to the buffer. The default, an empty sequence, means None for
        all outputs.
        """
        return ()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """The (input, output) index pairs for which a caller of `run` or `bind` may pass the input as the output buffer.

        The caller may do this for several pairs in one call if no input or output occurs twice. By default there are no pairs.
        """
        return ()

    def why_not_capturable(self) -> str | None:
        """Explain why a run on a device cannot be captured and replayed, for example as a CUDA graph; None if it can.

        A run can be captured if it enqueues the same work on the stream each time and does not wait. By default it cannot.
        """
        return "its engine does not promise that a run never waits"

    def memory(self) -> Sequence[MemoryUse] | None:
        """List the memory that the executable uses in addition to the constants of the Function; None, the default, if unknown.

        XRT calls this after `prepare`, and adds the size of the constants, which the engine need not report.
        """
        return None

    def close(self) -> None:  # noqa: B027  # optional: doing nothing is a correct default
        """Release all resources. Called once, after the last run."""


class GraphCompiler(abc.ABC):
    """An engine. Derive a ``@dataclass(frozen=True)`` from it; the fields are the options."""

    name: ClassVar[str]
    """The registered name: lower-case letters, digits and underscores."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Supported kinds of device: ``"cpu"``, ``"cuda"``."""
    supports_dynamic_shapes: ClassVar[bool] = False
    """Whether one executable can compute a Function for all sizes of its symbolic dims. If False, XRT replaces these dims by
    numbers and compiles once per set of sizes. If True, `why_not_dynamic` can still decline a Function."""
    compiles_in_parallel: ClassVar[bool] = True
    """Whether threads may call `compile` at once. If False, XRT compiles one region of this engine at a time."""
    deviations: ClassVar[tuple[Deviation, ...]] = ()
    """Known differences from the reference on special values. ``explain`` prints those that apply to a region; ``check=`` and
    ``verify`` report them as the likely cause of a difference."""

    @abc.abstractmethod
    def why_not(self, node: Node, function: Function) -> str | None:
        """Explain why this engine does not support `node`, or return None if it does.

        XRT calls this for every node of a model, so it must be fast (memoize by operator, version and types). It must not raise,
        and depend only on the node and the types and constants around it. If an operator is only supported inside a larger
        pattern, accept it here and raise `CompileRefused` in `compile` when the pattern is absent.
        """

    @abc.abstractmethod
    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Compile a Function whose nodes `why_not` all accepted.

        Raise CompileRefused with a reason if the Function cannot be compiled after all. XRT reports any other exception as
        CompileFailed. In both cases it places the nodes on other engines.
        """

    def why_not_dynamic(self, function: Function) -> str | None:
        """Explain why this Function should be compiled once per set of sizes; None if one executable should support all sizes.

        The Function is a region or a model with symbolic dims and known types. Decline it if the library cannot compile it for
        all sizes, or if the result would be slow. With ``shapes="one"`` XRT ignores this reason, so decline nodes with wrong
        results in `why_not` instead.
        """
        return None if self.supports_dynamic_shapes else f"engine {self.spec!r} compiles for fixed sizes"

    def version(self) -> str:
        """Return the versions of the engine and its libraries, which are part of the cache key of a compiled region.

        The default is the version of the distribution that contains the class, or ``"0"`` if there is none.
        """
        return _find_version(type(self).__module__)

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Explain which execution option the engine does not support, or return None. By default it supports only fp32."""
        precision = context.options.precision
        return None if precision == "fp32" else f"engine {self.name!r} does not support precision={precision!r}"

    def with_precision(self, precision: Precision) -> GraphCompiler | None:
        """Return the variant of this engine that computes float32 in ``precision`` on this machine; by default None.

        With ``int8`` the variant computes the matrix products and convolutions of a quantized Function in integers. With ``bf16``
        and ``fp16`` it computes an ordinary Function in that type. A variant that returns other results must have another spec.
        """
        return None

    def missing_features(self) -> str:
        """Describe optional features that are missing on this machine and how to enable them, for ``xrt engines``."""
        return ""

    def available_devices(self) -> tuple[str, ...]:
        """List the kinds in `devices` that the installed build of the library supports, for ``xrt engines``."""
        return self.devices

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        """Whether the engine fuses this DequantizeLinear of a constant with the nodes that read it, to compute them in integers.

        XRT calls this before placement. If the result is False (the default), XRT folds the node to a float constant.
        """
        return False

    def list_mutable_inputs(self, node: Node, function: Function) -> Sequence[int]:
        """List the indices of inputs that the engine can overwrite with the first output if no other node reads them.

        XRT calls this for nodes that update state, and prefers an engine that updates the state in place. By default there are no
        such inputs. Must be fast.
        """
        return ()

    def remarks(self, function: Function) -> tuple[str, ...]:
        """List notes for the user about the compilation of this Function, one sentence each, for ``explain``."""
        return ()

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Serialize the executable to bytes for `load`. Raises CompileRefused with a reason if that is not possible.

        The method may write to ``context.workdir`` and return a memory-mapped file from there. Do not use pickle: XRT stores the
        bytes with checksums for later processes on this machine, or in a bundle for other machines. XRT also stores the constants
        of the Function, so the bytes should refer to constants instead of copying them.
        """
        raise CompileRefused(f"engine {self.name!r} cannot save an executable")

    def is_worth_saving(self, function: Function) -> bool:
        """Whether loading this Function is faster than compiling it. Must be fast.

        If False, the disk cache does not store the Function, but bundles do.
        """
        return True

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        """Create the executable from the bytes of `save`. XRT calls `prepare` afterwards.

        The Function equals the compiled one, except for the names of inner values and nodes and the order of constants. Engine,
        versions and context are the same. ``data`` is read-only, aligned to 64 bytes and often memory-mapped. The executable may
        keep a reference to it. ``context.workdir`` is deleted after this method returns.
        """
        raise CompileRefused(f"engine {self.name!r} cannot load an executable")

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """Whether an executable that was compiled for ``saved`` threads can be loaded for ``threads`` threads.

        Return True if the library sets the thread count at load time. By default the counts must be equal.
        """
        return saved == threads

    @property
    def implementation(self) -> type[GraphCompiler]:
        """The class of the engine. A proxy returns the class of its inner engine."""
        return type(self)

    @cached_property  # used often, and the fields are frozen
    def spec(self) -> str:
        """The text form of the engine, as in ``"tvm{opt_level=3}"``: its name, and the fields that differ from their defaults."""
        from xrt.engines.contract.spec import format_spec

        return format_spec(self)

    def __str__(self) -> str:
        return self.spec


def fill(buffer: np.ndarray[Any, Any], result: Any) -> np.ndarray[Any, Any]:
    """Copy a result into a buffer and return the buffer. Raises RunFailed if their dtype or shape differs."""
    if result is not buffer:
        if result.dtype != buffer.dtype or result.shape != buffer.shape:
            types = [f"{array.dtype}{list(array.shape)}" for array in (result, buffer)]
            raise RunFailed(f"a result is {types[0]}, but the buffer for it is {types[1]}")
        np.copyto(buffer, result)
    return buffer


def prepare_or_close(executable: Executable) -> Executable:
    """Prepare an executable and return it. If that fails, close it, because the caller has no reference to it."""
    try:
        executable.prepare()
    except BaseException:
        executable.close()
        raise
    return executable


@cache
def _find_version(module: str) -> str:
    """Find the name and version of the distribution that contains a module; "0" if there is none."""
    from importlib import metadata

    package = module.partition(".")[0]
    # This scans all installed distributions.
    for distribution in metadata.packages_distributions().get(package, ()):
        return f"{distribution} {metadata.version(distribution)}"
    return "0"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A part of the memory of an executable."""

    name: str
    """A short label: ``"packed weights"``, ``"workspace"``."""
    nbytes: int | None
    """Size in bytes; None if the library does not report it."""
    why: str
    """Why it is needed, in one sentence."""
    per_call: bool = False
    """Whether each running call allocates it. Otherwise it is allocated from compile to close."""
    shared: bool = False
    """Whether it is a memory-mapped file, whose pages all processes of the host share."""


class Accelerator(abc.ABC):
    """A device with separate memory and streams. Work on a stream runs in order and does not block the calling thread."""

    name: str
    """``cuda:0``."""

    @property
    @abc.abstractmethod
    def hardware(self) -> str:
        """Model, compute capability and driver versions, which are part of the cache key of a compiled region."""

    @property
    def architecture(self) -> str:
        """The target of the device's compilers (``sm_90``); empty if the device has none."""
        return ""

    @property
    @abc.abstractmethod
    def xp(self) -> Any:
        """The array module: NumPy's functions for arrays of the device. They run on the current stream."""

    @property
    @abc.abstractmethod
    def has_addresses(self) -> bool:
        """Whether arrays and streams have addresses for native libraries (``__cuda_array_interface__``, ``ptr``)."""

    @abc.abstractmethod
    def address(self, value: Any) -> int:
        """Get the address of an array or a stream, to pass to a native library. Requires `has_addresses`."""

    @abc.abstractmethod
    def view_memory(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        """Make an array on memory at an address, which belongs to ``owner``. The array keeps the owner alive.

        Requires `has_addresses`.
        """

    @abc.abstractmethod
    def upload(self, array: np.ndarray[Any, Any]) -> Any:
        """Copy an array to the device on the current stream. The host array may change once this returns."""

    @abc.abstractmethod
    def download(self, array: Any) -> np.ndarray[Any, Any]:
        """Copy an array to the host, after waiting for the current stream."""

    @abc.abstractmethod
    def new_stream(self) -> Any:
        """Create a stream that does not synchronize with others."""

    @abc.abstractmethod
    def activate(self, stream: Any) -> AbstractContextManager[object]:
        """Return a context in which the device and the stream are current for this thread."""

    @abc.abstractmethod
    def follow(self, later: Any, earlier: Any) -> None:
        """Make the future work of stream ``later`` wait for the present work of stream ``earlier``, without blocking this thread.

        Does nothing if both are the same stream.
        """

    @abc.abstractmethod
    def wait(self, streams: Sequence[Any]) -> None:
        """Block the calling thread until the present work of the streams is done."""


DeviationKind: TypeAlias = Literal["nan", "infinity", "denormal", "integer", "float16", "empty"]
DEVIATIONS: Mapping[DeviationKind, str] = {
    "nan": "a NaN may come out as a number, or a number as NaN",
    "infinity": "an infinity may come out as a number or NaN",
    "denormal": "numbers below the smallest normal one may count as zero",
    "integer": "integers beyond 32 bits may wrap around, and those beyond 24 bits be rounded to float32",
    "float16": "intermediate results are kept in float32: they do not overflow and are not rounded",
    "empty": "the result for a tensor without elements may differ",
}
"""The description of each kind of deviation."""


class Deviation(NamedTuple):
    """A known difference of an engine from the reference on special values, such as NaN, that the engine does not correct."""

    kind: DeviationKind
    operators: tuple[str, ...] = ()
    """The operators concerned; empty for all."""

    def __str__(self) -> str:
        return f"{DEVIATIONS[self.kind]} ({', '.join(self.operators) or 'all operators'})"
