"""Choose the program for the sizes of a call: a general one for all sizes, one for padded sizes, or one for these sizes only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import InputError, OptionError, PlanError, did_you_mean
from xrt.graph import FrozenDict
from xrt.module.dispatch import NO_MATCH, FastPath, make_type_check
from xrt.module.engines import IMPLICIT
from xrt.module.model_source import ModelSource, StaticModel
from xrt.module.options import Buckets, ModuleOptions, Shapes, parse_shapes
from xrt.partition.support_matrix import DeviceMap
from xrt.placement.sizes import Sizes, list_open_axes, read_sizes

if TYPE_CHECKING:
    from xrt.module.programs import Programs
    from xrt.module.stored_plans import StoredPlans
    from xrt.passes.padding import PaddedFunction
    from xrt.placement.engine_list import EngineList

MAX_CACHED_SIZES = 4096


def dump_shapes(shapes: Shapes) -> dict[str, Any]:
    if isinstance(shapes, str):
        return {"rule": shapes}
    return {"buckets": None if shapes.sizes is None else dict(shapes.sizes)}


def read_shapes(facts: Mapping[str, Any]) -> Shapes:
    """Convert the result of `dump_shapes` to the option ``shapes``. Raises ValueError, TypeError or KeyError if it is damaged."""
    return parse_shapes(Buckets(facts["buckets"]) if "buckets" in facts else facts["rule"])


def round_up(size: int) -> int:
    """Round a size up to the next power of two, or to the middle of two powers of two. This adds less than half of the size.

    >>> [round_up(size) for size in (0, 1, 2, 3, 5, 9, 13, 100, 129)]
    [0, 1, 2, 3, 6, 12, 16, 128, 192]
    """
    if size == 0:
        return 0
    power = 1 << (size - 1).bit_length()
    middle = power // 4 * 3  # of this power of two and the previous one
    return middle if middle >= size else power


@dataclass(frozen=True, slots=True)
class Padding:
    model: PaddedModel
    sizes: Sizes
    padded: Sizes

    def pad(self, values: Sequence[Any]) -> list[Any]:
        """Pad inputs with zeros or empty strings. Append the sizes before padding, which the padded model has as inputs."""
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
        return results if self.sizes == self.padded else self.model.padded.cut(results, self.sizes, self.padded)


class PaddedValues(list[Any]):
    def __init__(self, unpadded: Sequence[Any], padding: Padding) -> None:
        super().__init__(padding.pad(unpadded))
        self.unpadded, self.padding = unpadded, padding

    def make_path(self, path: FastPath) -> tuple[Sequence[Any], FastPath]:
        """Make of a prepared call for padded inputs one that pads its inputs. Also returns the inputs before padding."""
        # The new call must not refer to `self`, which has the arrays of a finished call.
        padding = self.padding
        fits = make_type_check(tuple((type(value), value.dtype, value.shape) for value in self.unpadded))

        def call(args: tuple[Any, ...]) -> Any:
            result = path.call(tuple(padding.pad(args))) if fits(args) else NO_MATCH
            if result is NO_MATCH:
                return result
            return tuple(padding.cut(result)) if isinstance(result, tuple) else padding.cut([result])[0]

        return self.unpadded, FastPath(call, build=path.build, program=path.program)


class PaddedModel:
    def __init__(self, source: ModelSource, padded: PaddedFunction, buckets: Mapping[str, tuple[int, ...] | None]) -> None:
        self.inputs, self.padded = source.inputs, padded
        self.buckets = FrozenDict({dim: buckets.get(dim) for dim in padded.dims})
        self.source = StaticModel(padded.function)
        """The model to compile. Its last inputs are sizes before padding."""
        self.open_axes = tuple(list_open_axes(source.inputs))
        # Cached, because calls repeat a few sizes, and the search evaluates the model's constraints many times.
        self._choose = lru_cache(MAX_CACHED_SIZES)(self._find_sizes)

    def choose(self, sizes: Sizes) -> Sizes:
        return self._choose(tuple(sizes.items()))

    def _find_sizes(self, items: tuple[tuple[str, int], ...]) -> Sizes:
        """Round each size up to its bucket, or to the largest size below the bucket that the model's constraints allow."""
        allows = self.padded.allows  # allows(sizes, padded): the constraints hold for these sizes before and after padding
        sizes, padded = dict(items), dict(items)
        if not allows(sizes, sizes):
            return FrozenDict(sizes)
        for name in self.padded.dims:
            size, buckets = sizes[name], self.buckets[name]
            if buckets:
                # A size of 0, and one above all buckets, stay as they are.
                padded[name] = next((bucket for bucket in buckets if bucket >= size > 0), size)
            else:
                padded[name] = round_up(size)
        for name in self.padded.dims:
            # Position embeddings, for example, limit the sizes. Find the largest allowed size by bisection.
            low = padded[name] if allows(sizes, padded) else sizes[name]
            while low < (high := padded[name]):
                middle = (low + high + 1) // 2
                if allows(sizes, {**padded, name: middle}):
                    low = middle
                else:
                    padded[name] = middle - 1
        return FrozenDict(padded if allows(sizes, padded) else sizes)

    def pad(self, values: list[Any], *, exact: bool = False) -> list[Any]:
        """Pad the inputs of a call. ``exact`` pads nothing, and only appends the sizes, which the padded model has as inputs.

        If the padded model does not support the sizes, the inputs are returned unchanged, for the original model.
        """
        sizes = read_sizes(self.inputs, values)
        if not self.padded.allows(sizes, sizes):
            return values
        return PaddedValues(values, Padding(self, sizes, sizes if exact else self.choose(sizes)))

    def describe(self) -> Iterator[str]:
        """Yield a line about each padded dim, for `XRTModule.explain`."""
        for dim, buckets in self.buckets.items():
            sizes = "powers of two, or half way between" if buckets is None else ", ".join(map(str, buckets))
            masked = ", and the padding is masked for operators that would read it" if dim in self.padded.fed else ""
            yield f"buckets: sizes of {dim!r} are rounded up to {sizes}{masked}"


class SizePolicy:
    """Chooses which program serves a call, by the sizes of its inputs and the option ``shapes``.

    With ``"auto"``, the sizes of the first call get a static program, which may be faster. All other sizes share one general
    program if each engine of the plan supports that. Otherwise they are padded if this provably changes no result. Otherwise each
    set of sizes gets a program.
    """

    def __init__(self, settings: ModuleOptions, source: ModelSource, engines: EngineList, stored: StoredPlans | None) -> None:
        self.shapes, self.source = settings.shapes, source
        self.pads_all = isinstance(self.shapes, Buckets)
        self._is_decided = self.pads_all  # whether the model can be padded; `find_padding` decides it for other options
        self._stored, self._fold = stored, settings.fold_constants
        self._why_not_general: str | None = None
        """Why one general program does not serve all sizes; empty if it does, None if that is not decided yet."""
        self.exact_keys: frozenset[object] = frozenset()
        """Keys of the sizes with a static program: those of the first call, and those at which a placement was measured."""
        self.refusals: tuple[str, ...] = ()
        self.padding = self._make_padding(engines, self.shapes) if isinstance(self.shapes, Buckets) else None
        # `source` is the model of the caller; `served_source` is the model to compile, which is padded with Buckets.
        self.served_source = source if self.padding is None else self.padding.source
        self.open_axes = () if source.is_traced else tuple(list_open_axes(self.served_source.inputs))

    @property
    def remarks(self) -> tuple[str, ...]:
        remarks = [] if self.padding is None else list(self.padding.describe())
        remarks += self.refusals
        if self._why_not_general:
            kind = "set" if self.padding is None else "bucket"
            remarks.append(f"one program for each {kind} of sizes: {self._why_not_general}")
        return tuple(remarks)

    def get_source(self, values: Any) -> ModelSource:
        """Return the model for these inputs: the padded one if they were padded. ``values=None`` means the declared types."""
        if self.padding is not None and isinstance(values, PaddedValues):
            return self.padding.source
        return self.served_source if values is None else self.source

    def pad(self, values: list[Any], programs: Programs, *, pads: bool = True) -> list[Any]:
        """Pad the inputs of a call, which have symbolic dims, if a padded program serves their sizes.

        ``pads=False`` at most appends the sizes (Buckets).
        """
        # The option `shapes` is Buckets. Sizes with a static program, as in a bundle, are not padded.
        if self.padding is not None and self.pads_all:
            return values if self.source.make_key(values) in self.exact_keys else self.padding.pad(values, exact=not pads)
        if not pads or self.shapes != "auto":
            return values
        sizes = self.source.make_key(values)
        # These sizes have a program already, in this module or in the cache.
        if self._assign_static_program(sizes, programs) or (self._stored is not None and self._stored.has(sizes)):
            return values
        # A general program is better, because it does not compute padding.
        if programs.engines.are_dynamic or not self.why_not_general(values, programs):
            return values
        padding = self.find_padding(programs)
        return values if padding is None else padding.pad(values)

    def get_key(self, values: Any, programs: Programs) -> object:
        """Make the key of the program for these inputs: their shapes or, for a traced graph, their types.

        None is the key of a program for all inputs. ``values=None`` means the declared types.
        """
        if self.source.is_traced:
            return self.source.make_key(values or [])
        if values is None:
            return None
        source, engines = self.get_source(values), programs.engines
        sizes = source.make_key(values)
        if (
            sizes is None
            or source is not self.source
            or self._assign_static_program(sizes, programs)
            # With some engines, a general program does not support a size of 0.
            or (not engines.are_dynamic and any(values[index].shape[axis] == 0 for index, axis, _ in self.open_axes))
        ):
            return sizes
        return sizes if self.why_not_general(values, programs) else None

    def set_exact(self, values: Sequence[Any]) -> None:
        """Use a static program for later calls with the sizes of these inputs."""
        if self.open_axes:
            self.exact_keys |= {self.get_source(values).make_key(values)}

    def _assign_static_program(self, sizes: object, programs: Programs) -> bool:
        """Give the first sizes a static program, with ``"auto"``. Return whether these sizes have one."""
        engines, stored = programs.engines, self._stored
        # Other sizes were first, or the choice for all sizes was made before.
        if self.exact_keys or self._why_not_general is not None:
            return sizes in self.exact_keys
        # One program serves all sizes, or each set of sizes has a program: the first sizes are not special.
        if self.shapes != "auto" or engines.are_dynamic or (engines.is_auto and not engines.can_be_dynamic):
            return False
        # If only a general program is stored, the first call uses it, because that needs no compile.
        if stored is None or not stored.has(None) or stored.has(sizes):
            self.exact_keys = frozenset([sizes])
        return sizes in self.exact_keys

    def why_not_general(self, values: Any, programs: Programs) -> str:
        """Explain why one general program does not serve all sizes; empty if it does.

        Engines are queried at most once, for the inputs ``values`` of one call. Later calls get the same answer.
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
        if self._why_not_general is not None or engines.are_dynamic:
            return self._why_not_general or ""
        # A graph is traced for fixed sizes.
        if self.source.is_traced or self.source.is_static:
            return "the model has no symbolic dims"
        with programs.dispatcher.planning_lock:
            if self._why_not_general is None:
                reason = self._plan_for_all_sizes(values, programs)
                if reason and values is None:
                    return reason  # not stored, because the answer may differ for the sizes of a call
                self._why_not_general = reason
        return self._why_not_general

    def _plan_for_all_sizes(self, values: Any, programs: Programs) -> str:
        """Plan with symbolic dims, and explain why that plan does not serve all sizes; empty if it does.

        Each engine must support its region with symbolic dims. The reference engine must get no node that another engine would
        get at the sizes of ``values``; with ``values=None`` it must get no node.
        """
        if self.shapes == "one":  # the EngineList was checked when it was made
            return ""
        sizes = None if values is None else self.source.make_key(values)
        # Only a plan that serves all sizes is stored under the key None.
        if self._stored is not None and self._stored.has(None):
            return ""
        if self._stored is not None and self._stored.has(sizes):
            return "the cache has a program for these sizes"
        try:
            build = programs.find_or_plan((None, ()), None)  # for all sizes, without values to fetch
            plan = build.plan
        except PlanError as error:
            return str(error).splitlines()[0]
        # The reference engine supports all sizes, so it is not asked. If it is first, nodes are meant to be on it.
        reference_specs = [engine.spec for engine in programs.engines.engines[1:] if engine.name == IMPLICIT]
        for launch in plan.launches:
            if launch.engine not in reference_specs and (reason := build.engines.why_not_dynamic(launch)):
                return reason
        # Nodes on the reference engine; with sizes, only those that another engine gets at these sizes.
        moved = [name for launch in plan.launches if launch.engine in reference_specs for name in launch.nodes]
        if moved and sizes is not None:
            fixed_plan = programs.find_or_plan((sizes, ()), values).plan
            moved = sorted({*moved}.difference(*(x.nodes for x in fixed_plan.launches if x.engine in reference_specs)))
        return next((str(reason) for reason in plan.reasons if reason.node in moved), "")

    def check_declared(self, programs: Programs) -> None:
        """Raise InputError if the module cannot be compiled for the declared types, without example inputs."""
        source = self.source
        if not source.inputs or source.is_static:
            return
        why = "the graph is traced for its inputs" if source.is_traced else self.why_not_general(None, programs)
        if why:
            raise InputError(f"compile() needs example inputs: {why}; pass m.compile(x, ...)")

    def reset(self) -> None:
        """Decide again whether a general program serves all sizes, because the placement has changed."""
        self._why_not_general = None

    def find_padding(self, programs: Programs) -> PaddedModel | None:
        """Return the padded form of the model, made on first use; None if it cannot be padded, or options exclude padding."""
        if self._is_decided or self.shapes != "auto":
            return self.padding
        with programs.dispatcher.planning_lock:
            engines = programs.engines
            if not self._is_decided and not engines.is_auto and engines.device_map == DeviceMap("cpu"):
                self.padding = self._make_padding(engines, None)
            self._is_decided = True
        return self.padding

    def _make_padding(self, engines: EngineList, buckets: Buckets | None) -> PaddedModel | None:
        """Create the padded form of the model for the dims of ``buckets``; if it is None, for all dims that can be padded.

        Return None if no dim can be padded. Raises OptionError if a dim of ``buckets`` cannot be padded, and for a traced graph
        or a module on a device.
        """
        from xrt.module.programs import optimize
        from xrt.passes.padding import pad_dims

        source = self.source
        if source.is_traced or engines.device_map != DeviceMap("cpu"):
            why = "is an xrt.Graph; pass graph.trace(...) with named extents" if source.is_traced else "runs on a device"
            raise OptionError(f"Buckets(...) pads symbolic dims of a model on the CPU, and this module {why}")
        dims = dict.fromkeys(name for _, _, name in list_open_axes(source.inputs))
        sizes: Mapping[str, tuple[int, ...] | None] = FrozenDict()
        if buckets is not None and buckets.sizes is not None:
            sizes = buckets.sizes
        for name in sizes:
            if name not in dims:
                raise OptionError(
                    f"Buckets has {name!r}, and no input has a symbolic dim of this name.{did_you_mean(name, dims)}"
                )
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

    @property
    def saved_shapes(self) -> Shapes:
        """The option ``shapes`` to save in a bundle: the buckets if the module pads calls, else its own option."""
        return Buckets(self.padding.buckets) if self.padding is not None else self.shapes

    def restore_key(self, types: Sequence[Any], engines: EngineList) -> tuple[object] | None:
        """Find the key of a saved program with inputs of these types, which `get_key` returns for calls that it serves.

        The key is returned in a tuple, because it may be None. Returns None instead of a tuple if the program must not be
        restored: it is for certain sizes, but would serve calls of all sizes.
        """
        if self.source.is_traced:
            return (tuple(types),)
        if self.pads_all and len(types) == len(self.source.inputs):  # the first sizes, which are not padded
            self.set_exact(types)
            return (self.source.make_key(types),)
        has_declared_types = tuple(types) == tuple(value.type for value in self.served_source.inputs)
        keeps_dims = engines.are_dynamic or (has_declared_types and engines.can_be_dynamic)
        is_for_all = not self.pads_all and self.shapes != "each" and keeps_dims
        key = None if is_for_all else self.served_source.make_key(types)
        if key is None and not has_declared_types:
            return None
        # The saved programs show what the saved module had decided.
        if not self.pads_all and self._why_not_general != "" and engines.can_be_dynamic and not engines.are_dynamic:
            self._why_not_general = "" if key is None else "the bundle has programs for sizes"
        return (key,)
