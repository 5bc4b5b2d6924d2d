"""Choose the program for the sizes of a call: one for all sizes, one of a few for padded sizes, or one for each set of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import InputError, OptionError, PlanError, did_you_mean
from xrt.graph import FrozenDict
from xrt.module.dispatch import NO_MATCH, FastPath, make_signature_check
from xrt.module.engines import IMPLICIT
from xrt.module.model_source import ModelSource, StaticModel
from xrt.module.options import Buckets, ModuleOptions, Shapes, parse_shapes
from xrt.placement.sizes import Sizes, list_open_axes, read_sizes

if TYPE_CHECKING:
    from xrt.module.programs import Programs
    from xrt.module.stored_plans import StoredPlans
    from xrt.passes.padding import PaddedFunction
    from xrt.placement.engine_list import EngineList

MAX_CACHED_SIZES = 4096
"""Number of sets of sizes whose padded sizes are cached."""


def dump_shapes(shapes: Shapes) -> dict[str, Any]:
    """Convert the option ``shapes`` to plain data, which `read_shapes` converts back."""
    return {"rule": shapes} if isinstance(shapes, str) else {"buckets": shapes.sizes and dict(shapes.sizes)}


def read_shapes(facts: Mapping[str, Any]) -> Shapes:
    """Convert the plain data of `dump_shapes` back; raises ValueError, TypeError or KeyError if it is damaged."""
    return parse_shapes(Buckets(facts["buckets"]) if "buckets" in facts else facts["rule"])


def round_up(size: int) -> int:
    """Round a size up to the next power of two, or number half way between two of them; this adds less than half.

    >>> [round_up(size) for size in (0, 1, 2, 3, 5, 9, 13, 100, 129)]
    [0, 1, 2, 3, 6, 12, 16, 128, 192]
    """
    power = 1 << max(size - 1, 0).bit_length()
    return 0 if size == 0 else half if (half := power // 4 * 3) >= size else power


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads the inputs and cuts the outputs of calls with these sizes."""

    model: PaddedModel
    sizes: Sizes
    padded: Sizes
    """The sizes after padding."""

    def pad(self, values: Sequence[Any]) -> list[Any]:
        """Pad inputs with zeros or empty strings, and append the original sizes, which the padded model has as inputs."""
        arrays, axes = list(values), self.model.open_axes
        shapes = {index: list(values[index].shape) for index, _, _ in axes}
        for index, axis, name in axes:
            shapes[index][axis] = self.padded[name]
        for index, shape in shapes.items():
            value = values[index]
            if value.shape != tuple(shape):
                arrays[index] = np.full(shape, "", object) if value.dtype.hasobject else np.zeros(shape, value.dtype)
                arrays[index][tuple(map(slice, value.shape))] = value
        return [*arrays, *(np.array(self.sizes[name], np.int64) for name in self.model.padded.fed)]

    def cut(self, results: Sequence[Any]) -> Sequence[Any]:
        """Cut outputs to the sizes before padding."""
        return results if self.sizes == self.padded else self.model.padded.cut(results, self.sizes, self.padded)


class PaddedValues(list[Any]):
    """The padded inputs of a call, which remembers the inputs before padding."""

    def __init__(self, unpadded: Sequence[Any], padding: Padding) -> None:
        super().__init__(padding.pad(unpadded))
        self.unpadded, self.padding = unpadded, padding

    def make_path(self, path: FastPath) -> tuple[Sequence[Any], FastPath]:
        """Turn a prepared call for padded inputs into one that pads. Returns the inputs before padding, and the new call."""
        # Only the padding, without `self`: a prepared call must not keep the arrays of the call that it was prepared for.
        padding = self.padding
        fits = make_signature_check(tuple((type(value), value.dtype, value.shape) for value in self.unpadded))

        def call(args: tuple[Any, ...]) -> Any:
            result = path.call(tuple(padding.pad(args))) if fits(args) else NO_MATCH
            if result is NO_MATCH:
                return result
            return tuple(padding.cut(result)) if isinstance(result, tuple) else padding.cut([result])[0]

        return self.unpadded, FastPath(call, build=path.build, program=path.program)


class PaddedModel:
    """A model whose inputs may be padded, and the choice of the sizes to pad a call to."""

    def __init__(self, source: ModelSource, padded: PaddedFunction, buckets: Mapping[str, tuple[int, ...] | None]) -> None:
        self.inputs, self.padded = source.inputs, padded
        self.buckets = FrozenDict({dim: buckets.get(dim) for dim in padded.dims})
        self.source = StaticModel(padded.function)
        """The model to compile. Its last inputs are the sizes before padding."""
        self.open_axes = tuple(list_open_axes(source.inputs))
        # Cached: a service repeats a few sizes, and the search evaluates the model's constraints many times.
        self._choose = lru_cache(MAX_CACHED_SIZES)(self._find_sizes)

    def choose(self, sizes: Sizes) -> Sizes:
        """Choose the padded sizes for a call with ``sizes``."""
        return self._choose(tuple(sizes.items()))

    def _find_sizes(self, items: tuple[tuple[str, int], ...]) -> Sizes:
        """Round each size up to its bucket, or to the largest size below it that the model's constraints allow."""
        sizes, padded, allows = dict(items), dict(items), self.padded.allows
        if not allows(sizes, sizes):
            return FrozenDict(sizes)
        for name in self.padded.dims:
            size, buckets = sizes[name], self.buckets[name]
            padded[name] = next((bucket for bucket in buckets if bucket >= size > 0), size) if buckets else round_up(size)
        for name in self.padded.dims:
            # Tables such as position embeddings bound the sizes: search for the largest padded size that they allow.
            low = padded[name] if allows(sizes, padded) else sizes[name]
            while low < (high := padded[name]):
                middle = (low + high + 1) // 2
                low, padded[name] = (middle, high) if allows(sizes, {**padded, name: middle}) else (low, middle - 1)
        return FrozenDict(padded if allows(sizes, padded) else sizes)

    def pad(self, values: list[Any], *, exact: bool = False) -> list[Any]:
        """Pad the inputs of a call; ``exact`` pads nothing and only appends the sizes that the padded model has as inputs.

        If the sizes violate a condition of the padded model, the inputs are returned unchanged, for the original model.
        """
        sizes = read_sizes(self.inputs, values)
        if not self.padded.allows(sizes, sizes):
            return values
        return PaddedValues(values, Padding(self, sizes, sizes if exact else self.choose(sizes)))

    def describe(self) -> Iterator[str]:
        """Yield a line for `explain` about each padded dim."""
        for dim, buckets in self.buckets.items():
            sizes = "powers of two, or half way between" if buckets is None else ", ".join(map(str, buckets))
            masked = ", and masked where an operator would read what is behind" if dim in self.padded.fed else ""
            yield f"buckets: sizes of {dim!r} are rounded up to {sizes}{masked}"


# ---------------------------------------------------------------------- the policy


class SizePolicy:
    """Chooses which program serves a call, by the sizes of its inputs and the option ``shapes``.

    With ``"auto"`` the sizes of the first call get a static program, which may be faster. When a call has other sizes, the policy
    is chosen for all further sizes: one program if each engine of the plan supports that, else padding if it provably changes no
    result, else a program for each set of sizes.
    """

    def __init__(self, settings: ModuleOptions, source: ModelSource, engines: EngineList, stored: StoredPlans | None) -> None:
        self.shapes, self.source = settings.shapes, source
        self.pads_all = self._is_decided = isinstance(self.shapes, Buckets)
        self._stored, self._fold = stored, settings.fold_constants
        self._why_each: str | None = None
        """Why one program does not serve all sizes. None before this is decided; empty if one program does."""
        self.exact: frozenset[object] = frozenset()
        """Keys of the sizes that have a static program: those of the first call, and of placements measured at one set of
        sizes."""
        self.refusals: tuple[str, ...] = ()
        """Messages about dims that cannot be padded."""
        self.padding = self._make_padding(engines, self.shapes) if isinstance(self.shapes, Buckets) else None
        self.served = source if self.padding is None else self.padding.source
        self.open_axes = () if source.is_traced else tuple(list_open_axes(self.served.inputs))

    @property
    def remarks(self) -> tuple[str, ...]:
        lines = (*(self.padding.describe() if self.padding else ()), *self.refusals)
        kind = "set" if self.padding is None else "bucket"
        return (*lines, f"one program for each {kind} of sizes: {self._why_each}") if self._why_each else lines

    # ------------------------------------------------------------------ from values to a key

    def get_source(self, values: Any) -> ModelSource:
        """Return the model that runs these inputs: the padded one if they were padded. None is for the declared types."""
        if self.padding is not None and isinstance(values, PaddedValues):
            return self.padding.source
        return self.served if values is None else self.source

    def pad(self, values: list[Any], programs: Programs, *, pads: bool = True) -> list[Any]:
        """Pad the inputs of a call if a padded program serves their sizes; ``pads=False`` keeps the sizes."""
        # Sizes with a static program, as in a bundle, need no padding.
        if self.padding is not None and self.pads_all:
            return values if self.source.key(values) in self.exact else self.padding.pad(values, exact=not pads)
        if not pads or self.shapes != "auto" or not self.open_axes:
            return values
        sizes = self.source.key(values)
        # These sizes have a program already, in this module or in the cache.
        if self._claim_static_program(sizes, programs) or (self._stored is not None and self._stored.has(sizes)):
            return values
        # One program for all sizes computes less than padding.
        if programs.engines.are_dynamic or not self.find_reason(values, programs):
            return values
        return values if (padding := self.find_padding(programs)) is None else padding.pad(values)

    def get_key(self, values: Any, programs: Programs) -> object:
        """Make the dict key of the program for these inputs: their shapes or, for a traced graph, their full types.

        None if one program serves all inputs. ``values`` is None for the declared types.
        """
        if values is None and not self.source.is_traced:
            return None
        source, engines = self.get_source(values), programs.engines
        sizes = source.key(values or [])
        if (
            sizes is None
            or source is not self.source
            or self._claim_static_program(sizes, programs)
            # Programs for all sizes of some engines do not support a symbolic dim of 0.
            or (not engines.are_dynamic and any(values[index].shape[axis] == 0 for index, axis, _ in self.open_axes))
        ):
            return sizes
        return sizes if source.is_traced or self.find_reason(values, programs) else None

    def set_exact(self, values: Sequence[Any]) -> None:
        """Let later calls with the sizes of these inputs use a static program."""
        if self.open_axes:
            self.exact |= {self.get_source(values).key(values)}

    def _claim_static_program(self, sizes: object, programs: Programs) -> bool:
        """Whether these sizes use a static program. With ``"auto"``, the first sizes passed become those that use one."""
        engines, stored = programs.engines, self._stored
        # Claimed already, or it is decided whether one program serves all sizes.
        if self.exact or self._why_each is not None:
            return sizes in self.exact
        # Nothing to claim: one program serves all sizes, or each set of sizes has its own.
        if self.shapes != "auto" or engines.are_dynamic or (engines.is_auto and not engines.can_be_dynamic):
            return False
        # A stored program for all sizes serves the first call as well, and without a compile.
        if stored is None or not stored.has(None) or stored.has(sizes):
            self.exact = frozenset([sizes])
        return sizes in self.exact

    # ------------------------------------------------------------------ one program for all sizes

    def find_reason(self, values: Any, programs: Programs) -> str:
        """Explain why one program does not serve all sizes; empty if it does.

        If engines must be queried, this happens once, with the inputs ``values`` of that call, and the result holds for all
        calls.
        """
        engines = programs.engines
        if self.pads_all:
            return "shapes=Buckets(...) pads to a few of them"
        if self.shapes == "each":
            return "shapes='each'"
        if not engines.can_be_dynamic:
            fixed = next(engine.spec for engine in engines.engines if not engine.supports_dynamic_shapes)
            return f"engine {fixed!r} needs every extent fixed"
        if engines.is_auto and programs.placer.placed is None and self.shapes != "one":
            return "engine='auto' measures at the sizes of a call"
        if self._why_each is not None or engines.are_dynamic:
            return self._why_each or ""
        # Without symbolic dims there is only one set of sizes; each trace of a graph counts as a model.
        if self.source.is_traced or self.source.is_static:
            return "the model has no symbolic dims"
        with programs.planning:
            if self._why_each is None:
                reason = self._find_reason(values, programs)
                if reason and values is None:
                    return reason  # not stored: at the sizes of a call there may be no reason
                self._why_each = reason
        return self._why_each

    def _find_reason(self, values: Any, programs: Programs) -> str:
        """Plan for symbolic dims, and explain why one program does not serve all sizes; empty if it does.

        Each engine must accept its region with dynamic shapes, and the reference engine must get no node that another engine
        supports at the sizes of ``values`` (None: no node at all).
        """
        if self.shapes == "one":
            return ""
        sizes = None if values is None else self.source.key(values)
        if self._stored is not None and self._stored.has(None):
            return ""
        if self._stored is not None and self._stored.has(sizes):
            return "the cache has a program for these sizes"
        try:
            build = programs.find_or_plan((None, ()), None)
            plan = build.plan
        except PlanError as error:
            return str(error).splitlines()[0]
        # The reference engine accepts any size, so only its nodes that another engine could run count against one program.
        reference_specs = [engine.spec for engine in programs.engines.engines[1:] if engine.name == IMPLICIT]
        for launch in plan.launches:
            if launch.engine not in reference_specs and (reason := build.engines.why_not_dynamic(launch)):
                return reason
        moved = [name for launch in plan.launches if launch.engine in reference_specs for name in launch.nodes]
        if moved and sizes is not None:
            fixed = programs.find_or_plan((sizes, ()), values).plan
            moved = sorted({*moved}.difference(*(x.nodes for x in fixed.launches if x.engine in reference_specs)))
        return next((str(reason) for reason in plan.reasons if reason.node in moved), "")

    def check_declared(self, programs: Programs) -> None:
        """Raise InputError unless the module can be compiled for the declared types, without example inputs."""
        source = self.source
        if not source.inputs or source.is_static:
            return
        why = "the graph is traced for its inputs" if source.is_traced else self.find_reason(None, programs)
        if why:
            raise InputError(f"compile() needs example inputs: {why}; pass m.compile(x, ...)")

    def reset(self) -> None:
        """Decide again whether one program serves all sizes, because the placement of the model changed."""
        self._why_each = None

    # ------------------------------------------------------------------ padding

    def find_padding(self, programs: Programs) -> PaddedModel | None:
        """Return the padded form of the model, made on first use; None if it cannot be padded or the options exclude it."""
        if self._is_decided or self.shapes != "auto":
            return self.padding
        with programs.planning:
            engines = programs.engines
            if not self._is_decided and not engines.is_auto and engines.context.device == "cpu" and not engines.devices:
                self.padding = self._make_padding(engines, None)
            self._is_decided = True
        return self.padding

    def _make_padding(self, engines: EngineList, buckets: Buckets | None) -> PaddedModel | None:
        """Create the padded form of the model: for the dims of ``buckets``, or without it for all dims that can be padded.

        None if no dim can be padded. Raises OptionError if a dim of ``buckets`` cannot be, or the module is traced or on a
        device.
        """
        from xrt.module.programs import optimize
        from xrt.passes.padding import pad_dims

        source = self.source
        if source.is_traced or engines.context.device != "cpu" or engines.devices:
            why = "is an xrt.Graph; pass graph.trace(...) with named extents" if source.is_traced else "runs on a device"
            raise OptionError(f"Buckets(...) pads the open sizes of a model on the CPU, and this module {why}")
        dims = dict.fromkeys(name for _, _, name in list_open_axes(source.inputs))
        sizes = buckets.sizes or FrozenDict() if buckets else FrozenDict()
        for name in sizes:
            if name not in dims:
                raise OptionError(f"Buckets has {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, dims)}")
        if buckets and not dims:
            raise OptionError("Buckets(...) is for symbolic dims, and the inputs of the model have none")
        optimized = optimize(source.get_declared_function(), fold=self._fold, engines=engines)
        padded = pad_dims(optimized, tuple(sizes) if sizes else None)
        if buckets and padded.refusals:
            name, reason = next(iter(padded.refusals.items()))
            raise OptionError(
                f"sizes of {name!r} cannot be padded without changing results: {reason}; "
                "pass shapes='auto', or Buckets without it"
            )
        # Without explicit buckets a dim that cannot be padded is only reported.
        self.refusals = tuple(f"no buckets for {name!r}: {reason}" for name, reason in padded.refusals.items())
        if not padded.dims:
            return None
        return PaddedModel(source, padded, sizes)

    # ------------------------------------------------------------------ programs of a bundle

    @property
    def saved_shapes(self) -> Shapes:
        """The value of option ``shapes`` to save in a bundle: the buckets if the module pads calls, else its own value."""
        return Buckets(self.padding.buckets) if self.padding is not None else self.shapes

    def restore_key(self, types: Sequence[Any], engines: EngineList) -> tuple[object] | None:
        """Find the key under which to restore a saved program with inputs of these types: that of `get_key` for such a call.

        Returned in a tuple, since a key may be None. None instead of a tuple if the program must not be restored: it is for
        certain sizes, but the module would use it for all.
        """
        if self.source.is_traced:
            return (tuple(types),)
        if self.pads_all and len(types) == len(self.source.inputs):  # the program of the first sizes, without padding
            self.set_exact(types)
            return (self.source.key(types),)
        is_general = tuple(types) == tuple(value.type for value in self.served.inputs)
        keeps_dims = engines.are_dynamic or (is_general and engines.can_be_dynamic)
        is_for_all = not self.pads_all and self.shapes != "each" and keeps_dims
        key = None if is_for_all else self.served.key(types)
        if key is None and not is_general:
            return None
        if not self.pads_all and self._why_each != "" and engines.can_be_dynamic and not engines.are_dynamic:
            self._why_each = "" if key is None else "the bundle has programs for sizes"
        return (key,)
