"""The array module of a simulated device: NumPy's functions over its arrays, as far as CuPy has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.testing.simulated.array import SimulatedArray, apply, mark_written
from xrt.testing.simulated.names import FUNCTIONS, VERSION

if TYPE_CHECKING:
    from xrt.testing.simulated.device import SimulatedDevice

__all__ = ["SimulatedModule"]

SIZED_BY_CONTENT = frozenset({"compress", "extract", "flatnonzero", "nonzero", "unique", "argwhere"})
"""Functions for which the host waits, because only the content tells how large their result is."""
CREATING = frozenset({"arange", "empty", "eye", "full", "identity", "indices", "linspace", "ones", "tri", "zeros"})
"""Functions that make arrays of numbers of the host."""
PLAIN = frozenset({"newaxis", "pi", "e", "inf", "nan", "finfo", "iinfo", "dtype", "result_type", "promote_types", "can_cast"})
TYPES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


class SimulatedModule:
    """What `Accelerator.xp` is on a simulated device. A name, or an argument, that CuPy does not have is not there either."""

    ndarray = SimulatedArray

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.linalg = _Linalg(self)

    def __getattr__(self, name: str) -> Any:
        if name in PLAIN or name in TYPES:
            return getattr(np, name)
        if name not in FUNCTIONS:
            raise AttributeError(f"CuPy {VERSION} has no {name!r}, and so the simulated device has none")
        function = self._made(name) if name in CREATING else self._lifted(name, getattr(np, name))
        setattr(self, name, function)
        return function

    def _lifted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        known = FUNCTIONS.get(name)

        def lifted(*args: Any, **options: Any) -> Any:
            self._check(name, known, options)
            out = options.pop("out", None)
            if not _holds(args) and not _holds(tuple(options.values())):
                return self.asarray(function(*args, **options))
            if out is not None:
                mark_written(name, lambda target, *given: np.copyto(target, function(*given, **options)), out, args)
                return out
            return apply(name, function, args, options, waits=name in SIZED_BY_CONTENT)

        if isinstance(function, np.ufunc):
            lifted.at = lambda target, *given: _at(name, function, target, given)  # type: ignore[attr-defined]  # of a ufunc
        return lifted

    def _made(self, name: str) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Any:
            self._check(name, FUNCTIONS.get(name), options)
            values = [value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value for value in args]
            if _holds(tuple(values)):
                return apply(name, getattr(np, name), tuple(values), options)
            return self._device.upload(getattr(np, name)(*values, **options))

        return made

    @staticmethod
    def _check(name: str, known: tuple[str, ...] | None, options: dict[str, Any]) -> None:
        for option in options:
            if known is not None and option not in known:
                raise TypeError(f"{name}() got an unexpected keyword argument {option!r}: CuPy's has none")

    # ------------------------------------------------------------------ ways in and out

    def asarray(self, value: Any, dtype: Any = None, order: Any = None) -> SimulatedArray:
        """Return an array of the device, of the host's numbers or of one that is there."""
        if isinstance(value, SimulatedArray):
            return value if dtype in (None, value.dtype) else value.astype(dtype)  # type: ignore[attr-defined]
        if _holds((value,)):
            return self.stack(value)  # type: ignore[no-any-return]
        return self._device.upload(np.asarray(value, dtype, order="C"))

    array = asarray

    def ascontiguousarray(self, value: SimulatedArray) -> SimulatedArray:
        """Return the array, or a copy, whose elements lie one behind the other."""
        return value if value.flags.c_contiguous else value.copy()  # type: ignore[attr-defined]

    def asnumpy(self, value: SimulatedArray) -> np.ndarray[Any, Any]:
        """Return the content, for which the host waits."""
        return self._device.download(value)

    def copyto(self, target: SimulatedArray, source: Any, where: Any = True) -> None:
        """Put a copy into an array on the stream."""
        given = (source, where) if isinstance(where, SimulatedArray) else (source,)
        mark_written("copyto", lambda t, s, *w: np.copyto(t, s, where=w[0] if w else True), target, given)

    def put_along_axis(self, target: SimulatedArray, places: Any, values: Any, axis: int) -> None:
        """Put values into an array on the stream."""
        mark_written("put_along_axis", lambda t, p, v: np.put_along_axis(t, p, v, axis), target, (places, values))

    def shape(self, value: Any) -> tuple[int, ...]:
        """Return the shape of an array, without waiting for its value."""
        return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


ADDABLE = frozenset({"add", "maximum", "minimum", "subtract"})
"""Functions that CuPy's can apply at places."""


def _at(name: str, function: np.ufunc, target: SimulatedArray, given: tuple[Any, ...]) -> None:
    if name not in ADDABLE:
        raise NotImplementedError(f"{name}.at is not there: CuPy has none")
    places, values = given
    several = isinstance(places, tuple)

    def at(view: np.ndarray[Any, Any], *parts: Any) -> None:
        function.at(view, parts[:-1] if several else parts[0], parts[-1])

    mark_written(f"{name}.at", at, target, (*(places if several else (places,)), values))


class _Linalg:
    """The few functions of linear algebra that kernels use."""

    def __init__(self, module: SimulatedModule) -> None:
        self.det = lambda value: apply("det", np.linalg.det, (value,))


def _holds(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds, value))
    return isinstance(value, SimulatedArray)


# ---------------------------------------------------------------------- methods and operators of arrays


def _method(name: str) -> Callable[..., Any]:
    def method(self: SimulatedArray, *args: Any, **options: Any) -> Any:
        def call(array: np.ndarray[Any, Any], *more: Any, **named: Any) -> Any:
            return getattr(array, name)(*more, **named)

        return apply(name, call, (self, *args), options, waits=name in SIZED_BY_CONTENT)

    return method


for _name in (
    *("all", "any", "argmax", "argmin", "argsort", "astype", "clip", "compress", "conj", "copy", "cumprod", "cumsum", "diagonal"),
    *("dot", "flatten", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat", "round", "squeeze", "std", "sum", "swapaxes"),
    *("take", "trace", "transpose", "var", "view"),
):
    setattr(SimulatedArray, _name, _method(_name))


def _operator(name: str, function: Callable[..., Any]) -> None:
    setattr(SimulatedArray, f"__{name}__", lambda self, other: apply(name, function, (self, other)))
    setattr(SimulatedArray, f"__r{name}__", lambda self, other: apply(name, function, (other, self)))

    def in_place(self: SimulatedArray, other: Any) -> SimulatedArray:
        mark_written(name, lambda target, given: function(target, given, out=target), self, (other,))
        return self

    setattr(SimulatedArray, f"__i{name}__", in_place)


for _name, _function in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}.items():
    _operator(_name, _function)


def _comparison(name: str, function: Callable[..., Any]) -> None:
    setattr(SimulatedArray, f"__{name}__", lambda self, other: apply(name, function, (self, other)))


for _name, _function in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}.items():
    _comparison(_name, _function)


def _unary(name: str, function: Callable[..., Any]) -> None:
    setattr(SimulatedArray, f"__{name}__", lambda self: apply(name, function, (self,)))


for _name, _function in {"neg": np.negative, "invert": np.invert, "abs": np.absolute, "pos": np.positive}.items():
    _unary(_name, _function)

SimulatedArray.__hash__ = object.__hash__  # type: ignore[method-assign]  # comparisons took it away
