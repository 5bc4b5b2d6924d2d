"""A module by what it was made of: pickled, sent to another process, copied.

What it has compiled is not part of that: it is compiled again, or found in the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

from xrt.cache import CompileCache
from xrt.module.model_source import BundledModel, BundledTraces, TracedModel, is_graph

if TYPE_CHECKING:
    from xrt.module.model_source import ModelSource

__all__ = ["Copyable", "Given"]

ADVICE = "Save a bundle with m.save(path), and xrt.load it where it is needed"


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments that a module was made with, but for the model's bytes: its Function has what was in them."""

    engine: Any
    device: str
    cache: CompileCache | str | os.PathLike[str] | None
    options: Mapping[str, Any]
    path: Path | None
    """The model's file, absolute; None where it came otherwise."""

    @classmethod
    def of(cls, model: Any, engine: Any, device: str, cache: Any, options: Mapping[str, Any]) -> Given:
        return cls(engine, device, cache, options, Path(model).absolute() if isinstance(model, str | os.PathLike) else None)


class Copyable:
    """A module that can be pickled and copied, where what it was made of can."""

    _given: Given
    _source: ModelSource

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make the module again; raises TypeError, with what to do instead, where that cannot be written down."""
        given, model = self._given, self._model()
        if isinstance(given.cache, CompileCache):
            raise TypeError(f"a module with a CompileCache of its own cannot be pickled; give cache= a directory. {ADVICE}")
        parts = {
            "its model": model if is_graph(model) else None,
            "its engines": given.engine,
            "its options": given.options,
        }
        for what, part in parts.items():
            if reason := _why_not_written(part):
                raise TypeError(f"this module cannot be pickled, since {what} cannot: {reason}. {ADVICE}")
        return _make, (type(self), given.path or model, given.engine, given.device, given.cache, dict(given.options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        import copy

        given, model = self._given, self._model()
        function = copy.deepcopy(model, memo) if is_graph(model) else model  # a Function never changes
        made: Self = _make(type(self), function, given.engine, given.device, given.cache, given.options)
        return made

    def __copy__(self) -> Self:
        return self.__deepcopy__({})

    def _model(self) -> Any:
        """Return the Function, or the graph, that the module runs; raises TypeError for one from a bundle."""
        source = self._source
        if isinstance(source, BundledModel | BundledTraces):
            raise TypeError("a module from a bundle cannot be pickled or copied; xrt.load the bundle again where it is needed")
        return source.graph if isinstance(source, TracedModel) else source.get_declared_function()


def _why_not_written(part: Any) -> str | None:
    """Return why a part cannot be pickled; None where nothing is seen that speaks against it.

    A pickle has functions and classes by name, so they must be found by it; `copy.deepcopy` takes the rest apart as it does.
    """
    import copy

    members = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else (part,)
    for member in members:
        named = member if isinstance(member, FunctionType | type) else type(member)
        found: Any = sys.modules.get(named.__module__)
        for name in named.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is not named and named is not type(None):
            return f"{named.__module__}.{named.__qualname__} is not found by that name"
    try:
        copy.deepcopy(part)
    except Exception as error:  # noqa: BLE001  # whatever a member says of itself
        return str(error)
    return None


def _make(kind: Any, model: Any, engine: Any, device: str, cache: Any, options: Mapping[str, Any]) -> Any:
    return kind(model, engine, device, cache=cache, **options)
