"""The symbolic tensor: what `build` is given, and what operators return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from xrt.builder import numerics as numpy_meaning
from xrt.builder.indexing import index
from xrt.builder.shape_methods import reduce, reshape, transpose
from xrt.builder.symbol import Symbol
from xrt.errors import ModelError

if TYPE_CHECKING:
    from xrt.builder.type_promotion import DTypeLike, Operand

__all__ = ["Tensor"]


def _binary(symbol: str, left: Any, right: Any) -> Tensor:
    other = right if isinstance(left, Tensor) else left
    return numpy_meaning.binary(symbol, left, right) if numpy_meaning.is_operand(other) else NotImplemented


class Tensor(Symbol):
    """A value of the graph that is being traced; it has a type and a name, and no numbers.

    Python's operators and indexing have the meaning that NumPy gives them for arrays: a Python number takes the type of
    the tensor, two tensors are computed in the type that NumPy promotes them to, ``//`` floors and ``%`` has the sign of
    the divisor. What needs the numbers (``bool(x)``, ``float(x)``, iteration) is refused.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `array * tensor` to the tensor

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: Operand) -> Tensor:
        return _binary("+", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return _binary("+", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return _binary("-", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return _binary("-", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return _binary("*", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return _binary("*", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _binary("/", other, self)

    def __floordiv__(self, other: Operand) -> Tensor:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return _binary("//", other, self)

    def __mod__(self, other: Operand) -> Tensor:
        return _binary("%", self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        return _binary("%", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return _binary("**", self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return _binary("**", other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return _binary("@", self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return _binary("@", other, self)

    def __neg__(self) -> Tensor:
        return numpy_meaning.negative(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return numpy_meaning.absolute(self)

    # ------------------------------------------------------------------ comparison

    __hash__ = object.__hash__  # == gives a tensor, so tensors hash by identity

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]  # as in NumPy
        return _binary("==", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]  # as in NumPy
        return _binary("!=", self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return _binary("<", self, other)

    def __le__(self, other: Operand) -> Tensor:
        return _binary("<=", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return _binary(">", self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return _binary(">=", self, other)

    # ------------------------------------------------------------------ bits and truth

    def __and__(self, other: Operand) -> Tensor:
        return _binary("&", self, other)

    def __rand__(self, other: Operand) -> Tensor:
        return _binary("&", other, self)

    def __or__(self, other: Operand) -> Tensor:
        return _binary("|", self, other)

    def __ror__(self, other: Operand) -> Tensor:
        return _binary("|", other, self)

    def __xor__(self, other: Operand) -> Tensor:
        return _binary("^", self, other)

    def __rxor__(self, other: Operand) -> Tensor:
        return _binary("^", other, self)

    def __lshift__(self, other: Operand) -> Tensor:
        return _binary("<<", self, other)

    def __rlshift__(self, other: Operand) -> Tensor:
        return _binary("<<", other, self)

    def __rshift__(self, other: Operand) -> Tensor:
        return _binary(">>", self, other)

    def __rrshift__(self, other: Operand) -> Tensor:
        return _binary(">>", other, self)

    def __invert__(self) -> Tensor:
        return numpy_meaning.invert(self)

    # ------------------------------------------------------------------ shape and type

    def __getitem__(self, key: Any) -> Tensor:
        return index(self, key)

    @property
    def T(self) -> Tensor:  # noqa: N802  # as NumPy calls it
        """The tensor with its axes reversed."""
        return transpose(self, ())

    def transpose(self, *axes: Any) -> Tensor:
        """Return the tensor with its axes in that order, reversed where none is given."""
        return transpose(self, axes)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the tensor with other extents: integers, -1 once, names of its own symbolic extents, or 0-d tensors."""
        return reshape(self, shape)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Return the tensor converted to an element type: a DType, a NumPy type, or a name such as ``"float32"``."""
        return numpy_meaning.cast(self, dtype)

    # ------------------------------------------------------------------ reductions

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the sum over the axes; of integers in 64 bits, as in NumPy."""
        return reduce(self, "sum", axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the product over the axes; of integers in 64 bits, as in NumPy."""
        return reduce(self, "prod", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the mean over the axes; of integers in float64, as in NumPy."""
        return reduce(self, "mean", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the largest element over the axes."""
        return reduce(self, "max", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the smallest element over the axes."""
        return reduce(self, "min", axis, keepdims)

    # ------------------------------------------------------------------ what needs the numbers

    def __len__(self) -> int:
        extent = self.shape[0] if self.shape else None
        if not isinstance(extent, int):
            raise ModelError(f"len() of {self.value} is not known while the graph is traced; xrt.ops.Shape computes it")
        return extent

    def __bool__(self) -> NoReturn:  # noqa: PLE0304  # there is no truth to return
        self._refuse(
            "its truth is asked (by if, while, and, or, not, in)", "use xrt.ops.If or xrt.ops.Where; & | ~ for and, or, not"
        )

    def __iter__(self) -> NoReturn:
        self._refuse("it is iterated over", "use x[i] for the parts you need, xrt.ops.Split, or xrt.ops.Loop and xrt.ops.Scan")

    def __int__(self) -> NoReturn:
        self._refuse("it is converted to an int", "keep it a tensor, or convert it with .astype")

    def __float__(self) -> NoReturn:
        self._refuse("it is converted to a float", "keep it a tensor, or convert it with .astype")

    def __index__(self) -> NoReturn:  # noqa: PLE0305  # as above
        self._refuse("it is used as a Python integer", "keep it a tensor; slices and indices of tensors take tensors")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("NumPy is asked for its numbers", "use xrt.ops and Python's operators instead of NumPy's functions")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise ModelError(f"{self.value} has no numbers while the graph is traced, but {what}; {instead}")
