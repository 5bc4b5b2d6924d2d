"""`xrt.load`: a module from a bundle.

Plans are used as they were saved. A region's compiled form is used if engine, versions, options and processor are the same as
when it was saved, and the engine says that it serves the threads. Otherwise the region is compiled again, with a notice. The
nodes of a missing engine are planned again for the other engines, also with a notice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache import CompileCache, CompileRequest, DiskStatistics, Signature, Tier, make_signature, open_cache
from xrt.cache.memory import LEAST_BYTES, MOST_BYTES
from xrt.engines import ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import (
    BundleError,
    CacheWarning,
    EngineUnavailable,
    FallbackWarning,
    ModelError,
    OptionError,
    UnknownEngine,
    XRTError,
    did_you_mean,
    warn,
)
from xrt.formats.bundle import BundleFile, is_bundle, make_working_directory
from xrt.graph import Function
from xrt.module.engines import check_isolated
from xrt.module.model_source import BundledModel, BundledTraces, StaticModel, check_not_torch
from xrt.module.module import XRTModule
from xrt.module.options import Check, Isolation, ModuleOptions, parse_options
from xrt.module.sizes import read_shapes
from xrt.module.specialization import SavedSpecialization, Specialization
from xrt.module.stored_plans import BuildContext, restore
from xrt.partition.options import read_options
from xrt.runtime import find_granted_threads, list_regions

if TYPE_CHECKING:
    from xrt.cache.weight_hashes import WeightHashStore
    from xrt.engines import Executable
    from xrt.formats.program_record import CompiledForm, ProgramRecord, StoredProgram, StoredWeight
    from xrt.partition import ClusteringOptions, Plan
    from xrt.runtime import RegionToCompile

__all__ = ["BundleTier", "load"]


@dataclass(eq=False)
class BundleTier:
    """Loads the compiled forms of a bundle, and everything else from the disk tier behind it."""

    file: BundleFile
    behind: Tier | None
    strict: bool

    def __post_init__(self) -> None:
        self._sections: dict[tuple[tuple[str, str], ...], str] = {}
        self._loaded = 0

    @property
    def weights(self) -> WeightHashStore | None:
        return self.behind.weights if self.behind else None

    @property
    def statistics(self) -> DiskStatistics:
        """Those of the tier behind it; executables from the bundle count as hits."""
        behind = self.behind.statistics if self.behind else DiskStatistics()
        return replace(behind, hits=behind.hits + self._loaded)

    def offer(self, ingredients: tuple[tuple[str, str], ...], section: str) -> None:
        """Load signatures with these ingredients from a section."""
        self._sections[_portable(ingredients)] = section

    def find_learning_directory(self, engine: str) -> Path | None:
        """The directory of the tier behind for persistent data of an engine."""
        return self.behind.find_learning_directory(engine) if self.behind is not None else None

    def get_or_compile(
        self, signature: Signature, recipe: CompileRequest, make: Callable[[], Executable], *, force: bool = False
    ) -> Executable:
        """Load the signature's executable from the bundle or the tier behind it, or make it; return it prepared."""
        section = self._sections.get(_portable(signature.ingredients))
        if section is not None and not force:
            try:
                return self._from_bundle(section, recipe)
            except Exception as error:
                if self.strict:
                    raise BundleError(f"{os.fspath(self.file.path)!r}: a compiled form cannot be loaded: {error}") from error
                warn(f"{os.fspath(self.file.path)!r}: a region is compiled again, since {error}", CacheWarning)
        if self.behind is None:
            return make()
        return self.behind.get_or_compile(signature, recipe, make, force=force)

    def _from_bundle(self, section: str, recipe: CompileRequest) -> Executable:
        with make_working_directory() as folder:
            context = replace(recipe.context, workdir=folder)
            executable = recipe.engine.load(self.file.read_compiled(section), recipe.function, context)
        executable.prepare()
        self._loaded += 1
        return executable


def _portable(ingredients: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The ingredients that mean the same in another installation."""
    return tuple((name, value) for name, value in ingredients if name != "code")


_IN_EVERY_REGION = ("format", "engine", "version", "options", "device", "threads", "machine")
"""Ingredients of a signature that do not depend on the region's Function, nor on how XRT was installed."""
_NOTHING = Function((), ())


def load(
    path: str | os.PathLike[str],
    *,
    engine: str | GraphCompiler | Sequence[str | GraphCompiler] = (),
    threads: int | None = None,
    strict: bool = False,
    cache: CompileCache | str | os.PathLike[str] | None = None,
    check: Check = None,
    isolate: str | Sequence[str] | Isolation = (),
) -> XRTModule:
    """Return the module that `XRTModule.save` wrote.

    ``threads`` is its thread budget; without it, what a scheduler has granted to this process (an actor of a cluster), else what
    the bundle was saved with. Most engines get their threads when a compiled form is loaded: one bundle serves any budget.

    An engine of the bundle whose options may name files or code is created only if ``engine`` names it too, with the same spec: a
    file does not choose what code is run. With ``strict``, a region that must be compiled again because this machine or the
    budget differs is a BundleError. Such compiles use ``cache``, as a module's compiles do. ``check`` and ``isolate`` have the
    same meaning as for XRTModule; a bundle does not contain them. With ``Isolation(run=True)``, compiled forms are loaded in the
    worker.

    Raises BundleError for a file that is missing, damaged, or of an unknown version; OptionError for an impossible option or an
    engine that the bundle does not have.

    Load only what you would run: an engine's compiled form is code.
    """
    settings = parse_options({"check": check, "isolate": isolate, "threads": threads})
    _check_kind(path)
    file = BundleFile(path)
    tier = BundleTier(file, open_cache(cache).disk, strict)
    record = file.record
    check_isolated(settings.isolate.engines, _specs(record))
    named = _named(engine, record)
    try:
        _check_chosen(file, record, named)
        return _load_record(tier, record, settings, threads)
    except BundleError:
        raise
    except XRTError as error:
        raise BundleError(f"cannot load {os.fspath(path)!r}: {error}") from error


def _check_kind(path: str | os.PathLike[str]) -> None:
    """Raise BundleError for a file that is a model, with the call that opens it."""
    name = os.fspath(path)
    if Path(path).is_file() and not is_bundle(path):
        try:
            check_not_torch(path)
        except ModelError as error:
            raise BundleError(f"cannot load a bundle: {error}") from None
        if Path(path).suffix.lower() == ".onnx":
            hint = f"xrt.XRTModule({name!r}, engine=...) runs a model, and its save() writes a bundle"
            raise BundleError(f"{name!r} is no bundle but, by its name, an ONNX model: {hint}")


def _load_record(tier: BundleTier, record: ProgramRecord, asked: ModuleOptions, threads: int | None) -> XRTModule:
    file, facts, count = tier.file, record.facts, len(record.programs)
    missing = _missing(record)
    if missing and tier.strict:
        raise BundleError(f"cannot load {os.fspath(file.path)!r} strictly: {'; '.join(missing.values())}")
    module = XRTModule(
        _source(file, record),
        [spec for spec in _specs(record) if spec not in missing] or REFERENCE,
        facts["device"],
        cache=CompileCache(disk=tier, max_bytes=max(MOST_BYTES, 2 * count * LEAST_BYTES)),
        strict=facts["strict"],
        fold_constants=facts["fold_constants"],
        check=asked.check,
        isolate=_isolate_available(asked.isolate, missing),
        **_read_options(file, missing, threads),
    )
    for reason in missing.values():
        warn(
            f"{os.fspath(file.path)!r}: {reason}; its regions are planned again for {', '.join(module.engines)}", FallbackWarning
        )
    module.programs.specializations.max_threads += 2 * module.threads * count  # all that was saved may be in use
    _restore(module, tier, record, missing)
    module.bundle = file
    return module


def _read_options(file: BundleFile, missing: Mapping[str, str], threads: int | None) -> dict[str, Any]:
    """The options of the bundle as keywords, with the thread budget of this process. Raises BundleError if one is damaged."""
    facts = file.record.facts
    try:
        clustering = _without(read_options(facts["clustering"]), missing)
        execution = ExecutionOptions(**facts["execution"])
        shapes = read_shapes(facts["shapes"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # an OptionError is a ValueError
        raise BundleError(f"cannot load {os.fspath(file.path)!r}: its options cannot be read: {error}") from error
    budgets = (threads, find_granted_threads(), execution.threads)
    return {
        **{field.name: getattr(clustering, field.name) for field in fields(clustering)},
        **{field.name: getattr(execution, field.name) for field in fields(execution)},
        "shapes": shapes,
        "threads": next((count for count in budgets if count is not None), None),
    }


# ---------------------------------------------------------------------- engines


def _specs(record: ProgramRecord) -> list[str]:
    return [engine["spec"] for engine in record.facts["engines"]]


def _named(asked: str | GraphCompiler | Sequence[str | GraphCompiler], record: ProgramRecord) -> list[str]:
    """The specs of the engines that the caller names; raises OptionError for one that the bundle does not have."""
    many = [asked] if isinstance(asked, str | GraphCompiler) else asked
    named = [one.spec if isinstance(one, GraphCompiler) else one for one in many]
    specs = _specs(record)
    for spec in named:
        if spec not in specs:
            raise OptionError(f"engine names {spec!r}; the bundle has {', '.join(specs)}.{did_you_mean(spec, specs)}")
    return named


def _check_chosen(file: BundleFile, record: ProgramRecord, named: Sequence[str]) -> None:
    """Raise BundleError for an engine that a file may not choose and that is not in ``named``."""
    for spec in _specs(record):
        with suppress(EngineUnavailable, UnknownEngine):  # it is not made, and said to be missing
            if spec not in named and (reason := registry.why_not_chosen(spec, "bundle")):
                hint = f"pass engine={spec!r} (-e on the command line) if that is what you want"
                raise BundleError(f"cannot load {os.fspath(file.path)!r}: {reason}; {hint}")


def _missing(record: ProgramRecord) -> dict[str, str]:
    """The engines that this machine does not have, each with the reason."""
    found = {}
    for spec in _specs(record):
        try:
            registry.create(spec)
        except (EngineUnavailable, UnknownEngine) as error:
            found[spec] = f"engine {spec!r} is not at hand: {error}"
    return found


def _isolate_available(isolation: Isolation, missing: Mapping[str, str]) -> Isolation:
    """Leave out the isolated engines that this machine does not have."""
    gone = {*missing, *(spec.partition("{")[0] for spec in missing)}
    return replace(isolation, engines=tuple(name for name in isolation.engines if name not in gone))


def _without(options: ClusteringOptions, missing: Mapping[str, str]) -> ClusteringOptions:
    """Remove the pins to missing engines."""
    gone = {*missing, *(spec.partition("{")[0] for spec in missing)}
    return replace(options, pins=tuple(pin for pin in options.pins if pin.engine not in gone))


# ---------------------------------------------------------------------- models and plans


class _Bundle:
    """The origin of programs in a bundle."""

    def __init__(self, file: BundleFile) -> None:
        self._file = file

    def read_weight(self, weight: StoredWeight) -> Any:
        return np.frombuffer(self._file.read_weight(weight.digest), np.uint8)

    def complete(self, program: StoredProgram, context: BuildContext) -> Specialization:
        plan = self.read_plan(program)
        saved = SavedSpecialization(plan, partial(self._file.model, program.function), {})
        return Specialization(plan.function, *context, original=plan.function, saved=saved)

    def read_plan(self, program: StoredProgram) -> Plan:
        from xrt.partition.serialization import from_message  # imports protobuf, which a load does not need

        return from_message(self._file.read_plan(program.plan))

    def plan_again(self, program: StoredProgram, context: BuildContext) -> Specialization:
        """The specialization with another plan: an engine of the stored one is missing."""
        function = self._file.model(program.function)
        return Specialization(function, *context, original=function, saved=SavedSpecialization(None, lambda: function, {}))


def _source(file: BundleFile, record: ProgramRecord) -> StaticModel | BundledTraces:
    model = record.facts["model"]
    if model:
        return BundledModel(record.inputs, record.outputs, lambda: StaticModel(file.model(model)))
    traces: dict[object, Callable[[], Function]] = {
        _types(program): partial(file.model, program.function) for program in record.programs if not program.fetch
    }
    return BundledTraces(tuple(value.name for value in record.inputs), traces)


def _types(program: StoredProgram) -> tuple[Any, ...]:
    return tuple(value.type for value in program.inputs)


def _restore(module: XRTModule, tier: BundleTier, record: ProgramRecord, missing: Mapping[str, str]) -> None:
    """Add the saved programs to those of the module."""
    recompiled: dict[str, str] = {}
    engines = module.programs.engines
    origin, context = _Bundle(tier.file), BuildContext(engines, module.programs.settings, module.programs.cache)
    for program in record.programs:
        plan = None if program.launches else origin.read_plan(program)
        launches = plan.launches if plan else program.launches
        is_usable = all(launch.engine in module.engines for launch in launches)
        if not is_usable and not missing:
            continue
        key = module.sizes.restore_key(_types(program), engines)
        if key is None:
            continue
        if not is_usable:
            build = origin.plan_again(program, context)
        elif plan is not None:
            build = origin.complete(program, context)
        else:
            plan, build = restore(program, origin, context)
        if is_usable and plan is not None:
            regions = list_regions(plan, engines.by_spec, engines.context)
            build.remarks = dict(_offer(regions, program.compiled, tier, recompiled))
        module.programs.specializations.put((key[0], program.fetch), build)
        module.dispatcher.last = module.dispatcher.last or build
    if recompiled:
        _tell(tier, recompiled)


def _offer(
    regions: list[RegionToCompile], forms: Sequence[CompiledForm], tier: BundleTier, recompiled: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Offer the compiled forms that fit this machine to the tier; yield a remark for each region."""
    for region, form in zip(regions, forms, strict=False):
        saved = dict(form.ingredients)
        differences = _differences(region, saved)
        if differences:
            recompiled[region.launch.name] = differences
            yield region.launch.name, f"compiled again, not loaded from the bundle: {differences}"
        elif form.section:
            here = {"version": region.version, "threads": str(region.context.threads)}
            tier.offer(tuple({**saved, **here}.items()), form.section)
            yield region.launch.name, "its compiled form comes from the bundle"
        else:
            yield region.launch.name, f"the bundle has no compiled form: {form.reason or 'none was saved'}"


def _differences(region: RegionToCompile, saved: Mapping[str, str]) -> str:
    engine = region.engine
    version = getattr(engine, "library_version", lambda: region.version)()  # an isolated engine's names its worker
    now = dict(make_signature(_NOTHING, engine, region.context, version).ingredients)
    return "; ".join(
        f"{name} was {saved.get(name, 'unknown')!r} and is {now[name]!r}"
        for name in _IN_EVERY_REGION
        if saved.get(name) != now[name] and not (name == "threads" and _serves_threads(region, saved.get(name, "")))
    )


def _serves_threads(region: RegionToCompile, saved: str) -> bool:
    return saved.isdecimal() and region.engine.serves_threads(int(saved), region.context.threads)


def _tell(tier: BundleTier, recompiled: Mapping[str, str]) -> None:
    name, why = next(iter(recompiled.items()))
    again = f"{len(recompiled)} region(s) must be compiled again on this machine, first {name}: {why}"
    said = f"{os.fspath(tier.file.path)!r}: {again}"
    if tier.strict:
        raise BundleError(f"{said}; load without strict=True to compile them")
    warn(f"{said}; m.explain() lists them", FallbackWarning)
