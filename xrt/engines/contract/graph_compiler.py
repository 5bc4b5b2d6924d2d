"""The contract between XRT and an engine: what an engine author writes.

An engine is a frozen dataclass that derives from `GraphCompiler`. Its fields are its options: they give the
constructor, the spec text ``"tvm{opt_level=3}"``, validation and a part of the signature. Two methods are mandatory,
`why_not` and `compile`; everything else has an honest default.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from xrt.engines.contract.options import CompileContext, RunOptions
from xrt.errors import CompileRefused, OptionError, RunFailed
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.options import Precision
    from xrt.graph import Function, Node

__all__ = [
    "DEVIATIONS",
    "Accelerator",
    "Deviation",
    "DeviationKind",
    "Executable",
    "GraphCompiler",
    "MemoryUse",
    "fill",
    "find_special_values",
    "list_deviations",
    "mark_special_elements",
    "name_likely_cause",
    "peak_of_values",
]


class Executable(abc.ABC):
    """What a GraphCompiler makes of one Function. It holds no state of a call: threads may run it at once."""

    outputs_are_fresh: ClassVar[bool] = False
    """Whether no output ever shares memory with an input, a constant or another output. False is conservative: XRT copies."""

    updates_inputs: ClassVar[bool] = True
    """Whether `run` may write to an input that an alias names without being given it as a buffer. True is conservative: a call
    that failed is then not repeated."""

    survives_fork: bool = True
    """Whether a forked child may run it. A child compiles anew what it may not, and a run of its parent's raises RunFailed."""

    idle_threads: int = 0
    """Threads of its own that it keeps from one run to the next; a cache keeps few executables that have some."""

    concurrent_runs: int | None = None
    """How many runs compute at the same time, where it is bounded: a further one waits. None: as many as threads make."""

    def prepare(self) -> None:  # noqa: B027  # optional on purpose: an empty default is the honest one
        """Allocate, bind and choose kernels; called once before the first run."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Return the Function's outputs, in its order, from its inputs, in its order.

        Tensors are NumPy arrays of the declared type (0-d ones too, never scalars), native byte order, any strides. Sequences are
        lists. An absent optional is None. Every run allocates new outputs. Inputs are not modified, with one exception: an engine
        may write an output into the input that an alias of the Function pairs with it, and return that input in its place. If it
        does not, XRT copies. With ``options.out`` the given buffers contain the outputs afterwards, and are returned in their
        places.

        On another device, inputs and outputs are arrays of that device. The work is put on ``options.stream``, which is current,
        and the run returns without waiting for it.
        """

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        """Return the quickest way to `run` without options: a call that takes the inputs one by one, valid until `close`.

        Asked for after `prepare`. Threads may make the call at once.
        """
        run = self.run
        return lambda *inputs: run(inputs)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Return a call that reads those arrays as they are when it is made, and leaves the outputs in those buffers.

        All are C-contiguous and of the declared types; a value that is no tensor is handed in as it is. No two threads
        make one bound call at once. A buffer shares memory with an input only where `in_place` allows it.
        """
        call = self.bind_outputs(outputs)
        return lambda: call(*inputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        """Return a call like `bind`'s that takes the inputs one by one; they need not be contiguous."""
        options = RunOptions(out=tuple(outputs))

        def call(*inputs: Any) -> None:
            for result, buffer in zip(self.run(inputs, options), outputs, strict=True):
                if result is not buffer:
                    fill(buffer, result)

        return call

    def supports_io_binding(self) -> bool:
        """Whether calls made by `bind` and `into` cost no more than `run` and compute without a copy. False is conservative."""
        return False

    def output_buffer_threshold(self) -> Sequence[int | None]:
        """Return, per output, the bytes from which `run` better computes into a given buffer than into one of its own.

        None where it would compute elsewhere and copy; an empty sequence, the default, says so of every output.
        """
        return ()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """Return (input, output) pairs where `run` and `bind` are right if the output's buffer is the input's own memory.

        XRT may use any of them together, none with an input or an output twice, and only if nothing reads the input afterwards.
        The default proposes nothing.
        """
        return ()

    def why_not_capturable(self) -> str | None:
        """Return why a run on a device cannot be recorded once and replayed (a CUDA graph); None when it can.

        It can where a run does nothing but put work on the stream, the same each time, and waits for nothing. No is conservative.
        """
        return "its engine does not promise that a run waits for nothing"

    def memory(self) -> Sequence[MemoryUse] | None:
        """Return the executable's memory uses other than the Function's constants, each with its reason.

        XRT counts the constants. None, the default, means that the engine does not report memory; an empty sequence means that
        there is none. Called after `prepare`.
        """
        return None

    def close(self) -> None:  # noqa: B027  # optional on purpose: an empty default is the honest one
        """Give back what the executable holds; called once, after the last run."""


_SPEC = "spec, once it was computed"
"""Where an engine keeps its spec; no field can have that name."""


class GraphCompiler(abc.ABC):
    """An engine. Derive a ``@dataclass(frozen=True)`` from it; the fields are the options."""

    name: ClassVar[str]
    """The engine's name, by which it is registered: lower case, letters, digits and underscores."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    """Kinds of device on which it runs: ``"cpu"``, ``"cuda"``."""
    supports_dynamic_shapes: ClassVar[bool] = False
    """Whether the engine is given Functions with symbolic dims, of which one executable serves every size. False is conservative:
    one is compiled per shape. `why_not_dynamic` answers for one Function."""
    compiles_in_parallel: ClassVar[bool] = True
    """Whether threads may call `compile` at once. With False XRT compiles one region of the engine at a time."""
    deviations: ClassVar[tuple[Deviation, ...]] = ()
    """Where the library differs from the reference on special values. ``explain`` prints those that apply to a region, and
    ``check=`` and ``verify`` name them as the likely cause of a difference."""

    @abc.abstractmethod
    def why_not(self, node: Node, function: Function) -> str | None:
        """Return why the engine cannot take the node, as one sentence for a person; None when it can.

        Asked of every node of a model: pure, cheap (memoise by operator, version and types) and total; it never raises.
        It answers for the node as a Function of its own; what only a pattern would support is refused at compile.
        """

    @abc.abstractmethod
    def compile(self, function: Function, context: CompileContext) -> Executable:
        """Return an executable for a Function all of whose nodes `why_not` was silent about.

        Raises CompileRefused, with the reason, for what it can after all not take; XRT then places those nodes
        elsewhere. Any other exception is reported as CompileFailed, and the nodes are placed elsewhere too.
        """

    def why_not_dynamic(self, function: Function) -> str | None:
        """Return why the Function is better compiled for each set of sizes than once for all; None where once will do.

        Asked of a Function with symbolic dims whose types are known, a region or a model. The library may be unable, or slow;
        ``dynamic="always"`` asks for the executable all the same. What the library gets wrong in a node with symbolic dims,
        `why_not` declines. The default is the answer of `supports_dynamic_shapes`.
        """
        return None if self.supports_dynamic_shapes else f"engine {self.spec!r} compiles for fixed sizes"

    def version(self) -> str:
        """Return the versions of the engine and of the libraries it loads; part of the signature.

        The default is the installed version of the distribution that holds the class, ``"0"`` outside of any.
        """
        return _distribution_version(type(self).__module__)

    def unsupported_options(self, context: CompileContext) -> str | None:
        """Return which execution option the engine does not honour, and why; None when it honours all that are asked.

        The default honours only the defaults.
        """
        asked = context.options.unusual()
        if not asked:
            return None
        shown = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        why = ": nothing limits what it allocates while it computes" if "max_workspace_size" in asked else ""
        return f"engine {self.name!r} does not honour {shown}{why}"

    def lower_precision(self, precision: Precision) -> GraphCompiler | None:
        """Return the engine that may compute float32 in that precision here; None where none does, which is the default.

        For ``int8`` it computes the products and convolutions of a quantized Function in integers; for others it lowers what it
        computes of an ordinary Function. Its spec differs wherever its results do. It may ask the library.
        """
        return None

    def missing_features(self) -> str:
        """Return what the engine does without here, though it could have it, and how to mend that; ``xrt engines`` says it."""
        return ""

    def available_devices(self) -> tuple[str, ...]:
        """Return those of `devices` that the installed build of the library can serve; ``xrt engines`` shows them."""
        return self.devices

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        """Whether a DequantizeLinear of constants is to stay, since the engine computes what reads it in integers.

        Asked before the model is placed, of each such node; otherwise XRT computes it once. Pure and cheap. The default is no.
        """
        return False

    def list_mutable_inputs(self, node: Node, function: Function) -> Sequence[int]:
        """Return the node's inputs, by place, over which the engine may write its first result where nothing else reads them.

        Asked of nodes that update state: what one engine of a list would copy goes to one that writes in place. Pure and cheap.
        An engine with an `OpTable` answers by the ``mutable`` of its kernels. The default is none.
        """
        return ()

    def remarks(self, function: Function) -> tuple[str, ...]:
        """Return what a person should know of the engine's work on a function that it takes, one sentence each."""
        return ()

    @classmethod
    def share_pool(cls, threads: int) -> None:
        """Let all executables that the engine makes from now on run on one pool of so many threads.

        Raises OptionError where the library has no such pool, or where it is too late for one.
        """
        raise OptionError(f"engine {cls.name!r} has no pool of threads that all its executables could share")

    def save(self, executable: Executable, context: CompileContext) -> bytes | memoryview:
        """Return the executable as bytes that `load` reads; raises CompileRefused, with the reason, where it cannot.

        It may write to ``context.workdir``, and return a file there as mapped memory. What is saved is data: it is kept,
        with checksums, for a later process on the same machine, or in a bundle for another one. XRT keeps the Function's
        constants apart; what refers to them instead of holding them stays small.
        """
        raise CompileRefused(f"engine {self.name!r} cannot save an executable")

    def is_worth_saving(self, function: Function) -> bool:
        """Whether a later process loads an executable sooner than it compiles one; where not, the disk cache keeps none.

        Pure and cheap. The default is yes; `save` must work for every Function, whatever the answer.
        """
        return True

    def load(self, data: memoryview, function: Function, context: CompileContext) -> Executable:
        """Return the executable that `save` wrote, not yet prepared.

        The Function is equal to the one that was compiled but for the names of inner values and nodes, and the order in
        which it lists its constants; engine, versions and context are the same. ``data`` is read-only, aligned to 64
        bytes, often a mapped file, and may be kept; ``context.workdir`` is gone when this returns.
        """
        raise CompileRefused(f"engine {self.name!r} cannot load an executable")

    def serves_threads(self, saved: int, threads: int) -> bool:
        """Whether what `save` wrote under a budget of ``saved`` threads is right and as quick under a budget of ``threads``.

        It is where `load` gives the library its threads and the compile does not depend on their number. The default is
        conservative: a compiled form serves its own budget.
        """
        return saved == threads

    @property
    def implementation(self) -> type[GraphCompiler]:
        """The class whose code compiles: the engine's own, except for a proxy."""
        return type(self)

    @property
    def spec(self) -> str:
        """The engine as text: its name, and in braces the fields that differ from their defaults."""
        known: str | None = self.__dict__.get(_SPEC)
        if known is None:
            from xrt.engines.contract.spec import format_spec

            known = self.__dict__[_SPEC] = format_spec(self)  # its fields are frozen, and a plan asks for it at every turn
        return known

    def __str__(self) -> str:
        return self.spec


def fill(buffer: np.ndarray[Any, Any], result: Any) -> None:
    """Copy a result into a buffer of exactly its type and shape; raises RunFailed for another, which NumPy would cast."""
    if result.dtype != buffer.dtype or result.shape != buffer.shape:
        given, due = (f"{array.dtype}{list(array.shape)}" for array in (result, buffer))
        raise RunFailed(f"a result is {given} where the buffer for it is {due}")
    np.copyto(buffer, result)


@cache
def _distribution_version(module: str) -> str:
    """Return the version of the distribution that has a module; a look at all that is installed, which every compile needs."""
    from importlib import metadata

    package = module.partition(".")[0]
    for distribution in metadata.packages_distributions().get(package, ()):
        return f"{distribution} {metadata.version(distribution)}"
    return "0"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One use of memory, with the reason for it."""

    name: str
    """What it is, in a word or two: ``"packed weights"``, ``"workspace"``."""
    nbytes: int | None
    """How much; None where the library does not tell."""
    why: str
    """Why it is needed, as one sentence for a person."""
    per_call: bool = False
    """Whether each call takes it while it runs; otherwise it is held from the compile to the close."""
    shared: bool = False
    """Whether it is in a mapped file, whose pages all processes of the host share, and which the system may drop."""


def peak_of_values(function: Function) -> int | None:
    """Return the most bytes that values computed inside of a Function take at once; None where an extent is not known.

    Each is alive from the node that makes it to the last that reads it; outputs, inputs and constants do not count,
    and what is inside of bodies neither. Linear.
    """
    from xrt.graph.memory_forecast import estimate_peak

    return estimate_peak(function, {value.name for value in function.outputs})


class Accelerator(abc.ABC):
    """A device with its own memory and streams. Work on a stream begins after earlier work there, without blocking a thread."""

    name: str
    """One name of it: ``cuda:0``."""

    @property
    @abc.abstractmethod
    def hardware(self) -> str:
        """Model, capability and versions of what drives it: an ingredient of the signature."""

    @property
    def architecture(self) -> str:
        """What code is compiled for, as the device's compilers call it (``sm_90``); empty where nothing is."""
        return ""

    @property
    @abc.abstractmethod
    def xp(self) -> Any:
        """The array module: NumPy's functions over the device's arrays. They work on the current stream."""

    @property
    @abc.abstractmethod
    def has_addresses(self) -> bool:
        """Whether arrays and streams have addresses that a library can be handed (``__cuda_array_interface__``, ``ptr``)."""

    @abc.abstractmethod
    def address(self, value: Any) -> int:
        """Return the address of an array or a stream, for a library; only if the device `has_addresses`."""

    @abc.abstractmethod
    def at(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        """Return an array over memory of another owner, which it keeps alive; only where the device `has_addresses`."""

    @abc.abstractmethod
    def upload(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy on the device, made on the current stream; the host's array may change once this returns."""

    @abc.abstractmethod
    def download(self, array: Any) -> np.ndarray[Any, Any]:
        """Return a copy on the host, which waits for the current stream."""

    @abc.abstractmethod
    def new_stream(self) -> Any:
        """Return a stream that waits for no other."""

    @abc.abstractmethod
    def activate(self, stream: Any) -> AbstractContextManager[object]:
        """Make the device and the stream current for this thread, as long as the context lasts."""

    @abc.abstractmethod
    def follow(self, later: Any, earlier: Any) -> None:
        """Make later work on one stream wait for the work now on another; no thread blocks. Does nothing for one and the same."""

    @abc.abstractmethod
    def wait(self, streams: Sequence[Any]) -> None:
        """Let the calling thread wait for all that is on the streams by now."""


EXACT_IN_FLOAT32 = 1 << 24
"""The largest magnitude up to which float32 holds every integer."""
DeviationKind: TypeAlias = Literal["nan", "infinity", "denormal", "integer", "float16", "empty"]
"""The special values on which an engine may differ from the reference."""
DEVIATIONS: Mapping[DeviationKind, str] = {
    "nan": "a NaN may come out as a number, or a number as NaN",
    "infinity": "an infinity may come out as a number or NaN",
    "denormal": "numbers below the smallest normal one may count as zero",
    "integer": "integers beyond 32 bits may wrap around, and those beyond 24 bits be rounded to float32",
    "float16": "intermediate results are kept in float32: they do not overflow and are not rounded",
    "empty": "the result of a tensor without elements may be another one",
}
"""The effect of each kind."""


class Deviation(NamedTuple):
    """A difference from the reference on special values that an engine declares instead of working around it."""

    kind: DeviationKind
    operators: tuple[str, ...] = ()
    """The operators concerned; empty for all."""

    def __str__(self) -> str:
        return f"{DEVIATIONS[self.kind]} ({', '.join(self.operators) or 'all operators'})"


_DEVIATING_TYPES: Mapping[DeviationKind, frozenset[DType]] = {
    "integer": frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}),
    "float16": frozenset({DType.FLOAT16, DType.BFLOAT16}),
}


def list_deviations(engine: type[GraphCompiler], function: Function) -> list[Deviation]:
    """List the deviations of the engine that apply to the Function: those of its operators and element types."""
    used = {node.op_type for _, node in function.walk() if not node.domain}
    types = {t.dtype for holder, _ in function.walk() for t in holder.types.values() if isinstance(t, TensorType)}
    types |= {v.type.dtype for v in (*function.inputs, *function.outputs) if isinstance(v.type, TensorType)}
    found = []
    for kind, operators in engine.deviations:
        concerned = tuple(sorted(used & set(operators)))
        if (concerned or not operators) and (kind not in _DEVIATING_TYPES or types & _DEVIATING_TYPES[kind]):
            found.append(Deviation(kind, concerned))
    return found


_limits: Callable[[Any], Any] = ml_dtypes.finfo


def find_special_values(values: Iterable[Any]) -> set[DeviationKind]:
    """Find the kinds of special values that arrays, or lists of them, hold."""
    found: set[DeviationKind] = set()
    for value in values:
        if isinstance(value, list):
            found |= find_special_values(value)
        elif isinstance(value, np.ndarray) and not value.size:
            found.add("empty")
        elif isinstance(value, np.ndarray):
            found |= {kind for kind, mask in mark_special_elements(value).items() if mask.any()}
    return found


def mark_special_elements(array: np.ndarray[Any, Any]) -> dict[DeviationKind, np.ndarray[Any, Any]]:
    """Mark the elements of an array that are special values, for each kind that its type can hold."""
    if array.dtype.kind in "iu" and array.dtype.itemsize >= 4:
        return {"integer": (array < -EXACT_IN_FLOAT32) | (array > EXACT_IN_FLOAT32)}
    if array.dtype.kind not in "fV" or not DType.of(array).is_float:
        return {}
    wide = np.abs(array.astype(np.float64))
    nan, infinite = np.isnan(wide), np.isinf(wide)
    denormal = (wide > 0) & (wide < float(_limits(array.dtype).smallest_normal))
    marks: dict[DeviationKind, np.ndarray[Any, Any]] = {"nan": nan, "infinity": infinite, "denormal": denormal}
    return marks | {"float16": nan | infinite} if array.dtype.itemsize == 2 else marks


def name_likely_cause(engine: type[GraphCompiler], function: Function, values: Iterable[Any]) -> str:
    """Name the deviations that special values among these make the likely cause of a difference; empty if there are none."""
    kinds = find_special_values(values)
    if "infinity" in kinds:
        kinds.add("float16")  # where the Function has such values, they may have overflowed
    if not kinds:
        return ""
    from xrt.passes import infer_shapes  # only where something differs

    found = [one for one in list_deviations(engine, infer_shapes(function)) if one.kind in kinds]
    return f"likely a known deviation of engine {engine.name!r}: {'; '.join(map(str, found))}" if found else ""
