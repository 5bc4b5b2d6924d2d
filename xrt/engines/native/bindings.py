"""Load XRT's native library, and declare and call the functions of ``src/tape.h`` and ``src/products.h`` that it exports."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping
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
"""The library that ``CMakeLists.txt`` builds if there is a compiler when XRT is installed."""


def include_dir() -> str:
    """The directory that contains ``xrt/kernel.h``, for the include path of compilers."""
    return str(Path(__file__).parent / "include")


def find_library() -> NativeLibrary | None:
    """Load XRT's native library; None if it cannot be used (`why_not_shipped` explains why)."""
    return _load_shipped()[0]


def require_native_library() -> NativeLibrary:
    """Load XRT's native library. Raises EngineUnavailable with the reason if it cannot be used."""
    library, reason = _load_shipped()
    if library is None:
        raise EngineUnavailable(f"the native kernels of XRT cannot be used: {reason}")
    return library


def why_not_shipped() -> str | None:
    """Explain why XRT's native kernels cannot be used in this process; None if they can."""
    return _load_shipped()[1]


@cache
def open_bundled(paths: tuple[str, ...], *, with_shipped: bool) -> tuple[NativeLibrary, ...]:
    """Load the libraries at the paths. With ``with_shipped``, append XRT's library if it can be used."""
    shipped = find_library() if with_shipped else None
    libraries = tuple(map(load, paths))
    # The user's libraries are first, because an engine selects the first of several kernels with equal priority.
    return libraries if shipped is None else (*libraries, shipped)


def warn_once_of_absence() -> None:
    """Warn once per process if XRT's native kernels cannot be used."""
    reason = why_not_shipped()
    if reason is not None and not _warned.is_set():
        _warned.set()
        warnings.warn(f"the native kernels of XRT cannot be used, so NumPy is: {reason}", NativeWarning, stacklevel=2)


_warned = threading.Event()


@lru_cache(maxsize=1)
def _load_shipped() -> tuple[NativeLibrary | None, str | None]:
    """Load XRT's native library. Returns (library, None), or (None, reason) if it cannot be used."""
    if not SHIPPED.exists():
        return None, (
            f"{SHIPPED.name} was not built when XRT was installed, usually because no C++ compiler was found; install one (on "
            "Debian: apt-get install g++) and then XRT again; -v shows the build: "
            "pip install -v --force-reinstall --no-deps xrt-engine"
        )
    try:
        library = load(SHIPPED)
    except EngineUnavailable as error:
        return None, str(error)
    # In a development tree, the library may have been built from older sources.
    missing = [name for name in FUNCTIONS if not hasattr(library.handle, name)]
    if missing:
        return None, (
            f"{SHIPPED.name} was built from other sources than this XRT: it lacks {', '.join(missing)}; rebuild it with "
            "`make native`, or install XRT again"
        )
    return library, None


STORAGE_ABSENT, STORAGE_CONSTANT, STORAGE_ARGUMENT, STORAGE_RESULT, STORAGE_INNER = range(5)
"""The values of ``xrt_tape_value.storage``: where the elements of a value are."""
STATUS_NO_MEMORY = -1
STATUS_UNALIGNED = -2
"""Errors that ``xrt_tape_run`` returns. If a step fails it returns the 1-based index of that step, and 0 if none does."""

# The classes below are the structures of ``src/tape.h``: `ValueC` is ``xrt_tape_value``.


class ValueC(Structure):
    _fields_ = [("tensor", abi.TensorC), ("storage", c_int32), ("location", c_int64)]


class StepC(Structure):
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
    "xrt_tape_delete": (None, c_void_p),
    "xrt_pool_workers": (c_int32,),
    "xrt_multiply": (None, c_void_p, c_int32),
}
"""The result type and the argument types of each function that the library exports besides its kernels."""


@lru_cache(maxsize=1)
def get_core() -> CDLL:
    """Load XRT's native library and declare the types of `FUNCTIONS`. Raises EngineUnavailable if it cannot be used."""
    library: CDLL = require_native_library().handle
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


_DATA_POINTER_OFFSET = object.__basicsize__
"""Offset of the data pointer in an array object: in every version of NumPy it is the first field after the object header."""


def _read_pointer(array: Any) -> int:
    """Read the address of an array's elements from the memory of the array object."""
    return c_void_p.from_address(id(array) + _DATA_POINTER_OFFSET).value or 0


def _query_address(array: Any) -> int:
    """Get the address of an array's elements from NumPy."""
    return int(array.ctypes.data)


_PROBES: Iterable[Any] = (np.arange(5), np.ones((2, 3), np.float32)[1:], np.empty(0), np.array(1.5))
address_of = _read_pointer if all(_read_pointer(array) == _query_address(array) for array in _PROBES) else _query_address
"""Returns the address of an array's elements. `_read_pointer` is four times as fast; it is used if its results are correct."""
Array = np.ndarray[Any, Any]
_ProductsC = c_int64 * 20
"""``xrt_products`` as an array: its fields are 64-bit integers, and ctypes creates an array faster than a structure."""


def multiply(blas: BlasCalls, a: Array, b: Array, threads: int) -> Array | None:
    """Compute ``a @ b`` with the functions of a BLAS library on ``threads`` threads of the native library.

    The arrays have rank 2 or more, no extent of 0, and the same dtype, float32 or float64. Returns None if an operand broadcasts
    along some of the batch axes but not all.
    """
    batch_shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 or b.ndim > 2 else ()
    left = _flatten_batch(a, batch_shape)
    right = _flatten_batch(b, batch_shape)
    if left is None or right is None:
        return None
    result = np.empty((*batch_shape, a.shape[-2], b.shape[-1]), a.dtype)
    products = result.reshape(-1, *result.shape[-2:])
    # If all products of the batch have the same right operand, compute a single product with more rows.
    if len(right) == 1 and len(left) == len(products) > 1 and left.flags.c_contiguous:
        left = left.reshape(1, -1, left.shape[-1])
        products = products.reshape(1, -1, products.shape[-1])
    count, m, n = products.shape
    k = a.shape[-1]
    functions = blas.single if a.itemsize == 4 else blas.double
    numbers = (*functions, 8 * a.itemsize, blas.index_bits, count, m, n, k)
    matrices = (*_marshal_stack(left), *_marshal_stack(right), *_marshal_stack(products))
    get_core().xrt_multiply(_ProductsC(*numbers, *matrices), threads)
    return result


def _flatten_batch(array: Array, batch_shape: tuple[int, ...]) -> Array | None:
    """Merge the batch axes; copy the array if BLAS does not support its strides. None if it broadcasts along some axes only."""
    if prod(array.shape[:-2]) not in (1, prod(batch_shape)):
        return None
    stack = array.reshape(-1, *array.shape[-2:])
    return stack if array.flags.aligned and _find_leading_dimension(stack) else np.ascontiguousarray(stack)


def _marshal_stack(stack: Array) -> tuple[int, int, int, bool]:
    """Return the fields of ``xrt_matrices``: address, bytes between matrices, leading dimension, whether it is transposed."""
    leading, is_transposed = _find_leading_dimension(stack) or (0, False)  # never None after `_flatten_batch`
    bytes_between = stack.strides[0] if len(stack) > 1 else 0
    return address_of(stack), bytes_between, leading, is_transposed


def _find_leading_dimension(stack: Array) -> tuple[int, bool] | None:
    """Find BLAS's leading dimension, and whether the transposes are stored. None if neither rows nor columns are contiguous.

    The leading dimension is the number of elements between rows, or between columns if the transposes are stored.
    """
    _, rows, columns = stack.shape
    _, row_stride, column_stride = stack.strides
    itemsize = stack.itemsize
    # BLAS needs a whole number of elements between rows, and rows that do not overlap. The stride of a single row is arbitrary.
    if column_stride == itemsize and (rows == 1 or (row_stride >= columns * itemsize and row_stride % itemsize == 0)):
        return (columns if rows == 1 else row_stride // itemsize), False
    if row_stride == itemsize and (columns == 1 or (column_stride >= rows * itemsize and column_stride % itemsize == 0)):
        return (rows if columns == 1 else column_stride // itemsize), True
    return None
