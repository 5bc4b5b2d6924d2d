"""Simulated devices with the runtime's `Device` interface, and functions to use them in place of CUDA devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from xrt.errors import DeviceError, InputError
from xrt.runtime.devices.interface import Device, GraphCapture, MemoryInfo, PendingCopy
from xrt.runtime.devices.registry import override_devices
from xrt.testing.simulated.array import (
    POISON,
    Event,
    Order,
    SimulatedArray,
    SimulatedMachine,
    SimulatedMemoryError,
    SimulatedStream,
    WorkItem,
    apply,
    enqueue_write,
    find_arrays,
)


class DeviceWorld:
    """The simulated devices of a machine, with each thread's current device and streams."""

    def __init__(self, machine: SimulatedMachine, count: int) -> None:
        self.machine = machine
        self.count = count
        self.devices: dict[int, SimulatedDevice] = {}
        self._thread = threading.local()

    def device(self, index: int) -> SimulatedDevice:
        """Get a device by index; raises DeviceError if the index is too large."""
        if index >= self.count:
            raise DeviceError(f"device 'cuda:{index}' is not available: there are {self.count} simulated devices")
        with self.machine.lock:  # SimulatedDevice() adds its default stream to the machine
            if index not in self.devices:
                self.devices[index] = SimulatedDevice(self, index)
            return self.devices[index]

    def current(self) -> SimulatedDevice:
        stack = self._stack()
        return stack[-1][0] if stack else self.device(0)

    def stream(self, device: SimulatedDevice) -> SimulatedStream:
        """The current stream of this thread on a device, or the default stream of the device."""
        return next((stream for owner, stream in reversed(self._stack()) if owner is device), device.default)

    def _stack(self) -> list[tuple[SimulatedDevice, SimulatedStream]]:
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        return self._thread.stack  # type: ignore[no-any-return]

    @contextmanager
    def activate(self, device: SimulatedDevice, stream: SimulatedStream) -> Iterator[None]:
        """Make a device and a stream current in this thread, within a ``with`` block."""
        self._stack().append((device, stream))
        try:
            yield
        finally:
            self._stack().pop()


class SimulatedDevice(Device):
    """A device whose memory is host memory and whose work may be executed late."""

    has_addresses = False
    hardware = "simulated"

    def __init__(self, world: DeviceWorld, index: int) -> None:
        self.world = world
        self.machine = world.machine
        self.index = index
        self.name = f"cuda:{index}"
        self.default = self.machine.stream(self.name)
        self._module = SimulatedModule(self)

    @property
    def xp(self) -> SimulatedModule:
        return self._module

    def upload(self, array: np.ndarray[Any, Any]) -> SimulatedArray:
        # A copy, because the caller may change the array before the stream gets to the transfer.
        with self.activate(self.current_stream()):
            return self._send(array, self.current_stream(), np.array(array))

    def download(self, array: SimulatedArray) -> np.ndarray[Any, Any]:
        stream = self.current_stream()
        with self.activate(stream):
            copy = self.copy_out(array, stream)
        self.wait([stream])
        return np.array(copy.array)

    def address(self, value: Any) -> int:
        raise TypeError("a simulated device has no addresses that a library could use")

    def view_memory(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        raise TypeError("a simulated device has no addresses that a library could use")

    def owns(self, value: object) -> bool:
        return isinstance(value, SimulatedArray) and value.device is self

    def adopt(self, array: Any) -> SimulatedArray:
        try:
            imported = array.__dlpack__()
        except (AttributeError, BufferError) as error:
            raise InputError(f"an array of type {type(array).__name__} cannot be read through DLPack: {error}") from error
        if not self.owns(imported):
            raise DeviceError(f"an array is not on {self.name}; copy it there")
        self.follow(self.current_stream(), imported.block.state.stream)
        return imported  # type: ignore[no-any-return]

    def memory(self) -> MemoryInfo:
        return MemoryInfo(self.machine.limit - self.machine.used.get(self.name, 0), self.machine.limit)

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: SimulatedStream) -> SimulatedArray:
        with self.activate(stream):
            return SimulatedArray.empty(self, shape, dtype)

    def find_shortage(self, error: BaseException) -> int | None:
        return error.nbytes if isinstance(error, SimulatedMemoryError) else None

    def copy_in(self, host: np.ndarray[Any, Any], stream: SimulatedStream) -> PendingCopy:
        with self.activate(stream):
            pinned = PinnedMemory(host)
            return PendingCopy(self._send(host, stream, pinned.content, pinned.check), pinned)

    def _send(self, host: Any, stream: SimulatedStream, content: Any, check: Callable[[], None] = lambda: None) -> SimulatedArray:
        array = SimulatedArray.empty(self, host.shape, host.dtype)
        target = array._view

        def work() -> None:
            check()
            target[...] = content

        self.machine.copies.append("in")
        self.machine.put(stream, WorkItem("a copy in", work, (), (array.block.state,)))
        return array

    def copy_out(self, array: SimulatedArray, stream: SimulatedStream) -> PendingCopy:
        source = array._view
        # The host sees garbage until it has waited for the copy.
        pinned = np.full(source.nbytes, POISON, np.uint8).view(source.dtype).reshape(source.shape)

        def work() -> None:
            pinned[...] = source

        self.machine.copies.append("out")
        self.machine.put(stream, WorkItem("a copy out", work, (array.block.state,), ()))
        return PendingCopy(pinned, array)

    def copy_across(self, array: SimulatedArray, source: Device, stream: SimulatedStream) -> PendingCopy:
        copied = self.allocate(array.shape, array.dtype, stream)
        target, view = copied._view, array._view

        def work() -> None:
            target[...] = view

        self.machine.copies.append("across")
        self.machine.put(stream, WorkItem("a copy across", work, (array.block.state,), (copied.block.state,)))
        return PendingCopy(copied, array)

    def copy_within(self, target: SimulatedArray, source: SimulatedArray, stream: SimulatedStream) -> None:
        with self.activate(stream):
            target[...] = source

    def new_stream(self) -> SimulatedStream:
        return self.machine.stream(self.name)

    def current_stream(self) -> SimulatedStream:
        return self.world.stream(self)

    @contextmanager
    def activate(self, stream: SimulatedStream) -> Iterator[None]:
        with self.world.activate(self, stream):
            yield

    def get_stream(self, stream: Any) -> SimulatedStream:
        if not isinstance(stream, SimulatedStream) or stream.device != self.name:
            raise DeviceError(f"stream= must be a stream of {self.name}; got {type(stream).__name__}")
        return stream

    def follow(self, later: SimulatedStream, earlier: SimulatedStream) -> None:
        if later is not earlier:
            self.delay(later, self.record_event(earlier))

    def wait(self, streams: Sequence[SimulatedStream]) -> None:
        for stream in streams:
            self.machine.wait(self.machine.event(stream))

    def record_event(self, stream: SimulatedStream) -> Event:
        return self.machine.event(stream)

    def is_done(self, event: Event) -> bool:
        return self.machine.is_done(event)

    def wait_for(self, event: Event) -> None:
        self.machine.wait(event)

    def delay(self, stream: SimulatedStream, event: Event) -> None:
        self.machine.after(stream, event)

    def record(self, stream: SimulatedStream, work: Callable[[], None]) -> GraphCapture:
        # As on CUDA, a first run outside the recording allocates memory and loads kernels, which a recording must not contain.
        work()
        self.machine.wait(self.machine.event(stream))
        with self.machine.record_work(stream) as items:
            work()
        return _RecordedGraph(self.machine, tuple(items))


class PinnedMemory:
    """Pinned host memory that a copy reads. If this object is deleted before the copy is executed, the copy reads `POISON`."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.content = content = np.array(host)
        self._alive = alive = [True]
        # The function does not refer to this object, which it would keep alive until the copy.
        self.check = lambda: None if alive[0] else _poison(content)

    def __del__(self) -> None:
        self._alive[0] = False


def _poison(content: np.ndarray[Any, Any]) -> None:
    content.view(np.uint8 if content.ndim else content.dtype).fill(POISON)


class _RecordedGraph(GraphCapture):
    def __init__(self, machine: SimulatedMachine, items: tuple[WorkItem, ...]) -> None:
        self._machine = machine
        self._items = items

    def replay(self, stream: SimulatedStream) -> None:
        self._machine.replay(stream, self._items)


def create_worker_devices() -> Callable[[int], SimulatedDevice]:
    """Make a function that opens the devices of a new machine, for use in a worker process."""
    return DeviceWorld(SimulatedMachine("eager"), 2).device


@contextmanager
def simulate_devices(devices: int = 2, order: Order = "late", seed: int = 0, limit: int = 1 << 30) -> Iterator[SimulatedMachine]:
    """Replace CUDA devices by simulated ones; yields the machine, and raises AssertionError on exit if there were races.

    ``order``: execute work as soon as possible (``eager``), only when it is waited for (``late``), or ``random`` with ``seed``.
    ``limit`` is the memory per device in bytes.
    """
    machine = SimulatedMachine(order, seed, limit)
    with override_devices("cuda", DeviceWorld(machine, devices).device, f"{__name__}:create_worker_devices"):
        yield machine
    if machine.races:
        raise AssertionError("\n".join(["work raced on a simulated device:", *dict.fromkeys(machine.races)]))


SIZED_BY_CONTENT = frozenset({"compress", "extract", "flatnonzero", "nonzero", "unique", "argwhere"})
"""Functions of which the size of the result depends on the elements of an array, so that the host must wait for the array."""
CREATING = frozenset({"arange", "empty", "eye", "full", "identity", "indices", "linspace", "ones", "tri", "zeros"})
"""Functions that create arrays from numbers on the host."""
HOST_NAMES = frozenset(
    {"newaxis", "pi", "e", "inf", "nan", "finfo", "iinfo", "dtype", "result_type", "promote_types", "can_cast"}
)
"""Attributes of the module that need no device: constants, and functions of dtypes. They are NumPy's."""
TYPES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


class SimulatedModule:
    """The array module (`xp`) of a simulated device. Its functions and their keyword arguments are a subset of CuPy's."""

    ndarray = SimulatedArray

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.linalg = SimpleNamespace(det=lambda value: apply("det", np.linalg.det, (value,)))

    def __getattr__(self, name: str) -> Any:
        if name in HOST_NAMES or name in TYPES:
            return getattr(np, name)
        if name not in FUNCTIONS:
            raise AttributeError(f"CuPy {VERSION} has no {name!r}, and so the simulated device has none")
        function = self._make_creator(name) if name in CREATING else self._lift_function(name, getattr(np, name))
        setattr(self, name, function)
        return function

    def _lift_function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that enqueues a NumPy function on the device, with CuPy's keyword arguments and ``out``."""
        parameters = FUNCTIONS.get(name)

        def call(*args: Any, **options: Any) -> Any:
            self._check(name, parameters, options)
            out = options.pop("out", None)
            if not find_arrays((args, options)):  # compute on the host, and copy the result to the device
                result = self.asarray(function(*args, **options))
                if out is not None:
                    self.copyto(out, result)
                return result if out is None else out
            if out is not None:
                enqueue_write(name, lambda target, *contents: np.copyto(target, function(*contents, **options)), out, args)
                return out
            return apply(name, function, args, options, waits=name in SIZED_BY_CONTENT)

        if isinstance(function, np.ufunc):
            call.at = lambda target, *contents: _update_at(name, function, target, contents)  # type: ignore[attr-defined]  # as of a ufunc
        return call

    def _make_creator(self, name: str) -> Callable[..., Any]:
        def create(*args: Any, **options: Any) -> Any:
            self._check(name, FUNCTIONS.get(name), options)
            values = [value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value for value in args]
            if find_arrays(values):  # such as the fill value of `full`
                return apply(name, getattr(np, name), tuple(values), options)
            return self._device.upload(getattr(np, name)(*values, **options))

        return create

    @staticmethod
    def _check(name: str, parameters: tuple[str, ...] | None, options: dict[str, Any]) -> None:
        for option in options:
            if parameters is not None and option not in parameters:
                raise TypeError(f"{name}() got an unexpected keyword argument {option!r}: CuPy's has none")

    def asarray(self, value: Any, dtype: Any = None, order: Any = None) -> SimulatedArray:
        """Convert host data or a list of device arrays to a device array; cast a device array to ``dtype`` if it differs."""
        if isinstance(value, SimulatedArray):
            return value if dtype in (None, value.dtype) else value.astype(dtype)  # type: ignore[attr-defined]
        if find_arrays(value):
            return self.stack(value)  # type: ignore[no-any-return]
        return self._device.upload(np.asarray(value, dtype, order="C"))

    array = asarray

    def ascontiguousarray(self, value: SimulatedArray) -> SimulatedArray:
        """Return the array itself if it is C-contiguous, otherwise a contiguous copy."""
        return value if value.flags.c_contiguous else value.copy()  # type: ignore[attr-defined]

    def asnumpy(self, value: SimulatedArray) -> np.ndarray[Any, Any]:
        return self._device.download(value)

    def copyto(self, target: SimulatedArray, source: Any, where: Any = True) -> None:
        """Enqueue a copy of ``source`` to ``target``, restricted to a mask if ``where`` is a device array."""
        args = (source, where) if isinstance(where, SimulatedArray) else (source,)
        enqueue_write("copyto", lambda t, s, *w: np.copyto(t, s, where=w[0] if w else True), target, args)

    def put_along_axis(self, target: SimulatedArray, indices: Any, values: Any, axis: int) -> None:
        enqueue_write("put_along_axis", lambda t, i, v: np.put_along_axis(t, i, v, axis), target, (indices, values))

    def shape(self, value: Any) -> tuple[int, ...]:
        """The shape of an array or a nested list, without waiting for its content."""
        return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


UFUNCS_WITH_AT = frozenset({"add", "maximum", "minimum", "subtract"})
"""Ufuncs for which CuPy has ``.at``."""


def _update_at(name: str, function: np.ufunc, target: SimulatedArray, args: tuple[Any, ...]) -> None:
    """Enqueue ``function.at``, which applies a ufunc at indices that may repeat."""
    if name not in UFUNCS_WITH_AT:
        raise NotImplementedError(f"CuPy has no {name}.at")
    indices, values = args
    is_tuple = isinstance(indices, tuple)

    def at(view: np.ndarray[Any, Any], *parts: Any) -> None:  # one or several index arrays, then the values
        function.at(view, parts[:-1] if is_tuple else parts[0], parts[-1])

    enqueue_write(f"{name}.at", at, target, (*(indices if is_tuple else (indices,)), values))


def _make_method(name: str) -> Callable[..., Any]:
    def method(self: SimulatedArray, *args: Any, **options: Any) -> Any:
        def call(array: np.ndarray[Any, Any], *more: Any, **keywords: Any) -> Any:
            return getattr(array, name)(*more, **keywords)

        return apply(name, call, (self, *args), options, waits=name in SIZED_BY_CONTENT)

    return method


for _name in (
    *("all", "any", "argmax", "argmin", "argsort", "astype", "clip", "compress", "conj", "copy", "cumprod", "cumsum", "diagonal"),
    *("dot", "flatten", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "round", "squeeze", "std", "sum", "swapaxes"),
    *("take", "trace", "transpose", "var", "view"),
):
    setattr(SimulatedArray, _name, _make_method(_name))


# The functions of NumPy that this version of CuPy has, too, with the names of their keyword arguments; * accepts all keywords.
VERSION = "14.2.0"

_UFUNCS = """
abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and
bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor cbrt ceil conj
conjugate copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 fabs fix float_power floor floor_divide
fmax fmin fmod frexp gcd greater greater_equal heaviside hypot i0 invert isfinite isinf isnan lcm ldexp left_shift less
less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum mod
modf multiply negative nextafter not_equal positive pow power rad2deg radians reciprocal remainder right_shift rint sign
signbit sin sinc sinh sqrt square subtract tan tanh true_divide trunc
"""

_OTHERS = """
all amax amin any max min ptp: a axis out keepdims
allclose isclose: a b rtol atol equal_nan
append: arr values axis
arange: start stop step dtype
argmax argmin mean prod sum: a axis dtype out keepdims
argsort sort: a axis kind
around round: a decimals out
array: obj dtype copy order subok ndmin blocking
array_equal: a1 a2 equal_nan
asarray: a dtype order copy blocking
ascontiguousarray asfortranarray: a dtype
astype: x dtype copy
atleast_1d atleast_2d broadcast_arrays broadcast_shapes result_type:
average: a axis weights returned keepdims
bincount: x weights minlength
blackman: M
broadcast_to: array shape
can_cast: from_ to casting
choose: a choices out mode
clip: a a_min a_max out
compress: condition a axis out
concat concatenate stack: tup axis out dtype casting
convolve correlate: a v mode
copy ravel: a order
copyto: dst src casting where
count_nonzero expand_dims flip squeeze: a axis
cross: a b axisa axisb axisc axis
cumprod cumsum: a axis dtype out
delete: arr indices axis
diagonal: a offset axis1 axis2
diff: a n axis prepend append
dot outer: a b out
einsum frombuffer meshgrid pad savez savez_compressed: *
empty ones zeros: shape dtype order
empty_like: prototype dtype order subok shape
extract: condition a
eye: N M k dtype order
fill_diagonal: a val wrap
flatnonzero ndim nonzero shape: a
from_dlpack: array device copy
full: shape fill_value dtype order
full_like: a fill_value dtype order subok shape
gradient: f axis edge_order
histogram: x bins range density weights
identity: n dtype
imag real: val
indices: dimensions dtype
inner kron vdot: a b
isneginf isposinf: x out
issubdtype: arg1 arg2
linspace: start stop num endpoint retstep dtype axis
load: file mmap_mode allow_pickle
logspace: start stop num endpoint base dtype axis
matmul: axes axis keepdims casting dtype signature order out
may_share_memory shares_memory: a b max_work
median: a axis out overwrite_input keepdims
moveaxis: a source destination
nan_to_num: x copy nan posinf neginf
ones_like zeros_like: a dtype order subok shape
partition: a kth axis
percentile quantile: a q axis out overwrite_input method keepdims interpolation
place: arr mask vals
promote_types: type1 type2
put: a ind v mode
put_along_axis: arr indices values axis
ravel_multi_index: multi_index dims mode order
repeat: a repeats axis
require: a dtype requirements
reshape: a newshape order copy
resize: a new_shape
roll: a shift axis
roots: p
save: file arr allow_pickle
searchsorted: a v side sorter
select: condlist choicelist default
show_config: _full
size: _ndarray_base a axis
split: ary indices_or_sections axis
std var: a axis dtype out ddof keepdims
swapaxes: a axis1 axis2
take: a indices axis out
take_along_axis: a indices axis
tile: A reps
trace: a offset axis1 axis2 dtype out
transpose: a axes
tri: N M k dtype
tril triu: m k
tril_indices: n k m
unique: ar return_index return_inverse return_counts axis equal_nan
unravel_index: indices dims order
unwrap: p discont axis period
where: condition x y
"""


def _parse_others() -> dict[str, tuple[str, ...] | None]:
    """Parse the lines of `_OTHERS`, ``NAMES: PARAMETERS``, to the parameters of each name; None for ``*``."""
    rows = (line.split(":") for line in _OTHERS.strip().splitlines())
    return {
        name: None if parameters.strip() == "*" else tuple(parameters.split())
        for names, parameters in rows
        for name in names.split()
    }


FUNCTIONS = {**dict.fromkeys(_UFUNCS.split(), ("out", "dtype", "casting", "where")), **_parse_others()}
"""Maps the name of a function to its keyword arguments; None if it accepts any."""
