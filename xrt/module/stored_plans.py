"""The plans of a model file in the cache: a process that finds one reads no model and queries no engine about a node.

Input: a module's model, options, engines and versions. Output: specializations that have a plan and load what it needs from the
cache. Other requests to such a specialization (its nodes, its reasons, another plan) go to the one that it represents, which is
then made from the model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache.disk import DiskTier
from xrt.cache.records import Records, Schema
from xrt.cache.signature import CODE_UNKNOWN, Signature, hash_planner, hash_sources, make_engine_key
from xrt.engines.contract import registry
from xrt.errors import BundleError, CacheError, ModelError, XRTError
from xrt.formats.onnx.weight_places import MOST_FILES, OpenFiles, check_unchanged, find_places
from xrt.formats.output import identify_file
from xrt.formats.program_record import (
    MOST_PLANS,
    OWN,
    StoredLaunch,
    StoredModel,
    StoredPlan,
    StoredWeight,
    is_stale,
    merge,
    read_plans,
    read_section,
    write_plans,
)
from xrt.graph.constants import Stamp, find_file_offset
from xrt.graph.deferred_function import DeferredFunction, StaleFunction
from xrt.graph.function import Function
from xrt.graph.types import TensorType
from xrt.module.model_source import DeferredModel, ModelSource, Shaped, StaticModel, load_unchanged
from xrt.module.specialization import SavedSpecialization, Specialization, optimize
from xrt.partition.plan import Plan, launch_node

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.formats.onnx.weight_places import Place
    from xrt.graph import Constant, Node
    from xrt.module.options import ModuleOptions
    from xrt.partition import Launch
    from xrt.placement.engine_list import EngineList

__all__ = ["StoredPlans", "defer_launch", "find_stored_plans", "is_deferrable", "list_large_constants", "store_launch"]

SMALL = 1024
"""Bytes of a constant from which a compiled form may refer to it."""


def is_deferrable(plan: Plan) -> bool:
    """Whether the plan can do without its nodes: its ends are tensors of known rank on the host, without aliases."""
    function = plan.function
    if function.constants or function.aliases or not plan.launches:
        return False
    ends = [function, *(launch.function for launch in plan.launches)]
    border = [value.type for one in ends for value in (*one.inputs, *one.outputs)]
    if not all(isinstance(type_, TensorType) and type_.shape is not None for type_ in border):
        return False
    return not any(launch.function.aliases or launch.device for launch in plan.launches)


def list_large_constants(function: Function) -> dict[str, Constant]:
    """Return the constants, by name, to which a compiled form may refer."""
    return {name: one for name, one in function.constants.items() if one.nbytes >= SMALL and one.dtype.bits >= 8}


def store_launch(launch: Launch, weights: Iterable[StoredWeight]) -> StoredLaunch:
    """Return what is stored of a launch; ``weights`` says where the large constants lie."""
    function = launch.function
    computed = tuple(value.name for value in function.outputs if function.computes(value.name))
    names = launch.name, launch.engine, launch.nodes, launch.control, function.name, function.fingerprint
    return StoredLaunch(*names, function.inputs, function.outputs, computed, tuple(weights))


def defer_launch(launch: StoredLaunch, weights: Mapping[bytes, Callable[[], Any]], read: Callable[[], Function]) -> Node:
    """Return the launch node; ``weights`` reads the bytes of constants by digest, ``read`` the whole Function of the region."""
    function = DeferredFunction(
        launch.inputs,
        launch.outputs,
        name=launch.function,
        fingerprint=launch.fingerprint,
        computed=launch.computed,
        weights=weights,
        read=read,
    )
    return launch_node(launch.name, launch.engine, function, launch.nodes, control=launch.control)


PLANS: Schema[StoredModel] = Schema("plans", "plans", write_plans, read_plans, suffix=".xrt", is_stale=is_stale)
FOLDING = "toy"
"""The engine that constants are folded with; its code decides what a region's weights are."""
_log = logging.getLogger(__name__)


def find_stored_plans(model: Any, cache: CompileCache, settings: ModuleOptions, engines: EngineList) -> StoredPlans | None:
    """Return what is kept of a module's plans, even if that is none yet; None where they cannot be kept."""
    if not isinstance(model, str | os.PathLike) or not isinstance(cache.disk, DiskTier) or not _may_be_stored(settings, engines):
        return None
    if not hasattr(os, "preadv"):
        return None  # the system cannot read at an offset, which is what threads and forked processes need
    path = Path(model).absolute()
    stamp = identify_file(path)
    if stamp is None:
        return None
    signature = _make_signature(path, settings, engines)
    return None if signature is None else StoredPlans(path, stamp, signature, cache, settings, engines)


def _may_be_stored(settings: ModuleOptions, engines: EngineList) -> bool:
    on_host = engines.context.device == "cpu" and not engines.devices
    asks_more = settings.isolate.engines or settings.clustering.pins or settings.check is not None
    asks_more = asks_more or settings.choice.is_quantized
    return on_host and not engines.is_auto and not asks_more and settings.dump_subgraph_dir is None


def _make_signature(path: Path, settings: ModuleOptions, engines: EngineList) -> Signature | None:
    """Return the signature of everything that determines a plan, except the model's content.

    Returns None if an engine's code is in no file, or if a path or an option is not text that a file can hold.
    """
    found = [
        ("model", os.fspath(path)),
        ("xrt", hash_planner()),
        ("numpy", np.__version__),
        ("onnx", _stamp_package("onnx")),
        ("clustering", repr(settings.clustering)),
        ("strict", repr(settings.strict)),
        ("fold", hash_sources(registry.find_entry_module(FOLDING)) if settings.fold_constants else "off"),
    ]
    if not isinstance(settings.shapes, str):
        found.append(("shapes", repr(settings.shapes)))
    for engine in engines.engines:
        if engine.spec == engines.implicit:  # which need not be imported: no region of a kept plan is its own
            found.append(("implicit", f"{engine.spec} {hash_sources(registry.find_entry_module(engine.name))}"))
        else:
            key = make_engine_key(engine, engines.context).ingredients
            found += [(f"{engine.spec} {name}", value) for name, value in key]
    is_text = all(part.isprintable() or part.isascii() for pair in found for part in pair)
    is_known = not any(value.endswith(CODE_UNKNOWN) for _, value in found)
    return Signature(tuple(found)) if is_text and is_known else None


def _stamp_package(name: str) -> str:
    spec = find_spec(name)
    stamp = identify_file(Path(spec.origin)) if spec and spec.origin else None
    return f"{spec.origin if spec else None} {stamp}"


class StoredPlans:
    """The plans of one model file, for one list of engines and options."""

    def __init__(
        self, path: Path, stamp: Stamp, signature: Signature, cache: CompileCache, settings: ModuleOptions, engines: EngineList
    ) -> None:
        """``stamp`` is the file's from before the model is read."""
        self._path, self._stamp, self._signature, self._cache = path, stamp, signature, cache
        self._settings, self._engines = settings, engines
        assert isinstance(cache.disk, DiskTier)
        self._store = cache.disk.store
        self._records = Records(self._store, PLANS)
        stored = self._records.find(signature.key)
        self._stored = None if stored is None or is_stale(stored) else stored
        self._open = self._opened()
        self._known: set[Any] = {plan.key for plan in self._stored.plans} if self._stored else set()
        self.padded: ModelSource | None = None
        """The padded form of the model, where plans are of that: it is made from the model, which is read then."""

    def _opened(self) -> OpenFiles | None:
        """Open the files of the plans; where they are others by now, there are no plans."""
        try:
            if self._stored is not None and self._stored.files[0] == (os.fspath(self._path), self._stamp):
                return OpenFiles(self._stored.files)
        except (OSError, StaleFunction) as error:
            _log.info("the plans of %s are not used: %s", self._path, error)
        self._stored = None
        return None

    def close(self) -> None:
        """Close the files; what is not read by then is read by a new module alone."""
        if self._open is not None:
            self._open.close()

    @cached_property
    def source(self) -> DeferredModel | None:
        """The model, which is not read before it is needed; None where nothing is kept of it."""
        stored = self._stored
        if stored is None:
            return None
        load = partial(load_unchanged, self._path, self._cache, partial(check_unchanged, stored.files))
        return DeferredModel(stored.inputs, stored.outputs, load)

    # ------------------------------------------------------------------ reading

    def has(self, key: Any) -> bool:
        """Whether a plan is kept for what of the inputs it depends on."""
        return self._stored is not None and any(plan.key == key for plan in self._stored.plans)

    def find(self, key: Any) -> Specialization | None:
        """Return the build for what of the inputs it depends on, None where no plan is kept for it."""
        source = self.source
        stored = next((plan for plan in self._stored.plans if plan.key == key), None) if self._stored else None
        if source is None or stored is None or not all(one.engine in self._engines.specs for one in stored.launches):
            return None
        model = self.padded or source
        if len(stored.inputs) != len(model.inputs):
            return None
        try:
            return self._build(model, stored)
        except (XRTError, ValueError, IndexError) as error:
            self._store.trouble(f"a plan of {self._path} does not fit: {type(error).__name__}: {error}")
            return None

    def _build(self, source: ModelSource, stored: StoredPlan) -> Specialization:
        origin = _Origin(source, stored.key, self._settings, self._engines, self._cache)
        nodes = tuple(self._launch(launch, number, origin) for number, launch in enumerate(stored.launches))
        function = Function(stored.inputs, stored.outputs, nodes)
        plan = Plan(function, self._engines.specs, (), self._settings.clustering, self._engines.implicit)
        saved = SavedSpecialization(plan, lambda: origin.build.function, {}, lambda: origin.build)
        return Specialization(function, self._engines, self._settings, self._cache, original=function, saved=saved)

    def _launch(self, launch: StoredLaunch, number: int, origin: _Origin) -> Any:
        weights = {bytes.fromhex(one.digest): self._reader(one) for one in launch.weights}
        return defer_launch(launch, weights, lambda: origin.build.plan.launches[number].function)

    def _reader(self, weight: StoredWeight) -> Callable[[], Any]:
        stored, opened = self._stored, self._open
        assert stored is not None  # the weight is one of its
        assert opened is not None

        def read() -> Any:
            if weight.file != OWN:
                return opened.read(weight.file, weight.offset, weight.size)
            try:
                return np.frombuffer(read_section(stored.sections[weight.digest], weight.digest), np.uint8)
            except BundleError as error:
                raise StaleFunction(str(error)) from error

        return read

    # ------------------------------------------------------------------ writing

    def keep(self, builds: Mapping[Any, Specialization], source: ModelSource) -> None:
        """Keep the plans of builds that were compiled, where the cache has all that they need, and no more than it keeps."""
        if len(self._known) >= MOST_PLANS:
            return
        compiled = {key: build for (key, fetch), build in list(builds.items()) if not fetch and build.is_compiled}
        new = {key: build for key, build in compiled.items() if key not in self._known and self._is_complete(build, source)}
        self._known.update(compiled)  # what cannot be kept now is not tried again
        if not new:
            return
        try:
            self._write(new, source)
        except (FileNotFoundError, ModelError) as error:  # the model's file is gone, or another one by now
            _log.info("the plans of %s are not kept: %s", self._path, error)
        except (OSError, ValueError, CacheError, BundleError) as error:
            self._store.trouble(str(error))

    def _is_complete(self, build: Specialization, source: ModelSource) -> bool:
        """Whether a later process can do with the plan and the cache: nothing was refused, and all is tensors on the host."""
        if not all(isinstance(value.type, TensorType) for value in (*source.inputs, *source.outputs)):
            return False
        plan = build.program().plan
        if build.refused or build.tuned is not None or not is_deferrable(plan):
            return False
        if any(launch.engine == self._engines.implicit for launch in plan.launches):
            return False
        return all(self._store.entries.path(region.signature.key).is_file() for region in build.regions())

    def _write(self, new: Mapping[Any, Specialization], source: ModelSource) -> None:
        files = self._identify(source)
        if not files or len(files) > MOST_FILES:
            _log.info("the plans of %s are not kept: a file has changed since it was read, is gone, or they are many", self._path)
            return
        paths = [path for path, _ in files]
        sections: dict[str, Any] = {}
        plans = []
        for key, build in new.items():
            launches = build.program().plan.launches
            places = [find_places(self._path, self._stamp, list_large_constants(launch.function)) for launch in launches]
            rows = zip(launches, places, strict=True)
            stored = tuple(store_launch(launch, _weights(launch.function, found, paths, sections)) for launch, found in rows)
            plans.append(StoredPlan(key, build.function.inputs, build.function.outputs, stored))
        if self._identify(source) != files:
            return  # one has changed meanwhile
        model = StoredModel(files, source.inputs, source.outputs, tuple(plans), sections)
        before = None
        with suppress(CacheError):  # a damaged record is replaced
            before = self._records.read(self._signature.key)  # other processes may have stored some meanwhile
        merged = merge(before, model)
        if merged is not None:
            self._records.keep(self._signature.key, merged)

    def _identify(self, source: ModelSource) -> tuple[tuple[str, Stamp], ...]:
        """Return the model's files as they are now, empty unless they are those that the model was read from.

        A file of external data is listed by the path in the model, which may be a link, and by the path that the link leads to.
        """
        if identify_file(self._path) != self._stamp or not isinstance(source, StaticModel):
            return ()
        mapped = {
            place[0].stamp for one in source.get_declared_function().constants.values() if (place := find_file_offset(one.array))
        }
        files = [(os.fspath(self._path), self._stamp)]
        for location in source.locations:
            path = self._path.parent / location.replace("\\", "/")
            stamp = identify_file(path)
            if stamp is None or (*stamp[:3], max(stamp[3:])) not in mapped:
                return ()
            files += [(os.fspath(path), stamp), (os.fspath(path.resolve()), stamp)]
        return tuple(dict.fromkeys(files))


class _Origin:
    """Make the specialization behind a stored one, from the model, on first use. No reference to it, so no cycle."""

    def __init__(self, source: ModelSource, key: Any, settings: ModuleOptions, engines: EngineList, cache: CompileCache) -> None:
        self._source, self._key = source, key
        self._terms = engines, settings, cache

    @cached_property
    def build(self) -> Specialization:
        """The build with all its nodes."""
        engines, settings, _ = self._terms
        shapes = None if self._key is None else [Shaped(shape) for shape in self._key]
        original = self._source.get_declared_function() if shapes is None else self._source.function(shapes, dynamic=False)
        simple = optimize(original, fold=settings.fold_constants, engines=engines)
        return Specialization(simple, *self._terms, original=original)


def _weights(
    function: Function, found: Mapping[str, Place], paths: list[str], sections: dict[str, Any]
) -> Iterator[StoredWeight]:
    """Yield where the large constants of a region lie; what is in no file goes to the sections."""
    for name, constant in list_large_constants(function).items():
        digest, place = constant.digest.hex(), found.get(name)
        if place is not None and os.fspath(place.path) in paths:
            yield StoredWeight(digest, paths.index(os.fspath(place.path)), place.offset, place.size)
        elif place is None:
            sections[digest] = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8).data
            yield StoredWeight(digest, OWN, 0, constant.nbytes)
