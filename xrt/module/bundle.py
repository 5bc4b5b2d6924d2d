"""`xrt.load`: a module from a bundle.

Plans are used as they were saved. A region's compiled form is used if engine, versions, options and processor are the same as
when it was saved, and the engine says that it serves the threads. Otherwise the region is compiled again, with a notice. The
nodes of a missing engine are planned again for the other engines, also with a notice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache, CompileRequest, DiskStatistics, DiskTier, Signature, Tier, make_signature, open_cache
from xrt.cache.memory import LEAST_BYTES, MOST_BYTES
from xrt.cache.records import Records, text_schema
from xrt.engines import GraphCompiler
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
from xrt.formats.output import identify_file
from xrt.formats.program_record import StoredPlan
from xrt.graph import Function
from xrt.graph.deferred_function import DeferredFunction
from xrt.module.bundle_index import defer_plan, read_index, read_shapes
from xrt.module.engines import check_isolated
from xrt.module.model_source import BundledModel, BundledTraces, StaticModel, check_not_torch
from xrt.module.module import XRTModule
from xrt.module.options import Check, Isolation, ModuleOptions, parse_options
from xrt.module.specialization import SavedSpecialization, Specialization
from xrt.module.variants import choose_variant
from xrt.partition.options import read_options
from xrt.runtime import find_granted_threads, list_regions

if TYPE_CHECKING:
    from xrt.cache.weight_hashes import WeightHashStore
    from xrt.engines import Executable
    from xrt.partition import ClusteringOptions, Plan
    from xrt.runtime import RegionToCompile

__all__ = ["BundleTier", "load"]


CHECKED = text_schema("checked", "record of a bundle", list, list, lambda record: not Path(record[0]).exists())
"""Which bundles, and which variants in them, this user has verified: path, variant and stamp of the file."""


@dataclass(eq=False)
class BundleTier:
    """Gives the compiled forms of a bundle; asks the disk tier behind it for everything else."""

    file: BundleFile
    behind: Tier | None
    strict: bool
    why_none: str = ""
    """Why no variant of the bundle is for this machine."""

    def __post_init__(self) -> None:
        self._sections: dict[tuple[tuple[str, str], ...], str] = {}
        self._watched: list[Function] = []
        self._loaded = 0

    @property
    def weights(self) -> WeightHashStore | None:
        return self.behind.weights if self.behind else None

    @property
    def statistics(self) -> DiskStatistics:
        """The tier's behind it, with what came from the bundle among the hits."""
        behind = self.behind.statistics if self.behind else DiskStatistics()
        return replace(behind, hits=behind.hits + self._loaded)

    def recall_check(self) -> None:
        """Skip the checksums of a file that this host has verified, and that has not changed since."""
        if self.file.stamp is not None and (checked := self._checked) is not None:
            if checked.find(self._check_key) == self._check_record:
                self.file.trust()

    def keep_check(self) -> None:
        """Record that all used sections of the file were verified."""
        if self.file.stamp is not None and (checked := self._checked) is not None:
            checked.keep(self._check_key, self._check_record)

    @property
    def _checked(self) -> Records[list[Any]] | None:
        return Records(self.behind.store, CHECKED) if isinstance(self.behind, DiskTier) else None

    @property
    def _check_key(self) -> str:
        return hashlib.sha256(os.fsencode(self.file.path.absolute()) + b"\0" + self.file.suffix.encode()).hexdigest()[:40]

    @property
    def _check_record(self) -> list[Any]:
        return [os.fspath(self.file.path.absolute()), self.file.suffix, *(self.file.stamp or ())]

    def watch(self, plan: Plan) -> None:
        """Let the hashes of a plan's weights be remembered: they lie in the bundle, which hardly ever changes."""
        if self.weights is None:
            return
        read = [launch for launch in plan.launches if not isinstance(launch.function, DeferredFunction)]
        held = {f"{x.name}:{n}": c for x in read for n, c in x.function.constants.items()}
        function = Function((), (), constants=held)
        self._watched.append(function)
        self.weights.recall(function, self.file.path.absolute(), identify_file(self.file.path))

    def offer(self, ingredients: tuple[tuple[str, str], ...], section: str) -> None:
        """Serve a signature of these ingredients from that section."""
        self._sections[_portable(ingredients)] = section

    def find_learning_directory(self, engine: str) -> Path | None:
        """Return where the tier behind keeps what an engine learns."""
        return self.behind.find_learning_directory(engine) if self.behind is not None else None

    def get_or_compile(
        self, signature: Signature, recipe: CompileRequest, make: Callable[[], Executable], *, force: bool = False
    ) -> Executable:
        """Return the signature's executable, prepared: from the bundle, from the tier behind it, or made."""
        if self.weights is not None:
            self.weights.keep()
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
    """Return the ingredients that mean the same in another installation."""
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
    file, why_none = choose_variant(BundleFile(path), threads)
    tier = BundleTier(file, open_cache(cache).disk, strict, why_none)
    tier.recall_check()
    manifest = read_index(file) or file.manifest
    check_isolated(settings.isolate.engines, _specs(manifest))
    named = _named(engine, manifest)
    try:
        _check_chosen(file, manifest, named)
        return _loaded(tier, manifest, settings, _execution(manifest, threads))
    except BundleError:
        raise
    except XRTError as error:
        raise BundleError(f"cannot load {os.fspath(path)!r}: {error}") from error


def _check_kind(path: str | os.PathLike[str]) -> None:
    """Raise BundleError for a model, which says where it goes."""
    name = os.fspath(path)
    if Path(path).is_file() and not is_bundle(path):
        try:
            check_not_torch(path)
        except ModelError as error:
            raise BundleError(f"cannot load a bundle: {error}") from None
        if Path(path).suffix.lower() == ".onnx":
            hint = f"xrt.XRTModule({name!r}, engine=...) runs a model, and its save() writes a bundle"
            raise BundleError(f"{name!r} is no bundle but, by its name, an ONNX model: {hint}")


def _loaded(tier: BundleTier, manifest: Mapping[str, Any], asked: ModuleOptions, execution: Mapping[str, Any]) -> XRTModule:
    file, strict = tier.file, tier.strict
    plans = [_plan(file, manifest, number) for number in range(len(manifest["programs"]))]
    missing = _missing(manifest)
    if missing and strict:
        raise BundleError(f"cannot load {os.fspath(file.path)!r} strictly: {'; '.join(missing.values())}")
    module = XRTModule(
        _source(file, manifest, plans),
        [spec for spec in _specs(manifest) if spec not in missing] or REFERENCE,
        manifest["device"],
        cache=CompileCache(disk=tier, max_bytes=max(MOST_BYTES, 2 * len(plans) * LEAST_BYTES)),
        **_clustering(manifest, missing),
        strict=manifest["strict"],
        fold_constants=manifest["fold_constants"],
        check=asked.check,
        isolate=_isolate_available(asked.isolate, missing),
        **execution,
        shapes=read_shapes(file),
    )
    for reason in missing.values():
        warn(
            f"{os.fspath(file.path)!r}: {reason}; its regions are planned again for {', '.join(module.engines)}", FallbackWarning
        )
    module.programs.specializations.max_threads += 2 * module.threads * len(plans)  # all that was saved may be in use
    _restore(module, tier, manifest["programs"], plans, missing)
    module.bundle = file
    return module


def _clustering(manifest: Mapping[str, Any], missing: Mapping[str, str]) -> dict[str, Any]:
    """Return the clustering options of the bundle as keywords."""
    saved = _without(read_options(manifest["clustering"] or {"pins": ()}), missing)
    return {field.name: getattr(saved, field.name) for field in fields(saved)}


def _execution(manifest: Mapping[str, Any], threads: int | None) -> dict[str, Any]:
    """Return the execution options of the bundle as keywords, with the thread budget of this process."""
    saved = manifest["execution"] or {}
    granted = (threads, find_granted_threads(), saved.get("threads"))
    return {**saved, "threads": next((count for count in granted if count is not None), None)}


# ---------------------------------------------------------------------- engines


def _specs(manifest: Mapping[str, Any]) -> list[str]:
    return [engine["spec"] for engine in manifest["engines"]]


def _named(asked: str | GraphCompiler | Sequence[str | GraphCompiler], manifest: Mapping[str, Any]) -> list[str]:
    """Return the specs of the engines that are named; raises OptionError for one that the bundle does not have."""
    many = [asked] if isinstance(asked, str | GraphCompiler) else asked
    named = [one.spec if isinstance(one, GraphCompiler) else one for one in many]
    specs = _specs(manifest)
    for spec in named:
        if spec not in specs:
            raise OptionError(f"engine names {spec!r}; the bundle has {', '.join(specs)}.{did_you_mean(spec, specs)}")
    return named


def _check_chosen(file: BundleFile, manifest: Mapping[str, Any], named: Sequence[str]) -> None:
    """Raise BundleError for an engine that a file may not choose and that is not in ``named``."""
    for spec in _specs(manifest):
        with suppress(EngineUnavailable, UnknownEngine):  # it is not made, and said to be missing
            if spec not in named and (reason := registry.why_not_chosen(spec, "bundle")):
                hint = f"pass engine={spec!r} (-e on the command line) if that is what you want"
                raise BundleError(f"cannot load {os.fspath(file.path)!r}: {reason}; {hint}")


def _missing(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the engines that this machine does not have, each with the reason."""
    found = {}
    for spec in _specs(manifest):
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
    """Return the options without pins to engines that are not there."""
    gone = {*missing, *(spec.partition("{")[0] for spec in missing)}
    return replace(options, pins=tuple(pin for pin in options.pins if pin.engine not in gone))


# ---------------------------------------------------------------------- models and plans


def _plan(file: BundleFile, manifest: Mapping[str, Any], number: int) -> Plan:
    """Return the plan of a program, without its nodes where the manifest is that of the index."""
    program = manifest["programs"][number]
    if isinstance(program["plan"], StoredPlan):
        return defer_plan(file, manifest, program, partial(_read_plan, file, number))
    return _read_plan(file, number)


def _read_plan(file: BundleFile, number: int) -> Plan:
    from xrt.partition.serialization import from_message

    return from_message(file.manifest["programs"][number]["plan"] or {"format": None})


def _source(file: BundleFile, manifest: Mapping[str, Any], plans: list[Plan]) -> StaticModel | BundledTraces:
    if manifest["model"]:
        return BundledModel(manifest["inputs"], manifest["outputs"], lambda: StaticModel(file.model(manifest["model"])))
    programs = zip(manifest["programs"], plans, strict=True)
    traces: dict[object, Callable[[], Function]] = {
        _types(plan): partial(file.model, program["function"]) for program, plan in programs if not program["fetch"]
    }
    return BundledTraces(tuple(value.name for value in manifest["inputs"]), traces)


def _types(plan: Plan) -> tuple[Any, ...]:
    return tuple(value.type for value in plan.function.inputs)


def _restore(module: XRTModule, tier: BundleTier, programs: Sequence[Any], plans: list[Plan], missing: Mapping[str, str]) -> None:
    """Put the saved programs where the module looks for builds."""
    recompiled: dict[str, str] = {}
    engines = module.programs.engines
    context = engines, module.programs.settings, module.programs.cache
    for number, (program, plan) in enumerate(zip(programs, plans, strict=True)):
        is_usable = all(launch.engine in module.engines for launch in plan.launches)
        if not is_usable and not missing:
            continue
        key = module.sizes.restore_key(_types(plan), engines)
        if key is None:
            continue
        whole = partial(tier.file.model, program["function"])
        complete = partial(_complete, tier.file, number, whole, context) if isinstance(program["plan"], StoredPlan) else None
        saved = SavedSpecialization(plan if is_usable else None, whole, {}, cache(complete) if complete else None)
        function = plan.function if is_usable else whole()
        build = Specialization(function, *context, original=function, saved=saved)
        if is_usable:
            regions = list_regions(plan, engines.by_spec, engines.context)
            build.remarks = dict(_offered(regions, program["regions"], tier, recompiled))
            tier.watch(plan)
        module.programs.specializations.put((key[0], tuple(program["fetch"])), build)
        module.dispatcher.last = module.dispatcher.last or build
    if recompiled:
        _tell(tier, recompiled)


def _complete(file: BundleFile, number: int, whole: Callable[[], Function], context: Any) -> Specialization:
    """Return the specialization whose plan has its nodes and reasons."""
    plan = _read_plan(file, number)
    return Specialization(plan.function, *context, original=plan.function, saved=SavedSpecialization(plan, whole, {}))


def _offered(
    regions: list[RegionToCompile], entries: tuple[dict[str, Any], ...], tier: BundleTier, recompiled: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Offer the compiled forms that fit this machine to the tier, and yield what is to be said of each region."""
    for region, entry in zip(regions, entries, strict=False):
        saved = tuple((one["name"], one["value"]) for one in entry["ingredients"])
        differences = _differences(region, dict(saved))
        if differences:
            recompiled[region.launch.name] = differences
            yield region.launch.name, f"compiled again, not loaded from the bundle: {differences}"
        elif entry["section"]:
            here = {"version": region.version, "threads": str(region.context.threads)}
            tier.offer(tuple({**dict(saved), **here}.items()), entry["section"])
            yield region.launch.name, "its compiled form comes from the bundle"
        else:
            yield region.launch.name, f"the bundle has no compiled form: {entry['reason'] or 'none was saved'}"


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
    because = f"{tier.why_none}; " if tier.why_none else ""
    again = f"{len(recompiled)} region(s) must be compiled again on this machine, first {name}: {why}"
    said = f"{os.fspath(tier.file.path)!r}: {because}{again}"
    if tier.strict:
        raise BundleError(f"{said}; load without strict=True to compile them")
    warn(f"{said}; m.explain() lists them", FallbackWarning)
