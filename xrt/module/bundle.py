"""Bundles: `XRTModule.save` writes one, `xrt.load` creates a module from it, and a self-test runs its example.

A loaded module uses the saved plans. The compiled form of a region (its executable as bytes) is loaded if the engine, versions,
options and processor are the same, and the engine can load it with the thread budget. Otherwise the region is recompiled, with a
warning. If an engine of a program is missing, the program is planned again when it is called, also with a warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt import __version__
from xrt.cache import CompileCache, CompileRequest, DiskStatistics, Signature, Tier, make_signature, open_cache
from xrt.cache.memory import MAX_BYTES, MIN_BYTES
from xrt.engines import Executable, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import (
    BundleError,
    CacheWarning,
    CompileRefused,
    EngineUnavailable,
    FallbackWarning,
    ModelError,
    OptionError,
    SelfTestFailed,
    UnknownEngine,
    XRTError,
    did_you_mean,
    warn,
)
from xrt.formats.arrays import Example, decode_example, encode_example, is_numeric_array
from xrt.formats.bundle import BundleFile, is_bundle, make_working_directory, write_bundle
from xrt.formats.program_record import IN_RECORD, CompiledForm, ProgramRecord, StoredProgram, StoredWeight
from xrt.graph import Function
from xrt.module.engines import check_isolated
from xrt.module.model_source import DeferredModel, ModelSource, StaticModel, TracedModel, check_not_torch
from xrt.module.module import XRTModule
from xrt.module.options import Check, Isolation, parse_options
from xrt.module.programs import BuildContext, SavedSpecialization, Specialization
from xrt.module.sizes import dump_shapes, read_shapes
from xrt.module.stored_plans import list_large_constants, restore, store_program
from xrt.partition.options import read_options
from xrt.runtime import RegionToCompile, find_granted_threads, list_regions, to_host

if TYPE_CHECKING:
    from xrt.formats.container import Buffer

_log = logging.getLogger(__name__)
SELF_TEST_SECTION = "self-test"
MAX_EXAMPLE_BYTES = 16 << 20
"""Maximum bytes of the example in a bundle, inputs and outputs together."""

Ingredients = tuple[tuple[str, str], ...]


@dataclass(eq=False)
class BundleTier:
    """A cache tier that loads the compiled forms of a bundle, and passes all other requests to the disk tier."""

    file: BundleFile
    disk: Tier | None
    strict: bool
    """Whether a compiled form that cannot be loaded is an error. Otherwise its region is recompiled."""
    sections: dict[Ingredients, str] = field(default_factory=dict)
    """Names of the sections with compiled forms that are valid on this machine, by ingredients of the signature."""
    loaded: int = 0

    @property
    def statistics(self) -> DiskStatistics:
        """The statistics of the disk tier. Executables loaded from the bundle count as hits."""
        statistics = self.disk.statistics if self.disk else DiskStatistics()
        return replace(statistics, hits=statistics.hits + self.loaded)

    def get_or_compile(
        self, signature: Signature, request: CompileRequest, make: Callable[[], Executable], *, force: bool = False
    ) -> Executable:
        """Load an executable from the bundle or the disk tier, or create it by ``make``. Returns it ready to run."""
        section = self.sections.get(_drop_code_hash(signature.ingredients))
        if section is not None and not force:
            try:
                with make_working_directory() as folder:
                    context = replace(request.context, workdir=folder)
                    saved = self.file.read_section(section)
                    executable = prepare_or_close(request.engine.load(saved, request.function, context))
            except Exception as error:
                if self.strict:
                    raise BundleError(f"{os.fspath(self.file.path)!r}: a compiled form cannot be loaded: {error}") from error
                warn(f"{os.fspath(self.file.path)!r}: a region is compiled again, since {error}", CacheWarning)
            else:
                self.loaded += 1
                return executable
        if self.disk is None:
            return make()
        return self.disk.get_or_compile(signature, request, make, force=force)


def _drop_code_hash(ingredients: Ingredients) -> Ingredients:
    """Drop the hash of the code, which differs between installations, from the ingredients of a signature."""
    return tuple((name, value) for name, value in ingredients if name != "code")


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
    """Load a module from a bundle that `XRTModule.save` wrote.

    ``threads`` is the thread budget. The default is the number of cores that a scheduler granted to this process (in a cluster),
    else the budget saved in the bundle. Most engines set their number of threads at load time, so a bundle works with any budget.

    A file must not choose the code that runs: an engine whose options may name files or code is created only if ``engine`` lists
    the same spec. With ``strict``, BundleError is raised if a region must be recompiled, because the machine or the thread budget
    differs. A recompile uses ``cache``. ``check`` and ``isolate`` are those of XRTModule; a bundle does not store them.

    Raises BundleError for a file that is missing, damaged, or of an unknown version; OptionError for an invalid option or an
    engine that the bundle does not have.

    Load only bundles that you trust: a compiled form is executable code.
    """
    settings = parse_options({"check": check, "isolate": isolate, "threads": threads})
    name = os.fspath(path)
    _check_kind(path, name)
    file = BundleFile(path)
    specs = [entry["spec"] for entry in file.record.facts["engines"]]
    check_isolated(settings.isolate.engines, specs)
    listed = [engine] if isinstance(engine, str | GraphCompiler) else engine
    listed_specs = [entry.spec if isinstance(entry, GraphCompiler) else entry for entry in listed]
    # Before any engine is created, because importing one may take long.
    for spec in listed_specs:
        if spec not in specs:
            raise OptionError(f"engine names {spec!r}; the bundle has {', '.join(specs)}.{did_you_mean(spec, specs)}")
    try:
        missing = _list_missing(name, specs, listed_specs)
        if missing and strict:
            raise BundleError(f"cannot load {name!r} strictly: {'; '.join(missing.values())}")
        tier = BundleTier(file, open_cache(cache).disk, strict)
        # Pins and isolation name an engine by its name or its spec.
        absent = {*missing, *(spec.partition("{")[0] for spec in missing)}
        isolation = replace(settings.isolate, engines=tuple(entry for entry in settings.isolate.engines if entry not in absent))
        module = _make_module(tier, [spec for spec in specs if spec not in missing], absent, threads, check, isolation)
        for reason in missing.values():
            warn(f"{name!r}: {reason}; its regions are planned again for {', '.join(module.engines)}", FallbackWarning)
        _restore_programs(module, tier)
        return module
    except BundleError:
        raise
    except XRTError as error:
        raise BundleError(f"cannot load {name!r}: {error}") from error


def _check_kind(path: str | os.PathLike[str], name: str) -> None:
    if Path(path).is_file() and not is_bundle(path):
        try:
            check_not_torch(path)
        except ModelError as error:
            raise BundleError(f"cannot load a bundle: {error}") from None
        if Path(path).suffix.lower() == ".onnx":
            hint = f"xrt.XRTModule({name!r}, engine=...) runs a model, and its save() writes a bundle"
            raise BundleError(f"{name!r} is not a bundle; its suffix is that of an ONNX model: {hint}")


def _list_missing(name: str, specs: Sequence[str], listed_specs: Sequence[str]) -> dict[str, str]:
    """Map each unavailable engine to the reason. Raises BundleError for an engine that only the caller may choose."""
    missing = {}
    for spec in specs:
        try:
            if spec not in listed_specs and (reason := registry.why_forbidden(spec, "bundle")):
                hint = f"pass engine={spec!r} (-e on the command line) if that is what you want"
                raise BundleError(f"cannot load {name!r}: {reason}; {hint}")
            registry.create(spec)
        except (EngineUnavailable, UnknownEngine) as error:
            missing[spec] = f"engine {spec!r} is not available: {error}"
    return missing


def _make_module(
    tier: BundleTier, specs: Sequence[str], absent: set[str], threads: int | None, check: Check, isolate: Isolation
) -> XRTModule:
    """Create the module on the engines ``specs``, without programs. Pins to the missing engines ``absent`` are dropped."""
    file, facts, count = tier.file, tier.file.record.facts, len(tier.file.record.programs)
    try:
        clustering = read_options(facts["clustering"])
        clustering = replace(clustering, pins=tuple(pin for pin in clustering.pins if pin.engine not in absent))
        execution, shapes = ExecutionOptions(**facts["execution"]), read_shapes(facts["shapes"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # an OptionError is a ValueError
        raise BundleError(f"cannot load {os.fspath(file.path)!r}: its options cannot be read: {error}") from error
    # The saved budget has the lowest priority, because it may come from another machine.
    budgets = (threads, find_granted_threads(), execution.threads)
    execution = replace(execution, threads=next((budget for budget in budgets if budget is not None), None))
    options: dict[str, Any] = {item.name: getattr(part, item.name) for part in (clustering, execution) for item in fields(part)}
    options |= {"strict": facts["strict"], "fold_constants": facts["fold_constants"], "shapes": shapes}
    # Loading all programs must not evict the first one. Each counts as at least `MIN_BYTES`.
    cache = CompileCache(disk=tier, max_bytes=max(MAX_BYTES, 2 * count * MIN_BYTES))
    record, model = file.record, facts["model"]
    source: ModelSource
    if model:
        source = DeferredModel(record.inputs, record.outputs, lambda: StaticModel(file.read_model(model)))
    else:
        traces = {_list_types(x): partial(file.read_model, x.function) for x in record.programs if not x.fetch}
        source = TracedModel([value.name for value in record.inputs], traces)
    engines = [*specs] or REFERENCE  # if all engines are missing, the programs are planned again for the reference engine
    module = XRTModule(source, engines, facts["device"], cache=cache, check=check, isolate=isolate, **options)
    module.dispatcher.max_threads += 2 * module.threads * count  # room for all saved programs at once
    module.bundle = file
    return module


def _list_types(program: StoredProgram) -> tuple[Any, ...]:
    return tuple(value.type for value in program.inputs)


def _make_specialization(program: StoredProgram, file: BundleFile, context: BuildContext) -> Specialization:
    """Create the specialization of a saved program with all nodes. Raises BundleError if the file is damaged."""
    from xrt.partition.plan import from_message

    plan = from_message(file.read_plan(program.plan))
    saved = SavedSpecialization(plan, partial(file.read_model, program.function))
    return Specialization(plan.function, context, original=plan.function, saved=saved)


def _restore_programs(module: XRTModule, tier: BundleTier) -> None:
    """Add the saved programs to the module, except programs with a region on a missing engine.

    If regions must be recompiled, issue one FallbackWarning or, with ``tier.strict``, raise BundleError.
    """
    recompiled: dict[str, str] = {}
    file, context = tier.file, module.programs.context

    def read_weight(weight: StoredWeight) -> Any:
        return np.frombuffer(file.read_weight(weight.digest), np.uint8)

    # They were saved from the least to the most recently used.
    for program in file.record.programs:
        plan, build = restore(program, context, read_weight, partial(_make_specialization, program, file, context))
        # If an engine of this program is missing, the program is dropped, and a call plans again.
        if not all(launch.engine in module.engines for launch in plan.launches):
            continue
        restored_key = module.sizes.restore_key(_list_types(program), context.engines)
        if restored_key is None:
            continue
        (sizes_key,) = restored_key  # a tuple, because the key of a program for all sizes is None
        regions = list_regions(plan, context.engines.by_spec, context.engines.context)
        build.remarks = dict(_register_compiled_forms(regions, program.compiled, tier, recompiled))
        module.dispatcher.put((sizes_key, program.fetch), build)
        if module.dispatcher.last is None:  # reports show the first program until a call selects another
            module.dispatcher.last = build
    if recompiled:
        region, why = next(iter(recompiled.items()))
        count, name = len(recompiled), os.fspath(file.path)
        text = f"{name!r}: {count} region(s) must be compiled again on this machine, first {region}: {why}"
        if tier.strict:
            raise BundleError(f"{text}; load without strict=True to compile them")
        warn(f"{text}; m.explain() lists them", FallbackWarning)


_MACHINE_INGREDIENTS = ("xrt", "engine", "version", "options", "device", "threads", "machine")
"""Ingredients of a signature that must be the same on this machine for a compiled form to be loaded."""


def _register_compiled_forms(
    regions: Sequence[RegionToCompile], forms: Sequence[CompiledForm], tier: BundleTier, recompiled: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Register in ``tier`` the compiled forms that are valid on this machine; yield (region name, remark) pairs.

    If a compiled form is not valid, the reason is added to ``recompiled``, by region name.
    """
    for region, form in zip(regions, forms, strict=False):
        saved, engine, threads = dict(form.ingredients), region.engine, region.context.threads
        # `region.version` of an isolated engine also has the version of its worker, which does not matter here.
        get_version = getattr(engine, "library_version", None)
        version = region.version if get_version is None else get_version()
        current = dict(make_signature(Function((), ()), engine, region.context, version).ingredients)
        saved_threads = saved.get("threads", "")
        if saved_threads.isdecimal() and engine.can_load_with_threads(int(saved_threads), threads):
            current["threads"] = saved_threads
        changed = [name for name in _MACHINE_INGREDIENTS if saved.get(name) != current[name]]
        differences = "; ".join(f"{name} was {saved.get(name, 'unknown')!r} and is {current[name]!r}" for name in changed)
        if differences:
            recompiled[region.launch.name] = differences
            yield region.launch.name, f"compiled again, not loaded from the bundle: {differences}"
        elif form.section:
            requested = {**saved, "version": region.version, "threads": str(threads)}
            tier.sections[_drop_code_hash(tuple(requested.items()))] = form.section
            yield region.launch.name, "its compiled form comes from the bundle"
        else:
            yield region.launch.name, f"the bundle has no compiled form: {form.reason or 'none was saved'}"


def save(
    module: XRTModule,
    path: str | os.PathLike[str],
    examples: Sequence[Any],
    kwargs: Mapping[str, Any],
    example: bool,
) -> None:
    """Implement `XRTModule.save`. Also raises ModelError for a Function that ONNX cannot express."""
    from xrt.formats.placement_file import PlacementFile, dumps
    from xrt.module.tuning import find_serving_record
    from xrt.partition.plan import to_message

    module.dispatcher.check_open()
    if not isinstance(example, bool):
        raise OptionError(f"example is True or False; got {type(example).__name__}: pass inputs as in a call, save(path, x)")
    if examples or kwargs or not any(build.compiled for build in module.dispatcher):
        module.compile(*examples, **kwargs)
    self_test = _make_example(module, examples, kwargs) if example else None
    source, engines, settings = module.source, module.programs.engines, module.programs.settings
    builds = {key: build for key, build in module.dispatcher.to_dict().items() if build.compiled}
    models: dict[str, Function] = {} if source.is_traced else {"model": source.get_declared_function()}
    plans: dict[str, dict[str, Any]] = {}
    compiled: dict[str, Buffer] = {}
    programs: list[StoredProgram] = []

    def list_weights(function: Function) -> Iterator[StoredWeight]:
        for constant in list_large_constants(function).values():
            yield StoredWeight(constant.digest.hex(), IN_RECORD, 0, constant.nbytes)

    for (_, fetch), build in builds.items():
        function_section, plan_section = f"function:{len(programs)}", f"plan:{len(programs)}"
        models[function_section] = build.get_full_function()
        plans[plan_section] = to_message(build.plan)
        regions = zip(build.regions(), build.program().executables, strict=True)
        forms = tuple(_save_region(region, executable, compiled) for region, executable in regions)
        program = store_program(build.plan, list_weights)
        programs.append(program._replace(fetch=tuple(fetch), function=function_section, plan=plan_section, compiled=forms))
    # After the listed engines, those of reduced precision that plans use.
    versions = {engine.spec: engine.version() for engine in engines.engines if engine.spec != engines.implicit}
    for build in builds.values():
        for engine in build.engines.reduced_engines:
            versions.setdefault(engine.spec, engine.version())
    facts = {
        "writer": __version__,
        "engines": [{"spec": spec, "version": version} for spec, version in versions.items()],
        "clustering": asdict(settings.clustering),
        "execution": asdict(settings.execution),
        "device": engines.context.device,
        "strict": settings.strict,
        "fold_constants": settings.fold_constants,
        "model": "" if source.is_traced else "model",
        "shapes": dump_shapes(module.sizes.saved_shapes),
        "serving": dumps(PlacementFile(serving=find_serving_record(module))),
    }
    record = ProgramRecord(source.inputs, source.outputs, tuple(programs), facts=facts)
    if self_test is not None:
        compiled[SELF_TEST_SECTION] = encode_example(self_test)
    write_bundle(path, record, models, plans, compiled)


def _save_region(region: RegionToCompile, executable: Executable, compiled: dict[str, Buffer]) -> CompiledForm:
    """Add a region's executable to ``compiled``, a dict by section name. If it cannot be saved, the result has the reason."""
    signature = region.signature
    # Equal regions of several programs share a section.
    section, reason = f"compiled:{signature.key}", ""
    if section not in compiled:
        try:
            with make_working_directory() as folder:
                compiled[section] = region.engine.save(executable, replace(region.context, workdir=folder, is_shared=True))
        except CompileRefused as error:
            section, reason = "", str(error)
        except Exception as error:  # noqa: BLE001  # any error of the engine's library: a load recompiles the region
            _log.warning("engine %r failed to save %s", region.engine.spec, region.launch.name, exc_info=True)
            section, reason = "", f"{type(error).__name__}: {error}"
    return CompiledForm(section, signature.ingredients, reason)


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """The result of a successful self-test. Prints as one line."""

    difference: float
    """Largest absolute difference between an element of an output and the saved value."""
    seconds: float

    def __str__(self) -> str:
        return f"self-test passed in {self.seconds:.3f} s; largest difference {self.difference:.3g}"


def _make_example(module: XRTModule, examples: Sequence[Any], kwargs: Mapping[str, Any]) -> Example | None:
    """Make the example for a bundle: inputs, and the module's outputs for them.

    The inputs are those of the caller, else those of the bundle that the module was loaded from, else random. Returns None if
    nothing is compiled, or if the example cannot be stored or run; the reason is logged.
    """
    if not (examples or kwargs) and module.bundle is not None:
        return read_example(module.bundle)
    count = len(module.source.inputs)
    builds = [build for (_, fetch), build in module.dispatcher.to_dict().items() if build.compiled and not fetch]
    values = None
    if examples or kwargs:
        values = to_host(module.programs.check_inputs(examples, kwargs, pads=False)[:count])
        builds = [module.programs.specialize(module.programs.check_inputs(examples, kwargs))]
    if not builds:
        return None
    function = builds[-1].get_full_function()
    try:
        if values is None:
            values = _draw_inputs(function)[:count]  # without the further inputs of a padded model, its sizes
        _check_storable(values)
        inputs = tuple((value.name, np.array(array)) for value, array in zip(function.inputs, values, strict=False))
        outputs = _run_to_host(module, [array.copy() for _, array in inputs])
        _check_storable([*values, *outputs])
        return Example(inputs, tuple(zip((value.name for value in module.outputs), outputs, strict=True)))
    except XRTError as error:
        _log.info("the bundle has no example: %s", error)
        return None


def _draw_inputs(function: Function) -> list[Any]:
    """Draw random inputs. Raises OptionError if the model is nondeterministic, InputError if no inputs can be drawn."""
    from xrt.operators import is_deterministic  # imports onnx, which a load does not need
    from xrt.operators.sample_inputs import sample_inputs

    if not all(is_deterministic(node, function) for node in function.nodes):
        raise OptionError("the model is nondeterministic")
    return list(sample_inputs(function).values())


def _check_storable(values: Sequence[Any]) -> None:
    """Raise OptionError if a value is not a numeric array, or all together have more than `MAX_EXAMPLE_BYTES`."""
    if not all(map(is_numeric_array, values)):
        raise OptionError("an input or output is not a numeric tensor")
    if (nbytes := sum(value.nbytes for value in values)) > MAX_EXAMPLE_BYTES:
        raise OptionError(f"it has {nbytes} bytes, and a bundle stores at most {MAX_EXAMPLE_BYTES}")


def read_example(file: BundleFile) -> Example | None:
    """Read the self-test example of a bundle; None if it has none. Raises BundleError if it is damaged."""
    data = file.read_section(SELF_TEST_SECTION) if SELF_TEST_SECTION in file.sections else None
    return None if data is None else decode_example(data)


def run_self_test(file: BundleFile, module: Callable[..., Any]) -> SelfTestReport | None:
    """Check the file, run its example on ``module``, and compare with the saved outputs.

    Returns None if the bundle has no example. Raises SelfTestFailed.
    """
    from xrt.comparison import compare, tolerance_for  # a load does not need it

    began, name = perf_counter(), os.fspath(file.path)
    try:
        file.check()
        example = read_example(file)
        if example is None:
            return None
        results = _run_to_host(module, [np.array(array) for _, array in example.inputs])
    except XRTError as error:
        raise SelfTestFailed(f"the self-test of {name!r} failed: {error}") from error
    differences = [0.0]
    for (output, expected), result in zip(example.outputs, results, strict=True):
        comparison = compare(result, expected, tolerance_for(expected.dtype, "network"), name=output)
        if not comparison:
            hint = f"save the bundle again where its results are right, or find what differs with `xrt verify {name}`"
            raise SelfTestFailed(f"the self-test of {name!r} failed: {comparison.message}; {hint}", comparison.absolute)
        differences.append(comparison.absolute)
    return SelfTestReport(max(differences), perf_counter() - began)


def _run_to_host(module: Callable[..., Any], inputs: Sequence[Any]) -> Sequence[Any]:
    results = module(*inputs)
    return tuple(to_host(list(results) if isinstance(results, tuple) else [results]))
