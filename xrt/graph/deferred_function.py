"""Functions whose nodes are loaded on first access: a compiled artifact needs only inputs, outputs and fingerprint to run."""

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


class StaleFunction(ModelError):
    """The model behind a DeferredFunction changed or cannot be read, so the artifact must be compiled again."""


def find_stale(error: BaseException | None) -> StaleFunction | None:
    """Search an error and its causes for a StaleFunction, which an engine may have wrapped in its own error."""
    while error is not None and not isinstance(error, StaleFunction):
        error = error.__cause__ or error.__context__
    return error


class _DeferredField:
    """A field that loads the Function on first access. Loading stores it in the instance, which hides this descriptor."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, function: DeferredFunction, owner: type) -> Any:
        return function.read().__dict__[self._name]


class DeferredFunction(Function):
    """A Function without captures and aliases whose nodes and constants are loaded when first accessed."""

    if not TYPE_CHECKING:
        nodes = _DeferredField()
        constants = _DeferredField()
        opsets = _DeferredField()
        types = _DeferredField()
        doc = _DeferredField()
        metadata = _DeferredField()
        _producer = _DeferredField()

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
        """``read`` loads the Function. ``computed`` names outputs of nodes; ``weights`` maps digests to readers of constants."""
        self.__dict__.update(inputs=inputs, outputs=outputs, name=name, fingerprint=fingerprint, aliases=(), captures=())
        self.__dict__.update(
            _computed=frozenset(computed), _weights=weights, _read=read, _lock=renew_after_fork(threading.Lock())
        )

    @property
    def is_read(self) -> bool:
        """Whether the nodes are loaded."""
        return "nodes" in self.__dict__

    def read(self) -> Function:
        """Load the whole Function; raises StaleFunction if its fingerprint differs from the expected one or it cannot be read."""
        fields = self.__dict__
        # Several threads may need the nodes at once; the first of them reads the model.
        with fields["_lock"]:
            if "_loaded" not in fields:
                try:
                    loaded: Function = fields["_read"]()
                except ModelError as error:
                    raise StaleFunction(str(error)) from error
                # The compiled artifact computes the old Function: for a changed model, its results would be silently wrong.
                if loaded.fingerprint != self.fingerprint:
                    raise StaleFunction(f"function {self.name!r} is not the one that was compiled")
                # Store the fields in the instance, which hides the descriptors.
                fields.update({name: value for name, value in loaded.__dict__.items() if name not in fields})
                fields["_loaded"] = loaded
        return fields["_loaded"]  # type: ignore[no-any-return]  # set above

    def computes(self, output: str) -> bool:
        return output in self.__dict__["_computed"]

    def find_weight_bytes(self, digest: bytes) -> np.ndarray[Any, Any] | None:
        reader = self.__dict__["_weights"].get(digest)
        return None if reader is None else reader()

    def loaded_constants(self) -> tuple[Constant, ...]:
        return tuple(self.constants.values()) if self.is_read else ()

    def replace(self, **changes: Any) -> Function:
        return self.read().replace(**changes)

    def with_types(self, types: Mapping[str, Type], *args: Any, **kwargs: Any) -> Function:
        return self.read().with_types(types, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Locks and readers cannot be pickled, so a copy is the complete Function.
        return _return_function, (self.read(),)


def _return_function(function: Function) -> Function:
    return function
