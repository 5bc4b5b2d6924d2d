"""Node attributes: a name, an ONNX attribute kind and an immutable value."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from xrt.errors import ModelError
from xrt.graph.constants import Constant
from xrt.graph.types import MapType, OptionalType, SequenceType, TensorType

if TYPE_CHECKING:
    from xrt.graph.function import Function


class AttrKind(enum.Enum):
    """The kinds of ``AttributeProto``, with ONNX's numbers. There is no kind for sparse tensors: they become dense on loading."""

    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    GRAPH = 5
    FLOATS = 6
    INTS = 7
    STRINGS = 8
    TENSORS = 9
    GRAPHS = 10
    TYPE = 13
    TYPES = 14

    __hash__ = object.__hash__  # Enum's default hashes the member name, which is slower

    @property
    def is_list(self) -> bool:
        return self in _LISTS

    @property
    def element(self) -> AttrKind:
        """The kind of the elements of a list kind (INT for INTS); a scalar kind is returned unchanged."""
        return _LISTS.get(self, self)


_LISTS = {
    AttrKind.FLOATS: AttrKind.FLOAT,
    AttrKind.INTS: AttrKind.INT,
    AttrKind.STRINGS: AttrKind.STRING,
    AttrKind.TENSORS: AttrKind.TENSOR,
    AttrKind.GRAPHS: AttrKind.GRAPH,
    AttrKind.TYPES: AttrKind.TYPE,
}
_AS_LIST = {element: kind for kind, element in _LISTS.items()}


@dataclass(frozen=True, slots=True)
class Attribute:
    """A named attribute. ``value`` is an int, float, str (bytes if not UTF-8), Constant, Function, Type, or a tuple of these.

    Create it with `Attribute.create`, which normalizes the value and checks it against the kind.
    """

    name: str
    kind: AttrKind
    value: Any

    @classmethod
    def create(cls, name: str, value: Any, kind: AttrKind | None = None) -> Attribute:
        """Create an attribute; ``kind`` defaults to the one implied by the value's Python type.

        Raises ModelError if the value does not match the kind, or if it is an empty list and no kind is passed.
        """
        kind = kind or _infer_kind(name, value)
        if not kind.is_list:
            return cls(name, kind, _normalize(name, value, kind))
        if isinstance(value, np.ndarray):
            value = value.tolist()  # Python numbers: NumPy's would be printed and hashed differently
        if not isinstance(value, list | tuple):
            raise ModelError(
                f"attribute {name!r} must be a list of {kind.element.name.lower()}s; got {type(value).__name__} {value!r}"
            )
        return cls(name, kind, tuple(_normalize(name, item, kind.element) for item in value))

    def bodies(self) -> Iterator[Function]:
        """Yield the Functions in this attribute."""
        if self.kind is AttrKind.GRAPH:
            yield self.value
        elif self.kind is AttrKind.GRAPHS:
            yield from self.value

    def map_bodies(self, change: Callable[[Function], Function]) -> Attribute:
        """Apply ``change`` to each Function; return this attribute if all of them are unchanged."""
        bodies = tuple(self.bodies())
        changed_bodies = tuple(map(change, bodies))
        if all(new is old for new, old in zip(changed_bodies, bodies, strict=True)):
            return self
        return Attribute(self.name, self.kind, changed_bodies if self.kind is AttrKind.GRAPHS else changed_bodies[0])


def _infer_kind(name: str, value: Any) -> AttrKind:
    if isinstance(value, list | tuple):
        if not value:
            raise ModelError(f"attribute {name!r} is an empty list, from which its kind cannot be inferred; pass the kind")
        kinds = {_infer_kind(name, item) for item in value}
        # [1, 2.5] is a list of floats, as in Python arithmetic.
        if kinds == {AttrKind.INT, AttrKind.FLOAT}:
            kinds = {AttrKind.FLOAT}
        if len(kinds) == 1 and kinds <= _AS_LIST.keys():
            (kind,) = kinds
            return _AS_LIST[kind]
        raise ModelError(f"attribute {name!r} is a list of mixed kinds: {value!r}")
    # ONNX has no boolean attributes; it stores them as INT.
    if isinstance(value, bool | int | np.integer | np.bool_):
        return AttrKind.INT
    if isinstance(value, float | np.floating):
        return AttrKind.FLOAT
    if isinstance(value, str | bytes):
        return AttrKind.STRING
    if isinstance(value, Constant | np.ndarray):
        return AttrKind.TENSOR
    if isinstance(value, TensorType | SequenceType | OptionalType | MapType):
        return AttrKind.TYPE
    # A Function, recognized by its fields: function.py imports this module.
    if hasattr(value, "nodes") and hasattr(value, "captures"):
        return AttrKind.GRAPH
    raise ModelError(f"attribute {name!r} has a value of a type that ONNX does not support: {type(value).__name__} {value!r}")


def _normalize(name: str, value: Any, kind: AttrKind) -> Any:
    """Convert the value to the representation of its kind; floats are rounded to float32, as ONNX stores them."""
    actual = _infer_kind(name, value)
    if kind is AttrKind.FLOAT and actual in (AttrKind.FLOAT, AttrKind.INT):
        number = float(np.float32(value))
        return math.nan if math.isnan(number) else number  # always the same object, so that NaN attributes compare equal
    if actual is not kind:
        raise ModelError(f"attribute {name!r} must be {kind.name.lower()}; got {actual.name.lower()} {value!r}")
    if kind is AttrKind.INT:
        return int(value)
    if kind is AttrKind.TENSOR and not isinstance(value, Constant):
        return Constant(value)
    if kind is AttrKind.STRING and isinstance(value, bytes):
        return decode_text(value)
    return value


def decode_text(raw: bytes) -> str | bytes:
    """Decode UTF-8; bytes that are not valid UTF-8 are returned unchanged."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A ``dict`` whose mutating methods raise TypeError.

    >>> FrozenDict(a=1)["b"] = 2
    Traceback (most recent call last):
    TypeError: a FrozenDict cannot be changed; make a new one
    """

    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a FrozenDict cannot be changed; make a new one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    # Only the keys are hashed: values such as large constants are expensive to hash.
    def __hash__(self) -> int:  # type: ignore[override]  # immutable, unlike dict
        return hash(frozenset(self))

    # The default for dict subclasses unpickles through __setitem__, which raises.
    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

    def __repr__(self) -> str:
        return f"FrozenDict({dict(self)!r})"
