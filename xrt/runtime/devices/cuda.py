"""CUDA devices through CuPy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from importlib import metadata
from typing import Any

import numpy as np

from xrt.errors import DeviceError, InputError
from xrt.runtime.devices.interface import Array, Device, Event, GraphCapture, MemoryInfo, PendingCopy, Stream

PIP = "pip install 'xrt-engine[cuda]'"
_ALLOCATING = re.compile(r"allocating ([\d,]+) bytes")


class CudaDevice(Device):
    """One GPU. Device and pinned memory come from CuPy's pools."""

    has_addresses = True

    def __init__(self, index: int) -> None:
        """Open the device; raises DeviceError if CuPy, the driver or the device is missing."""
        self.name = f"cuda:{index}"
        self.index = index
        self._cupy = _load_cupy(self.name)
        count = _count_devices(self._cupy, self.name)
        if index >= count:
            raise DeviceError(f"device {self.name!r} is not available: there are {count} CUDA devices, numbered from 0")

    @cached_property
    def hardware(self) -> str:
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.index)
        model = f"{properties['name'].decode()} {properties['major']}.{properties['minor']}"
        libraries = f"cuda {runtime.runtimeGetVersion()}{_find_nvrtc_version()}, cupy {self._cupy.__version__}"
        return f"{model}, driver {runtime.driverGetVersion()}, {libraries}"

    @cached_property
    def architecture(self) -> str:
        properties = self._cupy.cuda.runtime.getDeviceProperties(self.index)
        return f"sm_{properties['major']}{properties['minor']}"

    @property
    def xp(self) -> Any:
        return self._cupy

    def _here(self) -> AbstractContextManager[object]:
        return self._cupy.cuda.Device(self.index)  # type: ignore[no-any-return]  # CuPy has no types

    def upload(self, array: np.ndarray[Any, Any]) -> Array:
        with self._here():
            return self._cupy.asarray(array, order="C")

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        with self._here():
            return self._cupy.asnumpy(array)  # type: ignore[no-any-return]  # CuPy has no types

    def address(self, value: Any) -> int:
        return int(value.data.ptr if isinstance(value, self._cupy.ndarray) else value.ptr)

    def view_memory(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, nbytes, owner, self.index)
        return self._cupy.ndarray(tuple(shape), dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def owns(self, value: object) -> bool:
        return isinstance(value, self._cupy.ndarray) and value.device.id == self.index

    def adopt(self, source: Any) -> Array:
        try:
            with self._here():
                array = self._cupy.from_dlpack(source)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"an array of type {type(source).__name__} cannot be read through DLPack: {error}") from error
        if not self.owns(array):
            raise DeviceError(f"an array is on cuda:{array.device.id} instead of {self.name}; copy it there")
        return array

    def memory(self) -> MemoryInfo:
        with self._here():
            free, total = self._cupy.cuda.runtime.memGetInfo()
            # Freed blocks in CuPy's pool can be allocated, too.
            return MemoryInfo(free + self._cupy.get_default_memory_pool().free_bytes(), total)

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any], stream: Stream) -> Array:
        with self.activate(stream):
            return self._cupy.empty(tuple(shape), dtype)

    def find_shortage(self, error: BaseException) -> int | None:
        if isinstance(error, self._cupy.cuda.memory.OutOfMemoryError):
            match = _ALLOCATING.search(str(error))
            return int(match[1].replace(",", "")) if match else 0
        return 0 if "cudaErrorMemoryAllocation" in str(error) or "out of memory" in str(error).lower() else None

    def _allocate_pinned(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape, dtype=np.int64))
        memory = self._cupy.cuda.alloc_pinned_memory(max(count * dtype.itemsize, 1))
        return np.frombuffer(memory, np.uint8, count * dtype.itemsize).view(dtype).reshape(tuple(shape))

    def copy_in(self, host: np.ndarray[Any, Any], stream: Stream) -> PendingCopy:
        with self.activate(stream):
            # Through pinned memory the copy is asynchronous, and the caller may change `host` immediately.
            pinned = self._allocate_pinned(host.shape, host.dtype)
            np.copyto(pinned, host)
            array = self._cupy.empty(host.shape, host.dtype)
            array.set(pinned, stream=stream)
        return PendingCopy(array, pinned)

    def copy_out(self, array: Array, stream: Stream) -> PendingCopy:
        with self.activate(stream):
            source = self._cupy.ascontiguousarray(array)
            pinned = self._allocate_pinned(source.shape, source.dtype)
            source.get(stream=stream, out=pinned, blocking=False)
        return PendingCopy(pinned, source)

    def copy_across(self, array: Array, source: Device, stream: Stream) -> PendingCopy:
        with self.activate(stream):
            target = self._cupy.empty(array.shape, array.dtype)
            contiguous = self._cupy.ascontiguousarray(array) if not array.flags.c_contiguous else array
            target.data.copy_from_device_async(contiguous.data, contiguous.nbytes, stream)
        return PendingCopy(target, contiguous)

    def copy_within(self, target: Array, source: Array, stream: Stream) -> None:
        with self.activate(stream):
            target[...] = source

    def new_stream(self) -> Stream:
        with self._here():
            # A blocking stream would synchronize with the legacy default stream.
            return self._cupy.cuda.Stream(non_blocking=True)

    def current_stream(self) -> Stream:
        with self._here():
            return self._cupy.cuda.get_current_stream()

    @contextmanager
    def activate(self, stream: Stream) -> Iterator[None]:
        with self._here(), stream:
            yield

    def get_stream(self, stream: Any) -> Stream:
        if isinstance(stream, self._cupy.cuda.Stream):
            return stream
        address = _find_address(stream)
        if address is None:
            raise DeviceError(
                f"stream= must be a CUDA stream: CuPy's, PyTorch's, one with __cuda_stream__, or its address as an int; "
                f"got {type(stream).__name__}"
            )
        with self._here():
            return self._cupy.cuda.Stream.from_external(_ForeignStream(address, stream))

    def follow(self, later: Stream, earlier: Stream) -> None:
        # Work on one stream is always in order.
        if later.ptr != earlier.ptr:
            self.delay(later, self.record_event(earlier))

    def wait(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.synchronize()

    def record_event(self, stream: Stream) -> Event:
        with self._here():
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    def is_done(self, event: Event) -> bool:
        return bool(event.done)

    def wait_for(self, event: Event) -> None:
        event.synchronize()

    def delay(self, stream: Stream, event: Event) -> None:
        with self._here():
            stream.wait_event(event)

    def record(self, stream: Stream, work: Callable[[], None]) -> GraphCapture:
        """Capture the work as a CUDA graph. It is run once before, to fill a memory pool: a capture must not allocate."""
        pool = self._cupy.cuda.MemoryPool()
        with self.activate(stream), self._cupy.cuda.using_allocator(pool.malloc):
            work()  # fills the pool, and triggers lazy compilation
            stream.synchronize()
            stream.begin_capture()
            try:
                work()
            except BaseException:
                self._abandon(stream)
                raise
            return _Graph(stream.end_capture(), pool)

    def _abandon(self, stream: Stream) -> None:
        """End a failed capture, and ignore the error that the driver may raise again."""
        try:
            stream.end_capture()
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return


class _Graph(GraphCapture):
    """A CUDA graph with the memory pool that it uses."""

    def __init__(self, graph: Any, pool: Any) -> None:
        self._graph = graph
        self._pool = pool

    def replay(self, stream: Stream) -> None:
        self._graph.launch(stream=stream)


class _ForeignStream:
    """A stream of another library, through the ``__cuda_stream__`` protocol; keeps its owner alive."""

    def __init__(self, address: int, owner: object) -> None:
        self._address = address
        self._owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def _find_address(stream: Any) -> int | None:
    """Find the address of another library's stream; None if the object is not a stream."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr"):  # PyTorch's, and older CuPy's
        if isinstance(address := getattr(stream, name, None), int):
            return address
    return None


def _find_nvrtc_version() -> str:
    """Return a phrase with the version of NVRTC, without loading it; empty if it is not installed as a Python package."""
    try:
        return f", nvrtc {metadata.version('nvidia-cuda-nvrtc')}"
    except metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def _import_cupy() -> Any:
    import cupy

    return cupy


def _load_cupy(name: str) -> Any:
    try:
        return _import_cupy()
    except ImportError as error:
        raise DeviceError(
            f"device {name!r} is not available: XRT uses CUDA through CuPy, which cannot be imported: {error}; {PIP}"
        ) from error


def _count_devices(cupy: Any, name: str) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        message = " ".join(str(error).split())
        raise DeviceError(f"device {name!r} is not available: CUDA reports {message}; check it with nvidia-smi") from error
