"""Start from stored programs, in the cache or in a bundle, without reading the model or querying engines about nodes.

`restore` creates a specialization from a stored program. Its executables are loaded from their saved bytes. If the nodes, the
reasons why nodes are not on an engine, or another plan are needed, the complete specialization is loaded: from the model file
(`StoredPlans`) or from the bundle (`xrt.module.bundle`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache.disk import DiskTier
from xrt.cache.records import Records, Schema
from xrt.cache.signature import CODE_UNKNOWN, Signature, hash_planner, hash_sources, make_engine_key
from xrt.engines.contract import registry
from xrt.errors import BundleError, CacheError, ModelError, XRTError
from xrt.formats.output import identify_file
from xrt.formats.program_record import (
    IN_RECORD,
    MAX_FILES,
    MAX_PROGRAMS,
    OpenFiles,
    ProgramRecord,
    StoredLaunch,
    StoredProgram,
    StoredWeight,
    check_unchanged,
    find_file_ranges,
    is_stale,
    merge,
    read_record,
    read_section,
    write_record,
)
from xrt.graph.constants import Stamp, find_file_offset
from xrt.graph.deferred_function import DeferredFunction, StaleFunction
from xrt.graph.function import Function
from xrt.graph.types import TensorType
from xrt.module.engines import IMPLICIT
from xrt.module.model_source import DeferredModel, ModelSource, StaticModel, load_unchanged
from xrt.module.programs import BuildContext, SavedSpecialization, Specialization, optimize
from xrt.partition.plan import Plan, launch_node
from xrt.partition.support_matrix import DeviceMap

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.graph import Constant, Node
    from xrt.module.options import ModuleOptions
    from xrt.placement.engine_list import EngineList

MIN_LARGE_BYTES = 1024
"""From this size on, a constant is stored once, and saved executables refer to it."""
_log = logging.getLogger(__name__)


def list_large_constants(function: Function) -> dict[str, Constant]:
    """Select the large constants of a Function, by name, to which a saved executable may refer."""
    return {
        name: constant
        for name, constant in function.constants.items()
        if constant.nbytes >= MIN_LARGE_BYTES and constant.dtype.bits >= 8
    }


def store_program(plan: Plan, list_weights: Callable[[Function], Iterable[StoredWeight]]) -> StoredProgram:
    """Convert a plan to a record without nodes. ``list_weights`` locates the large constants of a region.

    If the plan cannot run without its nodes, the record has no launches.
    """
    launches = []
    deferrable_launches = plan.launches if _is_deferrable(plan) else ()
    for launch in deferrable_launches:
        function = launch.function
        launches.append(
            StoredLaunch(
                launch.name,
                launch.engine,
                launch.nodes,
                launch.control,
                function.name,
                function.fingerprint,
                function.inputs,
                function.outputs,
                tuple(value.name for value in function.outputs if function.computes(value.name)),
                tuple(list_weights(function)),
            )
        )
    return StoredProgram(plan.function.inputs, plan.function.outputs, tuple(launches), tuple(plan.engines), plan.implicit)


def _is_deferrable(plan: Plan) -> bool:
    """Whether the plan can run without its nodes: inputs and outputs are host tensors of known rank, and none is updated."""
    # This is required of the whole plan and of each region. No output may be a constant, which a record without nodes lacks.
    functions = [plan.function, *(launch.function for launch in plan.launches)]
    types = [value.type for function in functions for value in (*function.inputs, *function.outputs)]
    is_simple = plan.launches and not plan.function.constants and not any(launch.device for launch in plan.launches)
    has_ranks = all(isinstance(type_, TensorType) and type_.shape is not None for type_ in types)
    return bool(is_simple) and has_ranks and not any(function.aliases for function in functions)


def restore(
    program: StoredProgram,
    context: BuildContext,
    read_weight: Callable[[StoredWeight], Any],
    complete: Callable[[], Specialization],
) -> tuple[Plan, Specialization]:
    """Create the plan and the specialization of a stored program. The nodes of a region are read when they are needed.

    ``read_weight`` reads the bytes of a large constant. ``complete`` loads the specialization with nodes and reasons. These
    functions must not refer to the module, because a cycle would keep it alive.
    """
    if not program.launches:  # the plan cannot run without its nodes
        build = complete()
        return build.plan, build
    complete = cache(complete)

    def defer(index: int, launch: StoredLaunch) -> Node:
        """Create the launch node with this index. It reads the nodes and weights of its region on first use."""
        function = DeferredFunction(
            launch.inputs,
            launch.outputs,
            name=launch.function,
            fingerprint=launch.fingerprint,
            computed=launch.computed,
            weights={bytes.fromhex(weight.digest): partial(read_weight, weight) for weight in launch.weights},
            read=lambda: complete().plan.launches[index].function,
        )
        return launch_node(launch.name, launch.engine, function, launch.nodes, control=launch.control)

    function = Function(program.inputs, program.outputs, tuple(defer(*pair) for pair in enumerate(program.launches)))
    plan = Plan(function, program.engines, (), context.settings.clustering, program.implicit)
    saved = SavedSpecialization(plan, lambda: complete().get_full_function(), complete)
    return plan, Specialization(function, context, original=function, saved=saved)


PLANS: Schema[ProgramRecord] = Schema("plans", "program record", write_record, read_record, suffix=".xrt", is_stale=is_stale)


def find_stored_plans(
    model: str | os.PathLike[str], cache: CompileCache, settings: ModuleOptions, engines: EngineList
) -> StoredPlans | None:
    """Open the stored plans of a model file, which may be empty; None if plans of this module cannot be stored."""
    # Threads and forked processes share the open files. They read with preadv, which does not move the positions.
    if not isinstance(cache.disk, DiskTier) or not hasattr(os, "preadv"):
        return None
    has_options = settings.isolate.engines or settings.clustering.pins or settings.check or settings.dump_subgraph_dir
    if has_options or engines.device_map != DeviceMap("cpu") or engines.is_auto or settings.choice.is_quantized:
        return None
    path = Path(model).absolute()
    if (stamp := identify_file(path)) is None or (signature := _make_signature(path, settings, engines)) is None:
        return None
    return StoredPlans(path, stamp, signature, BuildContext(engines, settings, cache))


def _make_signature(path: Path, settings: ModuleOptions, engines: EngineList) -> Signature | None:
    """Make the signature of everything that determines a plan, except the content of the model.

    Return None if an engine's source files are unknown, or if a path or an option is not valid text.
    """
    spec = find_spec("onnx")
    origin = spec.origin if spec else None
    ingredients = [
        ("model", os.fspath(path)),
        ("xrt", hash_planner()),
        ("numpy", np.__version__),
        ("onnx", f"{origin} {identify_file(Path(origin)) if origin else None}"),
        ("clustering", repr(settings.clustering)),
        ("strict", repr(settings.strict)),
        # Constant folding by the reference engine determines the weights of the regions.
        ("fold", hash_sources(registry.find_entry(IMPLICIT).module) if settings.fold_constants else "off"),
    ]
    if not isinstance(settings.shapes, str):
        ingredients.append(("shapes", repr(settings.shapes)))
    for engine in engines.engines:
        if engine.spec == engines.implicit:  # stored plans have no regions on it, so it is not imported
            ingredients.append(("implicit", f"{engine.spec} {hash_sources(registry.find_entry(engine.name).module)}"))
        else:
            key = make_engine_key(engine, engines.context).ingredients
            ingredients += [(f"{engine.spec} {name}", value) for name, value in key]
    is_text = all(part.isprintable() or part.isascii() for pair in ingredients for part in pair)
    is_known = not any(value.endswith(CODE_UNKNOWN) for _, value in ingredients)
    return Signature(tuple(ingredients)) if is_text and is_known else None


class StoredPlans:
    """The programs of a model file in the disk cache, for certain engines and options."""

    def __init__(self, path: Path, stamp: Stamp, signature: Signature, context: BuildContext) -> None:
        """``stamp`` is the stamp of the file before the model is read, to notice changes."""
        self._path, self._stamp, self._key = path, stamp, signature.key
        self._context = context
        assert isinstance(context.cache.disk, DiskTier)
        self._store = context.cache.disk.store
        self._records = Records(self._store, PLANS)
        self._record = self._records.find(self._key)
        self._files = self._open_files()
        self._tried: set[Any] = {program.key for program in self._record.programs} if self._record else set()
        """Keys of the programs that are stored or cannot be stored."""

    def _open_files(self) -> OpenFiles | None:
        """Open the files of the record. If one has changed, discard the record and return None."""
        record = self._record
        try:
            if record is not None and not is_stale(record) and record.files[0] == (os.fspath(self._path), self._stamp):
                return OpenFiles(record.files)
        except (OSError, StaleFunction) as error:
            _log.info("the plans of %s are not used: %s", self._path, error)
        self._record = None
        return None

    def close(self) -> None:
        """Close the files. Weights that were not read yet become unavailable to this module."""
        if self._files is not None:
            self._files.close()

    @cached_property
    def source(self) -> DeferredModel | None:
        """The model, which is read when it is needed; None if nothing is stored."""
        record = self._record
        if record is None:
            return None
        load = partial(load_unchanged, self._path, partial(check_unchanged, record.files))
        return DeferredModel(record.inputs, record.outputs, load)

    def has(self, key: Any) -> bool:
        return self._find_program(key) is not None

    def _find_program(self, key: Any) -> StoredProgram | None:
        programs = self._record.programs if self._record else ()
        return next((program for program in programs if program.key == key), None)

    def find(self, key: Any, model: ModelSource) -> Specialization | None:
        """Restore the specialization stored under this key; None if there is none, or it cannot be used.

        ``model`` has the Function: it is the model of the file, or its padded form.
        """
        program = self._find_program(key)
        if program is None or len(program.inputs) != len(model.inputs):
            return None
        if not {launch.engine for launch in program.launches} <= {*self._context.engines.specs}:
            return None
        try:
            return restore(program, self._context, self._read_weight, partial(self._complete, program, model))[1]
        except (XRTError, ValueError, IndexError) as error:
            self._store.report_problem(f"a plan of {self._path} does not fit: {type(error).__name__}: {error}")
            return None

    def _read_weight(self, weight: StoredWeight) -> Any:
        """Read the bytes of a large constant. Raises StaleFunction if its file has changed."""
        assert self._files is not None  # only programs of an open record call this
        assert self._record is not None
        if weight.file != IN_RECORD:
            return self._files.read(weight.file, weight.offset, weight.size)
        try:
            return np.frombuffer(read_section(self._record.sections[weight.digest], weight.digest), np.uint8)
        except BundleError as error:
            raise StaleFunction(str(error)) from error

    def _complete(self, program: StoredProgram, model: ModelSource) -> Specialization:
        """Build the specialization of a stored program with all its nodes, which are read from the model. Raises ModelError."""
        context = self._context
        original = model.get_function(program.key)
        optimized = optimize(original, fold=context.settings.fold_constants, engines=context.engines)
        return Specialization(optimized, context, original=original)

    def store(self, builds: Mapping[Any, Specialization], source: ModelSource) -> None:
        """Store the compiled programs, at most `MAX_PROGRAMS`. Each must have all executables in the cache."""
        if len(self._tried) >= MAX_PROGRAMS:
            return
        compiled = {key: build for (key, fetch), build in list(builds.items()) if not fetch and build.compiled}
        new = {key: build for key, build in compiled.items() if key not in self._tried and self._is_complete(build, source)}
        self._tried.update(compiled)
        if not new:
            return
        try:
            self._write(new, source)
        except (FileNotFoundError, ModelError) as error:  # the model's file was removed or replaced
            _log.info("the plans of %s are not kept: %s", self._path, error)
        except (OSError, ValueError, CacheError, BundleError) as error:
            self._store.report_problem(str(error))

    def _is_complete(self, build: Specialization, source: ModelSource) -> bool:
        """Whether a later process can run the program without the model's nodes and without a compile."""
        if not all(isinstance(value.type, TensorType) for value in (*source.inputs, *source.outputs)):
            return False
        plan = build.program().plan
        if build.refused or build.tuned is not None or not _is_deferrable(plan):
            return False
        if any(launch.engine == self._context.engines.implicit for launch in plan.launches):
            return False
        return all(self._store.entries.get_path(region.signature.key).is_file() for region in build.regions())

    def _write(self, new: Mapping[Any, Specialization], source: ModelSource) -> None:
        """Add programs to the stored record, unless a file of the model has changed since the model was read."""
        files = self._identify(source)
        if not files or len(files) > MAX_FILES:
            _log.info("the plans of %s are not kept: a file has changed since it was read, is gone, or they are many", self._path)
            return
        sections, paths = dict[str, Any](), [path for path, _ in files]

        def list_weights(function: Function) -> Iterator[StoredWeight]:
            """Yield the places of the large constants of a region: in a file of the model, or a section of the record.

            A constant in another file is omitted, so it is read together with the nodes.
            """
            constants = list_large_constants(function)
            locations = find_file_ranges(self._path, self._stamp, constants)
            for name, constant in constants.items():
                digest, location = constant.digest.hex(), locations.get(name)
                if location is not None and os.fspath(location.path) in paths:
                    yield StoredWeight(digest, paths.index(os.fspath(location.path)), location.offset, location.size)
                elif location is None:
                    sections[digest] = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8).data
                    yield StoredWeight(digest, IN_RECORD, 0, constant.nbytes)

        programs = tuple(store_program(build.program().plan, list_weights)._replace(key=key) for key, build in new.items())
        if self._identify(source) != files:
            return  # a file has changed meanwhile
        stored_record = None
        with suppress(CacheError):  # a damaged record is replaced
            stored_record = self._records.read(self._key)  # other processes may have stored programs
        merged = merge(stored_record, ProgramRecord(source.inputs, source.outputs, programs, files, sections=sections))
        if merged is not None:
            self._records.write(self._key, merged)

    def _identify(self, source: ModelSource) -> tuple[tuple[str, Stamp], ...]:
        """Return (path, stamp) of each file of the model; empty if a file has changed since the model was read.

        An external data file is listed with the path in the model, which may be a symlink, and with the resolved path.
        """
        if identify_file(self._path) != self._stamp or not isinstance(source, StaticModel):
            return ()
        constants = source.get_declared_function().constants.values()
        file_offsets = [find_file_offset(constant.array) for constant in constants]
        mapped_stamps = {file.stamp for file, _ in filter(None, file_offsets)}
        files = [(os.fspath(self._path), self._stamp)]
        for location in source.locations:
            path = self._path.parent / location.replace("\\", "/")
            stamp = identify_file(path)
            if stamp is None or stamp not in mapped_stamps:
                return ()
            files += [(os.fspath(path), stamp), (os.fspath(path.resolve()), stamp)]
        return tuple(dict.fromkeys(files))
