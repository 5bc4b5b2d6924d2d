"""A dictionary that cannot be changed: as quick to read as ``dict``, and it can be pickled."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

__all__ = ["FrozenDict"]

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A ``dict`` whose mutators raise TypeError.

    >>> FrozenDict(a=1)["b"] = 2
    Traceback (most recent call last):
    TypeError: a FrozenDict cannot be changed; make a new one
    """

    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a FrozenDict cannot be changed; make a new one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # it cannot change, so it can be hashed; over the keys, which are cheap
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

    def __repr__(self) -> str:
        return f"FrozenDict({dict(self)!r})"
