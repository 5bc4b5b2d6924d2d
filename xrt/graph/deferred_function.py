"""A Function whose nodes are not read before they are needed: for what is compiled already, its border and fingerprint do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError
from xrt.forking import renew_after_fork
from xrt.graph.function import Function

if TYPE_CHECKING:
    import numpy as np

    from xrt.graph.constants import Constant
    from xrt.graph.types import Type, Value

__all__ = ["DeferredFunction", "StaleFunction", "find_stale"]


class StaleFunction(ModelError):
    """What is known of a Function without its nodes is not of the Function that was read: it is to be compiled from the model."""


def find_stale(error: BaseException | None) -> StaleFunction | None:
    """Return the StaleFunction among an error and those that led to it: an engine may have raised one of its own after it."""
    while error is not None and not isinstance(error, StaleFunction):
        error = error.__cause__ or error.__context__
    return error


class _Deferred:
    """A field that is read with the nodes. It is no data descriptor, so a field that is there already is found without it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, function: DeferredFunction, owner: type) -> Any:
        return function.read().__dict__[self._name]


class DeferredFunction(Function):
    """A closed Function without aliases that `read` gives in full; only then are its nodes and constants in memory."""

    if not TYPE_CHECKING:
        nodes = _Deferred()
        constants = _Deferred()
        opsets = _Deferred()
        types = _Deferred()
        doc = _Deferred()
        metadata = _Deferred()
        _producer = _Deferred()

    def __init__(
        self,
        inputs: tuple[Value, ...],
        outputs: tuple[Value, ...],
        *,
        name: str,
        fingerprint: str,
        computed: Collection[str],
        weights: Mapping[bytes, Callable[[], np.ndarray[Any, Any]]],
        read: Callable[[], Function],
    ) -> None:
        """``computed`` names the outputs that nodes define. ``weights`` reads the bytes of constants, by their digests."""
        self.__dict__.update(inputs=inputs, outputs=outputs, name=name, fingerprint=fingerprint, aliases=(), captures=())
        self.__dict__.update(
            _computed=frozenset(computed), _weights=weights, _read=read, _lock=renew_after_fork(threading.Lock())
        )

    @property
    def is_read(self) -> bool:
        """Whether the nodes are in memory."""
        return "nodes" in self.__dict__

    def read(self) -> Function:
        """Return the whole Function; raises StaleFunction where it is not the one whose border is known, or cannot be read."""
        facts = self.__dict__
        with facts["_lock"]:
            if "_whole" not in facts:
                try:
                    whole: Function = facts["_read"]()
                except ModelError as error:
                    raise StaleFunction(str(error)) from error
                if whole.fingerprint != self.fingerprint:
                    raise StaleFunction(f"function {self.name!r} is not the one that was compiled")
                facts.update({name: value for name, value in whole.__dict__.items() if name not in facts})
                facts["_whole"] = whole
        return facts["_whole"]  # type: ignore[no-any-return]  # set just now

    def computes(self, output: str) -> bool:
        return output in self.__dict__["_computed"]

    def find_weight_bytes(self, digest: bytes) -> np.ndarray[Any, Any] | None:
        reader = self.__dict__["_weights"].get(digest)
        return None if reader is None else reader()

    def read_constants(self) -> tuple[Constant, ...]:
        return tuple(self.constants.values()) if self.is_read else ()

    def replace(self, **changes: Any) -> Function:
        return self.read().replace(**changes)

    def with_types(self, types: Mapping[str, Type], *rest: Any, **more: Any) -> Function:
        return self.read().with_types(types, *rest, **more)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _get_itself, (self.read(),)


def _get_itself(function: Function) -> Function:
    """Return the Function: what a copy, also one in another process, is made by."""
    return function
