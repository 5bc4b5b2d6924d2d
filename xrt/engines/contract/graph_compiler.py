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
    """A compiled Function. It holds no state of a call, so that several threads can run it at once."""

    outputs_are_fresh: ClassVar[bool] = False
    """True promises that no output shares memory with an input, a constant or another output. If False, XRT copies."""

    updates_inputs: ClassVar[bool] = True
    """False promises that `run` writes only to buffers passed in ``options.out``. If True, a run may update an aliased input in
    place, and XRT does not retry a failed call."""

    survives_fork: bool = True
    """Whether a forked child may run it. If False, the child compiles again, and `run` in the child must raise RunFailed."""

    idle_threads: int = 0
    """Threads that stay alive between runs. The cache keeps only a few executables that have any."""

    concurrent_runs: int | None = None
    """The number of runs that can compute at the same time; others wait. None: no limit."""

    def prepare(self) -> None:  # noqa: B027  # optional: doing nothing is a correct default
        """Allocate memory, bind inputs, choose kernels. Called once, before the first run."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Compute the Function's outputs from its inputs, both in the order of the Function. Several threads may call it at once.

        Tensors are NumPy arrays of the declared type in native byte order, with any strides; 0-d tensors are arrays too, not
        scalars. Sequences are lists. An absent optional is None. Each run allocates new outputs; with ``options.out``, fill those
        buffers and return them. Never modify an input. There is one exception: an engine may write an output into the input that
        an alias of the Function pairs with it and return that input. If it does not, XRT copies.

        On another device, inputs and outputs are arrays of that device. Put the work on ``options.stream``, which is current, and
        return without waiting for it.
        """

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        """Return the fastest function that computes what `run` does without options. Its arguments are the inputs.

        Called after `prepare`. The result is valid until `close`; several threads may call it at once. The default wraps `run`.
        """
        run = self.run
        return lambda *inputs: run(inputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Bind the arrays of a call: the result reads ``inputs`` as they are at each call, and writes to ``outputs``.

        All arrays are C-contiguous and of the declared types; inputs that are not tensors are passed unchanged. No two threads
        call the result at once. A buffer shares memory with an input only if `inplace_pairs` lists the pair.
        """
        call = self.bind_outputs(outputs)
        return lambda: call(*inputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        """Like `bind`, but the inputs are arguments of the call and need not be contiguous."""
        options = RunOptions(out=tuple(outputs))

        def call(*inputs: Any) -> None:
            # Tolerate an engine that returns new arrays in spite of `out`.
            for result, buffer in zip(self.run(inputs, options), outputs, strict=True):
                if result is not buffer:
                    fill(buffer, result)

        return call

    def supports_io_binding(self) -> bool:
        """True promises that calls from `bind` and `bind_outputs` cost no more than `run` and do not copy. XRT then uses them."""
        return False

    def output_buffer_threshold(self) -> Sequence[int | None]:
        """Per output, the size in bytes from which `run` should compute directly into a caller's buffer.

        None for an output that would be computed elsewhere and copied. The default, an empty sequence, means None for every
        output.
        """
        return ()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """The (input, output) pairs where the output buffer of `run` or `bind` may be the memory of the input.

        XRT may use any of them together, each input and output at most once, and only if nothing reads the input afterwards. The
        default is none.
        """
        return ()

    def why_not_capturable(self) -> str | None:
        """Explain why a run on a device cannot be captured and replayed, as in a CUDA graph; None if it can.

        It can if each run only enqueues the same work on the stream and never waits. By default it cannot.
        """
        return "its engine does not promise that a run never waits"

    def memory(self) -> Sequence[MemoryUse] | None:
        """List the memory that the executable uses in addition to the Function's constants, which XRT counts.

        None, the default, means unknown; an empty sequence means that there is none. Called after `prepare`.
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
    """Whether one executable can serve every size of symbolic dims. If False, XRT binds the dims and compiles once per shape.
    `why_not_dynamic` can still decline a single Function."""
    compiles_in_parallel: ClassVar[bool] = True
    """Whether threads may call `compile` at once. If False, XRT compiles one region of this engine at a time."""
    deviations: ClassVar[tuple[Deviation, ...]] = ()
    """Known differences from the reference on special values. ``explain`` prints those that apply to a region; ``check=`` and
    ``verify`` report them as the likely cause of a difference."""

    @abc.abstractmethod
    def why_not(self, node: Node, function: Function) -> str | None:
        """Explain why this engine does not support `node`, or return None if it does.

        XRT calls it for every node of a model. It must be pure and cheap (memoize by operator, version and types), and it never
        raises. The answer is about the node in isolation. If an operator is only supported inside a larger pattern, accept it
        here and raise `CompileRefused` in `compile` when the pattern is absent.
        """

    @abc.abstractmethod
    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Compile a Function whose nodes `why_not` all accepted.

        Raise CompileRefused with a reason if it cannot be compiled after all. Any other exception is reported as CompileFailed.
        In both cases XRT places those nodes on other engines.
        """

    def why_not_dynamic(self, function: Function) -> str | None:
        """Explain why this Function should be compiled once per set of sizes; None if one executable should serve all.

        The Function is a region or a model with symbolic dims and known types. Decline it if the library cannot compile it for
        all sizes, or would be slow; ``shapes="one"`` ignores this reason. Decline nodes with wrong results in `why_not`.
        """
        return None if self.supports_dynamic_shapes else f"engine {self.spec!r} compiles for fixed sizes"

    def version(self) -> str:
        """Return the versions of the engine and its libraries, which are part of the cache key of a compiled region.

        The default is the version of the distribution that contains the class, or ``"0"`` if there is none.
        """
        return _find_version(type(self).__module__)

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Explain which of the execution options the engine does not implement, or return None.

        By default an engine computes in the types of the model and declines a reduced precision.
        """
        precision = context.options.precision
        return None if precision == "fp32" else f"engine {self.name!r} does not honour precision={precision!r}"

    def lower_precision(self, precision: Precision) -> GraphCompiler | None:
        """Return the variant of this engine that computes float32 in ``precision`` on this machine; by default None.

        For ``int8`` it computes the products and convolutions of a quantized Function in integers; for ``bf16`` and ``fp16`` it
        lowers the precision of an ordinary Function. If its results differ, its spec must differ too. It may query the library.
        """
        return None

    def missing_features(self) -> str:
        """Describe optional features that are missing on this machine and how to enable them, for ``xrt engines``."""
        return ""

    def available_devices(self) -> tuple[str, ...]:
        """List the kinds in `devices` that the installed build of the library supports, for ``xrt engines``."""
        return self.devices

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        """Whether to keep a DequantizeLinear of constants because the engine computes its readers in integers.

        Called for each such node before placement. If False, the default, XRT folds the node. Pure and cheap.
        """
        return False

    def list_mutable_inputs(self, node: Node, function: Function) -> Sequence[int]:
        """List the indices of inputs that the engine can overwrite with the first output if nothing else reads them.

        Called for nodes that update state, for which XRT prefers an engine that updates in place to one that copies. Pure and
        cheap. The default is none; an engine with an `OpTable` uses the ``mutable`` of its kernels.
        """
        return ()

    def remarks(self, function: Function) -> tuple[str, ...]:
        """List notes for the user on how the engine runs this Function, one sentence each, for ``explain``."""
        return ()

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Serialize the executable to bytes for `load`. Raises CompileRefused with a reason if it cannot.

        It may write to ``context.workdir`` and return a memory-mapped file from there. The bytes are data, never a pickle: XRT
        stores them with checksums for a later process on this machine, or in a bundle for another machine. XRT also stores the
        Function's constants; refer to them instead of copying them.
        """
        raise CompileRefused(f"engine {self.name!r} cannot save an executable")

    def is_worth_saving(self, function: Function) -> bool:
        """Whether loading this Function is faster than compiling it. If False, the disk cache does not store it.

        Pure and cheap. True by default. `save` must work for every Function regardless.
        """
        return True

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        """Create the executable from the bytes of `save`, not yet prepared.

        The Function equals the compiled one except for the names of inner values and nodes and the order of its constants;
        engine, versions and context are the same. ``data`` is read-only, aligned to 64 bytes, often memory-mapped, and may be
        kept; ``context.workdir`` is deleted after this returns.
        """
        raise CompileRefused(f"engine {self.name!r} cannot load an executable")

    def can_load_with_threads(self, saved: int, threads: int) -> bool:
        """Whether an executable saved with ``saved`` threads can be loaded with ``threads`` without recompiling.

        Return True if the library sets the thread count at load time. The default requires an equal budget.
        """
        return saved == threads

    @property
    def implementation(self) -> type[GraphCompiler]:
        """The class that compiles; only a proxy overrides it."""
        return type(self)

    @cached_property  # plans use it often, and the fields are frozen
    def spec(self) -> str:
        """The engine in text form, as in ``"tvm{opt_level=3}"``: its name, and the fields that differ from their defaults."""
        from xrt.engines.contract.spec import format_spec

        return format_spec(self)

    def __str__(self) -> str:
        return self.spec


def fill(buffer: np.ndarray[Any, Any], result: Any) -> np.ndarray[Any, Any]:
    """Copy a result into a buffer and return the buffer. Raises RunFailed if their dtype or shape differs."""
    if result.dtype != buffer.dtype or result.shape != buffer.shape:
        actual, expected = (f"{array.dtype}{list(array.shape)}" for array in (result, buffer))
        raise RunFailed(f"a result is {actual} where the buffer for it is {expected}")
    np.copyto(buffer, result)
    return buffer


def prepare_or_close(executable: Executable) -> Executable:
    """Prepare an executable and return it; close it if that fails, because the caller then has no reference to it."""
    try:
        executable.prepare()
    except BaseException:
        executable.close()
        raise
    return executable


@cache
def _find_version(module: str) -> str:
    """Find name and version of the distribution that contains a module. Cached, as it scans all installed distributions."""
    from importlib import metadata

    package = module.partition(".")[0]
    for distribution in metadata.packages_distributions().get(package, ()):
        return f"{distribution} {metadata.version(distribution)}"
    return "0"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One use of memory and the reason for it."""

    name: str
    """A short label: ``"packed weights"``, ``"workspace"``."""
    nbytes: int | None
    """Size in bytes; None if the library does not report it."""
    why: str
    """Why it is needed, in one sentence."""
    per_call: bool = False
    """True: allocated by each running call. False: held from compile to close."""
    shared: bool = False
    """Whether the memory is a mapped file: all processes of the host share its pages, and the system may evict them."""


class Accelerator(abc.ABC):
    """A device with its own memory and streams. Work on a stream runs in order and does not block the calling thread."""

    name: str
    """``cuda:0``."""

    @property
    @abc.abstractmethod
    def hardware(self) -> str:
        """Model, compute capability and driver versions; part of the signature."""

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
        """Whether arrays and streams have addresses to pass to a native library (``__cuda_array_interface__``, ``ptr``)."""

    @abc.abstractmethod
    def address(self, value: Any) -> int:
        """Get the address of an array or a stream, to pass to a native library. Requires `has_addresses`."""

    @abc.abstractmethod
    def at(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        """Make an array over memory of ``owner``, which the array keeps alive. Requires `has_addresses`."""

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
        """Make work enqueued on ``later`` from now on wait for the work now on ``earlier``, without blocking this thread.

        Does nothing if both are the same stream.
        """

    @abc.abstractmethod
    def wait(self, streams: Sequence[Any]) -> None:
        """Block the calling thread until all work now on the streams is done."""


DeviationKind: TypeAlias = Literal["nan", "infinity", "denormal", "integer", "float16", "empty"]
"""Special values on which an engine may differ from the reference."""
DEVIATIONS: Mapping[DeviationKind, str] = {
    "nan": "a NaN may come out as a number, or a number as NaN",
    "infinity": "an infinity may come out as a number or NaN",
    "denormal": "numbers below the smallest normal one may count as zero",
    "integer": "integers beyond 32 bits may wrap around, and those beyond 24 bits be rounded to float32",
    "float16": "intermediate results are kept in float32: they do not overflow and are not rounded",
    "empty": "the result for a tensor without elements may differ",
}
"""Describes each kind of deviation."""


class Deviation(NamedTuple):
    """A difference from the reference on special values that an engine declares instead of working around it."""

    kind: DeviationKind
    operators: tuple[str, ...] = ()
    """The operators concerned; empty for all."""

    def __str__(self) -> str:
        return f"{DEVIATIONS[self.kind]} ({', '.join(self.operators) or 'all operators'})"
