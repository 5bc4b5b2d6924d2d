"""Buckets: calls of many sizes served by programs of a few, where padding provably changes nothing of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import OptionError, PlanError, did_you_mean
from xrt.graph import FrozenDict
from xrt.module.dispatch import NO_MATCH, FastPath, make_named_call, make_signature_check
from xrt.module.model_source import StaticModel
from xrt.module.options import IMPLICIT
from xrt.module.specialization import optimize
from xrt.passes.padding import PaddedFunction, pad_dims
from xrt.placement.sizes import Sizes, list_open_axes, parse_sizes, read_sizes

if TYPE_CHECKING:
    from xrt.module.model_source import ModelSource
    from xrt.module.options import BucketOption, ModuleOptions
    from xrt.module.specializable import Specializable
    from xrt.placement.engine_list import EngineList

__all__ = ["Buckets", "PaddedValues", "find_reason_for_sizes", "make_buckets", "parse_buckets", "round_up"]

MOST_REMEMBERED = 4096
"""Sets of sizes whose buckets are remembered."""


def round_up(size: int) -> int:
    """Return the bucket of a size: the next power of two, or the number half way to it. It is less than 1.5 times the size.

    >>> [round_up(size) for size in (0, 1, 2, 3, 5, 9, 13, 100, 129)]
    [0, 1, 2, 3, 6, 12, 16, 128, 192]
    """
    power = 1 << max(size - 1, 0).bit_length()
    return 0 if size == 0 else half if (half := power // 4 * 3) >= size else power


def parse_buckets(asked: Any) -> BucketOption:
    """Return the option ``buckets``; raises OptionError for another value."""
    if asked is None or asked in ("auto", "require"):
        return asked  # type: ignore[no-any-return]  # just these
    if not isinstance(asked, Mapping):
        raise OptionError(f"buckets must be 'auto', 'require', None or sizes such as {{'s': [16, 64]}}; got {asked!r}")
    return parse_sizes(asked, "buckets")


class PaddedValues(list[Any]):
    """The inputs of a call with padding, and what they were."""

    def __init__(self, values: Sequence[Any], given: Sequence[Any], sizes: Sizes, padded: Sizes) -> None:
        super().__init__(values)
        self.given, self.sizes, self.padded = given, sizes, padded


class Buckets:
    """The padded form of a model, and which sizes a call is padded to."""

    def __init__(self, source: ModelSource, padded: PaddedFunction, asked: BucketOption) -> None:
        self._inputs = source.inputs
        self._padded = padded
        self._asked = asked if isinstance(asked, Mapping) else FrozenDict()
        self.source = StaticModel(padded.function)
        """The model that is compiled: its further inputs are sizes without padding."""
        self._open = tuple(list_open_axes(source.inputs))
        self._choose = lru_cache(MOST_REMEMBERED)(self._find_sizes)

    # ------------------------------------------------------------------ sizes

    def choose(self, sizes: Sizes) -> Sizes:
        """Return the sizes that inputs of these sizes are padded to."""
        return self._choose(tuple(sizes.items()))

    def _find_sizes(self, items: tuple[tuple[str, int], ...]) -> Sizes:
        sizes = dict(items)
        padded = {name: self._round(name, size) if name in self._padded.dims else size for name, size in items}
        if not self._padded.allows(sizes, sizes):
            return FrozenDict(sizes)
        for name in self._padded.dims:  # a size that is too large for the model's tables is cut down to what they hold
            if not self._padded.allows(sizes, padded):
                padded[name] = self._shrink(name, sizes, padded)
        return FrozenDict(padded if self._padded.allows(sizes, padded) else sizes)

    def _round(self, name: str, size: int) -> int:
        asked = self._asked.get(name)
        return round_up(size) if asked is None else next((one for one in asked if one >= size > 0), size)

    def _shrink(self, name: str, sizes: Sizes, padded: Mapping[str, int]) -> int:
        """Return the largest size of a dim that is allowed with the others; without one, the size itself."""
        low, high = sizes[name], padded[name]
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._padded.allows(sizes, {**padded, name: middle}) else (low, middle - 1)
        return low

    # ------------------------------------------------------------------ values

    def pad(self, values: Sequence[Any], *, exact: bool = False) -> PaddedValues:
        """Return the inputs of a call with padding; ``exact``: without, but with the sizes that the padded form takes."""
        sizes = read_sizes(self._inputs, values)
        return self._fill(values, sizes, sizes if exact else self.choose(sizes))

    def _fill(self, values: Sequence[Any], sizes: Sizes, padded: Sizes) -> PaddedValues:
        shapes = {place: list(values[place].shape) for place, _, _ in self._open}
        for place, axis, name in self._open:
            shapes[place][axis] = padded[name]
        found = list(values)
        for place, shape in shapes.items():
            found[place] = _copy_into(values[place], tuple(shape))
        fed = [np.array(sizes[name], np.int64) for name in self._padded.fed]
        return PaddedValues([*found, *fed], values, sizes, padded)

    def cut(self, results: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a call with these inputs without padding."""
        if not isinstance(values, PaddedValues) or values.sizes == values.padded:
            return results
        return self._padded.cut(results, values.sizes, values.padded)

    def make_path(self, path: FastPath, values: Sequence[Any]) -> tuple[Sequence[Any], FastPath]:
        """Return the inputs of a call without padding, and the prepared call for such, from that for the padded ones."""
        if not isinstance(values, PaddedValues):
            return values, path
        kept = PaddedValues((), (), values.sizes, values.padded)  # of no arrays
        fill, cut = partial(self._fill, sizes=values.sizes, padded=values.padded), partial(self.cut, values=kept)
        fits = make_signature_check(tuple((type(value), value.dtype, value.shape) for value in values.given))
        positional = _wrap(path, fits, fill, cut)
        named = make_named_call([value.name for value in self._inputs], positional)
        return values.given, FastPath(positional, named, build=path.build, program=path.program)

    # ------------------------------------------------------------------ reports

    def describe(self) -> list[str]:
        """Return what `explain` says of the dims that are padded."""
        fed = set(self._padded.fed)
        return [
            f"buckets: sizes of {name!r} are rounded up{self._format(name)}"
            + (", and masked where an operator would read what is behind" if name in fed else "")
            for name in self._padded.dims
        ]

    def _format(self, name: str) -> str:
        asked = self._asked.get(name)
        return " to powers of two, or half way between" if asked is None else f" to {', '.join(map(str, asked))}"


def _copy_into(value: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of that shape which begins with a value, and is zero elsewhere."""
    if value.shape == shape:
        return value
    made = np.full(shape, "", object) if value.dtype.hasobject else np.zeros(shape, value.dtype)
    made[tuple(map(slice, value.shape))] = value
    return made


def _wrap(
    path: FastPath,
    fits: Callable[[tuple[Any, ...]], bool],
    fill: Callable[[Sequence[Any]], PaddedValues],
    cut: Callable[[Sequence[Any]], Sequence[Any]],
) -> Callable[[tuple[Any, ...]], Any]:
    def call(args: tuple[Any, ...]) -> Any:
        if not fits(args):
            return NO_MATCH
        result = path.positional(tuple(fill(args)))
        if result is NO_MATCH:
            return result
        return tuple(cut(result)) if isinstance(result, tuple) else cut([result])[0]

    return call


def make_buckets(source: ModelSource, settings: ModuleOptions, engines: EngineList) -> tuple[Buckets | None, tuple[str, ...]]:
    """Return the buckets of a module, None where nothing is padded, and what `explain` says of them.

    Raises OptionError where buckets are required and a dim cannot be padded, and for a module that cannot have them.
    """
    asked = settings.buckets
    if asked is None:
        return None, ()
    if source.is_traced or engines.context.device != "cpu" or engines.devices:
        why = "is an xrt.Graph; pass graph.trace(...) with named extents" if source.is_traced else "runs on a device"
        raise OptionError(f"buckets= pads the open sizes of a model on the CPU, and this module {why}")
    if asked == "auto" and engines.can_be_dynamic and settings.dynamic != "never":
        return None, ("no buckets: the engines can serve all sizes by one program (dynamic='never' prevents that)",)
    names = dict.fromkeys(name for _, _, name in list_open_axes(source.inputs))
    for name in asked if isinstance(asked, Mapping) else ():
        if name not in names:
            raise OptionError(f"buckets names {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, names)}")
    if not names and asked == "require":
        raise OptionError("buckets= is of symbolic dims, and the inputs of the model have none")
    function = source.get_declared_function()
    simple = optimize(function, fold=settings.fold_constants, engines=engines)
    padded = pad_dims(simple, tuple(asked) if isinstance(asked, Mapping) else None)
    if asked != "auto" and padded.refusals:
        name, reason = next(iter(padded.refusals.items()))
        raise OptionError(f"sizes of {name!r} cannot be padded without changing results: {reason}; leave buckets= out for it")
    refused = tuple(f"no buckets for {name!r}: {reason}" for name, reason in padded.refusals.items())
    if not padded.dims:
        return None, refused
    made = Buckets(source, padded, asked)
    return made, (*made.describe(), *refused)


def find_reason_for_sizes(module: Specializable, values: Any) -> str:
    """Return why each set of sizes has a program of its own; empty where one program serves all.

    The engines of the module all take symbolic dims, and its model has some. One program serves where no engine has a reason
    against it for its region, and where the reference engine, behind others, gets no node that is theirs at the sizes of
    ``values``. Without values (None) it gets no node at all.
    """
    if module._settings.dynamic == "always":
        return ""
    sizes = None if values is None else module._source.key(values, False)
    if module._stored is not None and module._stored.has(None):
        return ""
    if module._stored is not None and module._stored.has(sizes):
        return "the cache has a program for these sizes"
    try:
        build = module._find_or_plan((None, ()), None)
        plan = build.plan
    except PlanError as error:
        return str(error).splitlines()[0]
    engines = build.engines.by_spec
    behind = [engine.spec for engine in module._engines.engines[1:] if engine.name == IMPLICIT]
    for launch in plan.launches:
        if launch.engine in behind:
            continue
        engine = engines.get(launch.engine)
        if engine is None or not engine.supports_dynamic_shapes:
            return f"engine {launch.engine!r} needs every extent fixed"
        if reason := engine.why_not_dynamic(launch.function):
            return reason
    moved = [name for launch in plan.launches if launch.engine in behind for name in launch.nodes]
    if moved and sizes is not None:
        fixed = module._find_or_plan((sizes, ()), values).plan
        moved = sorted({*moved}.difference(*(launch.nodes for launch in fixed.launches if launch.engine in behind)))
    return next((str(reason) for reason in plan.reasons if reason.node in moved), "")
