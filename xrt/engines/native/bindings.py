"""Bindings to the functions of XRT's native library beside its kernels; see ``src/tape.h`` and ``src/products.h``."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from ctypes import CDLL, POINTER, Structure, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.native import abi
from xrt.engines.native.library import NativeLibrary, load
from xrt.errors import EngineUnavailable, NativeWarning

if TYPE_CHECKING:
    from xrt.engines.toolkit.blas import BlasCalls


SHIPPED = Path(__file__).parent / "lib" / "libxrt_native.so"
"""The library that `CMakeLists.txt` builds; it exists if a compiler was available when XRT was installed."""


def include_dir() -> str:
    """The include directory in which a compiler finds ``xrt/kernel.h``."""
    return str(Path(__file__).parent / "include")


def find_library() -> NativeLibrary | None:
    """XRT's own library of kernels; None if it was not built or cannot be opened: see `why_not_shipped`."""
    return _load_shipped()[0]


def requires_native() -> NativeLibrary:
    """XRT's own library; raises EngineUnavailable with the reason if it cannot be used."""
    library, reason = _load_shipped()
    if library is None:
        raise EngineUnavailable(f"the native kernels of XRT do not serve: {reason}")
    return library


def why_not_shipped() -> str | None:
    """Explain why XRT's native kernels cannot be used in this process; None if they can."""
    return _load_shipped()[1]


@cache
def open_bundled(paths: tuple[str, ...], *, with_shipped: bool) -> tuple[NativeLibrary, ...]:
    """Load the libraries at the paths, followed by XRT's own if requested and available."""
    # The user's libraries first: of equal priority, the first kernel is chosen.
    bundled = find_library() if with_shipped else None
    return (*(load(path) for path in paths), *([bundled] if bundled else []))


def warn_once_of_absence() -> None:
    """Warn once per process if XRT's native kernels cannot be used."""
    reason = why_not_shipped()
    if reason is not None and not _warned.is_set():
        _warned.set()
        warnings.warn(f"the native kernels of XRT do not serve, NumPy's do: {reason}", NativeWarning, stacklevel=2)


_warned = threading.Event()


@lru_cache(maxsize=1)
def _load_shipped() -> tuple[NativeLibrary | None, str | None]:
    if not SHIPPED.exists():
        return None, (
            f"{SHIPPED.name} was not built when XRT was installed, usually for want of a C++ compiler; install one (on Debian: "
            "apt-get install g++) and then XRT again; -v shows the build: pip install -v --force-reinstall --no-deps xrt-engine"
        )
    try:
        library = load(SHIPPED)
    except EngineUnavailable as error:
        return None, str(error)
    # A development tree may have a library of older sources, which would fail at the first call only.
    missing = [name for name in FUNCTIONS if not hasattr(library.handle, name)]
    if missing:
        return None, (
            f"{SHIPPED.name} was built of other sources than this XRT's: it lacks {', '.join(missing)}; rebuild it with "
            "`make native`, or install XRT again"
        )
    return library, None


ABSENT, CONSTANT, ARGUMENT, RESULT, INNER = range(5)
NO_MEMORY, UNALIGNED = -1, -2


class ValueC(Structure):
    """``xrt_tape_value``."""

    _fields_ = [("tensor", abi.TensorC), ("home", c_int32), ("place", c_int64)]


class StepC(Structure):
    """``xrt_tape_step``."""

    _fields_ = [
        ("kernel", POINTER(abi.KernelC)),
        ("state", c_void_p),
        ("scratch", c_int64),
        ("n_inputs", c_int32),
        ("inputs", POINTER(c_int32)),
        ("n_outputs", c_int32),
        ("outputs", POINTER(c_int32)),
    ]


class LayoutC(Structure):
    """``xrt_tape_layout``."""

    _fields_ = [
        ("n_values", c_int32),
        ("values", POINTER(ValueC)),
        ("n_steps", c_int32),
        ("steps", POINTER(StepC)),
        ("n_arguments", c_int32),
        ("n_results", c_int32),
        ("memory", c_uint64),
        ("threads", c_int32),
    ]


FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "xrt_tape_new": (c_void_p, POINTER(LayoutC)),
    "xrt_tape_run": (c_int32, c_void_p, c_void_p, c_void_p),
    "xrt_tape_said": (c_char_p,),
    "xrt_tape_frames": (c_int64, c_void_p),
    "xrt_tape_delete": (None, c_void_p),
    "xrt_pool_workers": (c_int32,),
    "xrt_multiply": (None, c_void_p, c_int32),
}
"""Result and argument types of the functions that the library exports in addition to its kernels."""


@lru_cache(maxsize=1)
def core() -> CDLL:
    """XRT's own library with its functions declared; ctypes releases the GIL while they run.

    Raises EngineUnavailable with the reason if it cannot be used.
    """
    library: CDLL = requires_native().handle
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


# ---------------------------------------------------------------------- addresses of arrays

_HEAD = object.__basicsize__
"""Offset of the data pointer, which is the first field after the object header in every version of NumPy."""


def _read_pointer(array: Any) -> int:
    """The address of the elements, read from the array object."""
    return c_void_p.from_address(id(array) + _HEAD).value or 0


def _query_address(array: Any) -> int:
    """The address of the elements by NumPy's interface."""
    return int(array.ctypes.data)


def _choose_address_of() -> Callable[[Any], int]:
    """Prefer reading the pointer, which is four times as fast, if it gives the same addresses."""
    probes: Iterable[Any] = (np.arange(5), np.ones((2, 3), np.float32)[1:], np.empty(0), np.array(1.5))
    return _read_pointer if all(_read_pointer(p) == _query_address(p) for p in probes) else _query_address


address_of = _choose_address_of()


# ---------------------------------------------------------------------- matrix products by NumPy's BLAS on XRT's threads

Array = np.ndarray[Any, Any]
_Words = c_int64 * 20
"""``xrt_products`` as an array, since all fields are 64 bits wide: several times as fast to create as a structure."""


def multiply(blas: BlasCalls, a: Array, b: Array, threads: int) -> Array | None:
    """Multiply arrays of rank 2 or more with the same BLAS type and no zero extent.

    Return None if an operand broadcasts along only some of the batch dimensions.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 or b.ndim > 2 else ()
    first, second = _stack_batch(a, batch), _stack_batch(b, batch)
    if first is None or second is None:
        return None
    result = np.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    stack = result.reshape(-1, *result.shape[-2:])
    # A batch that shares its right operand is one product with more rows.
    if len(second) == 1 and len(first) == len(stack) > 1 and first.flags.c_contiguous:
        first, stack = (x.reshape(1, -1, x.shape[-1]) for x in (first, stack))
    (count, m, n), k = stack.shape, a.shape[-1]
    numbers = (*blas.find_calls(a.dtype), 8 * a.itemsize, blas.indices, count, m, n, k)
    core().xrt_multiply(_Words(*numbers, *_marshal_stack(first), *_marshal_stack(second), *_marshal_stack(stack)), threads)
    return result


def _stack_batch(array: Array, batch: tuple[int, ...]) -> Array | None:
    """Flatten the batch dimensions; copy if BLAS cannot read the strides. None if only some batch dimensions broadcast."""
    if prod(array.shape[:-2]) not in (1, prod(batch)):
        return None
    stack = array.reshape(-1, *array.shape[-2:])
    return stack if array.flags.aligned and _find_leading(stack) else np.ascontiguousarray(stack)


def _marshal_stack(stack: Array) -> tuple[int, int, int, bool]:
    """The fields of ``xrt_matrices``."""
    leading, flipped = _find_leading(stack) or (0, False)  # `_stack_batch` let no other in
    return address_of(stack), stack.strides[0] if len(stack) > 1 else 0, leading, flipped


def _find_leading(stack: Array) -> tuple[int, bool] | None:
    """The leading dimension of each matrix in elements, and whether it is stored transposed.

    None if neither rows nor columns are contiguous.
    """
    (_, high, wide), (_, down, across), size = stack.shape, stack.strides, stack.itemsize
    if across == size and (high == 1 or (down >= wide * size and down % size == 0)):
        return (wide if high == 1 else down // size), False
    if down == size and (wide == 1 or (across >= high * size and across % size == 0)):
        return (high if wide == 1 else across // size), True
    return None
