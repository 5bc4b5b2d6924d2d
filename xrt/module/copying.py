"""A module in another place: as a bundle, with what it has compiled, or pickled and copied by what it was made of.

What a copy has compiled is not part of it: it is compiled again, or found in the cache.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

from xrt.cache import CompileCache
from xrt.errors import XRTError
from xrt.module.model_source import BundledModel, BundledTraces, TracedModel, is_graph
from xrt.module.tracebacks import shorten_tracebacks

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.formats.bundle import BundleFile
    from xrt.formats.example import Example
    from xrt.module.buckets import Buckets
    from xrt.module.fallback import Call
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.module.self_test import SelfTestReport
    from xrt.module.specialization import Specialization
    from xrt.module.specialization_cache import SpecializationCache
    from xrt.partition import Plan
    from xrt.placement.engine_list import EngineList
    from xrt.runtime import Program

__all__ = ["Copyable", "Given", "Savable"]

_log = logging.getLogger(__name__)

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


# ---------------------------------------------------------------------- as a bundle


@shorten_tracebacks
class Savable:
    """A module that can be written to a bundle, and compared with what the bundle was saved with."""

    _source: ModelSource
    _cache: CompileCache
    _engines: EngineList
    _settings: ModuleOptions
    _buckets: Buckets | None
    _specializations: SpecializationCache
    _bundle: BundleFile | None = None
    """The bundle that the module was loaded from."""

    def save(
        self,
        path: str | os.PathLike[str],
        *examples: Any,
        example: Mapping[str, Any] | Sequence[Any] | bool = True,
        add: bool = False,
        **named: Any,
    ) -> None:
        """Write a bundle for `xrt.load`: model, weights, and every program compiled so far, in the engines' compiled forms.

        Compiles for the examples first, if there are any, or as `compile` does where nothing has been compiled yet.

        The bundle has one example with its outputs, which `run_self_test` computes again: ``example``, the inputs by name or in
        order, else the examples of the call, else those of the bundle that the module came from, else random inputs. Up to 16 MiB
        are kept. A model whose outputs change from call to call has no random example; ``example=False`` saves none.

        With ``add``, the bundle at the path gets one more variant, for this processor and thread budget, with plans and compiled
        forms of its own; one for the same is replaced. Weights are kept once. `xrt.load` chooses the variant that fits.

        Raises BundleError where the file cannot be written, or is of another model; OptionError for an ``example`` that
        cannot be kept, and what `compile` raises.
        """
        from xrt.formats.bundle import BundleFile
        from xrt.module.saving import save_module
        from xrt.module.self_test import read_example

        self._check_open()
        if examples or named or not any(build.is_compiled for build in self._specializations):
            self.compile(*examples, **named)
        if not isinstance(example, bool):
            examples, named = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
            self.compile(*examples, **named)
        kept = self._make_example(examples, named, is_asked=not isinstance(example, bool)) if example is not False else None
        base = BundleFile(path) if add else None
        if base is not None and isinstance(example, bool):
            kept = read_example(base) or kept
        builds, serving = self._specializations.to_dict(), self._spell_serving()
        terms = self._source, self._engines, self._settings, builds, kept, serving, base
        save_module(path, *terms, has_buckets=self._buckets is not None)

    def _make_example(self, examples: tuple[Any, ...], named: Mapping[str, Any], *, is_asked: bool) -> Example | None:
        """Return what the bundle has as its example; None where there is none to be had, and none was asked for."""
        from xrt.graph import Function
        from xrt.module.buckets import PaddedValues
        from xrt.module.fallback import Call
        from xrt.module.self_test import draw_inputs, make_example, read_example
        from xrt.runtime import to_host

        if not (examples or named) and self._bundle is not None:
            return read_example(self._bundle)
        values = self._check_inputs(examples, named) if examples or named else None
        compiled = [made for (_, fetch), made in self._specializations.to_dict().items() if made.is_compiled and not fetch]
        build = self._specialize(values) if values is not None else compiled[-1] if compiled else None
        if build is None:
            return None

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            given = self._check_inputs(inputs, {})
            call = Call.of(given, None, None, build.function, self._engines.context.device)
            results = self._run_with_fallback(build, call, None)
            on_host: Sequence[Any] = to_host(list(results if self._buckets is None else self._buckets.cut(results, call.inputs)))
            return on_host

        try:
            function, given = build.full_function(), None if values is None else to_host(values)
            if self._buckets is not None:  # the example is one of the model, not of its padded form
                given = values.given if isinstance(values, PaddedValues) else draw_inputs(function)[: len(self._source.inputs)]
                function = Function(self._source.inputs, self._source.outputs)
            return make_example(function, run, given)
        except XRTError:
            if is_asked:
                raise
            _log.info("the bundle has no example", exc_info=True)
            return None

    def run_self_test(self) -> SelfTestReport | None:
        """Check the bundle that the module came from, compute its example, and compare with the outputs that were saved.

        To be called before a service says that it is ready. What passes is remembered in the disk cache: as long as the file does
        not change, later processes of the host do not read it through to check it. None where the module came from no bundle, or
        from one without an example; its file is checked all the same.

        Raises SelfTestFailed, with the largest difference, where the file is damaged, the example cannot be computed, or an
        output differs by more than the tolerance of a network.
        """
        from xrt.module.bundle_tier import BundleTier
        from xrt.module.self_test import run_example
        from xrt.runtime import to_host

        if self._bundle is None:
            return None

        def call(inputs: Sequence[Any]) -> Sequence[Any]:
            results = self(*inputs)
            on_host: Sequence[Any] = to_host(list(results) if isinstance(results, tuple) else [results])
            return on_host

        report = run_example(self._bundle, call)
        if isinstance(self._cache.disk, BundleTier):
            self._cache.disk.keep_check()
        return report

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError

    def compile(self, *examples: Any, **named: Any) -> Plan:
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    def _spell_serving(self) -> str:
        raise NotImplementedError

    def _check_inputs(self, args: Sequence[Any], named: Any) -> list[Any]:
        raise NotImplementedError

    def _specialize(self, values: Any) -> Specialization:
        raise NotImplementedError

    def _run_with_fallback(self, build: Specialization, call: Call, program: Program | None) -> list[Any]:
        raise NotImplementedError
