"""Bundles and copies of a module: writing it, its example and self-test, pickling."""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xrt import __version__
from xrt.cache import CompileCache
from xrt.comparison import compare, tolerance_for
from xrt.errors import CompileRefused, OptionError, SelfTestFailed, XRTError
from xrt.formats.arrays import Example, decode_example, encode_example, is_encodable
from xrt.formats.bundle import BundleFile, make_working_directory, write_bundle
from xrt.formats.program_record import OWN, CompiledForm, ProgramRecord, StoredProgram, StoredWeight
from xrt.module.model_source import BundledModel, BundledTraces, TracedModel, is_graph
from xrt.module.sizes import dump_shapes
from xrt.module.stored_plans import list_large_constants, store_program

if TYPE_CHECKING:
    from xrt.engines import Executable, GraphCompiler
    from xrt.formats.container import Buffer
    from xrt.graph import Function
    from xrt.module.model_source import ModelSource
    from xrt.module.module import XRTModule
    from xrt.module.options import ModuleOptions
    from xrt.module.specialization import Specialization
    from xrt.placement.engine_list import EngineList
    from xrt.runtime import RegionToCompile

__all__ = [
    "MOST_BYTES",
    "SELF_TEST_SECTION",
    "Construction",
    "SelfTestReport",
    "copy_module",
    "describe_construction",
    "draw_inputs",
    "read_example",
    "run_self_test",
    "save",
]

_log = logging.getLogger(__name__)
M = TypeVar("M", bound="XRTModule")
SELF_TEST_SECTION = "self-test"
MOST_BYTES = 16 << 20
"""Bytes of inputs and outputs that a bundle keeps at most as its example."""


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """A self-test that passed. Prints as a line."""

    difference: float
    """The largest difference between an output and the one that was saved."""
    seconds: float
    """What the call and the comparison took, the compile or load of its programs included."""

    def __str__(self) -> str:
        return f"self-test passed in {self.seconds:.3f} s; largest difference {self.difference:.3g}"


def draw_inputs(function: Function) -> list[Any]:
    """Random inputs; raises OptionError if they are large or a call would not give the same twice, and InputError."""
    from xrt.operators import is_deterministic  # imports onnx, which a load does not need
    from xrt.operators.sample_inputs import sample_inputs

    if not all(is_deterministic(node, function) for node in function.nodes):
        raise _why_not("the same inputs may give other outputs")
    values = list(sample_inputs(function).values())
    _check_size(sum(getattr(value, "nbytes", 0) for value in values))
    return values


def _make_module_example(
    module: XRTModule, examples: Sequence[Any], named: Mapping[str, Any], *, is_required: bool
) -> Example | None:
    """The example of a bundle: of these inputs, else that of the module's bundle, else of random inputs.

    None if there is none and it is not required.
    """
    from xrt.runtime import to_host

    if not (examples or named) and module.bundle is not None:
        return read_example(module.bundle)
    source, compiled = module.source, module.programs.specializations.to_dict().items()
    builds = [build for (_, fetch), build in compiled if build.is_compiled and not fetch]
    values = None
    if examples or named:
        values = to_host(module.check_inputs(examples, named, pads=False)[: len(source.inputs)])
        builds = [module.specialize(module.check_inputs(examples, named))]
    if not builds:
        return None

    try:
        function = builds[-1].full_function()
        values = draw_inputs(function)[: len(source.inputs)] if values is None else values
        return _make_example(module, [value.name for value in function.inputs], values)
    except XRTError:
        if is_required:
            raise
        _log.info("the bundle has no example", exc_info=True)
        return None


def _make_example(module: XRTModule, names: Sequence[str], values: Sequence[Any]) -> Example:
    """The inputs, with the outputs of the module; raises OptionError if one is no tensor of numbers, or they are large."""
    if not all(map(is_encodable, values)):
        raise _why_not("an input is no tensor of numbers")
    inputs = tuple((name, np.array(value)) for name, value in zip(names, values, strict=False))  # without a padded model's sizes
    outputs = _run_to_host(module, [array.copy() for _, array in inputs])
    if not all(map(is_encodable, outputs)):
        raise _why_not("an output is no tensor of numbers")
    example = Example(inputs, tuple(zip((value.name for value in module.outputs), outputs, strict=True)))
    _check_size(example.nbytes)
    return example


def _check_size(nbytes: int) -> None:
    if nbytes > MOST_BYTES:
        most = f"a bundle keeps at most {MOST_BYTES}; give a smaller one"
        raise _why_not(f"it has {nbytes} bytes of inputs and outputs, and {most}")


def _why_not(reason: str) -> OptionError:
    return OptionError(f"the example cannot be kept: {reason}, or pass example=False for none")


def read_example(file: BundleFile) -> Example | None:
    """Return the example of a bundle; None where it has none. Raises BundleError where it is damaged."""
    data = file.find_section(SELF_TEST_SECTION)
    return None if data is None else decode_example(data)


def run_self_test(file: BundleFile, module: Callable[..., Any]) -> SelfTestReport | None:
    """Check a bundle, compute its example and compare; None if it has none. Raises SelfTestFailed."""
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
    from xrt.runtime import to_host

    results = module(*inputs)
    on_host: Sequence[Any] = to_host(list(results) if isinstance(results, tuple) else [results])
    return on_host


def save(
    module: XRTModule,
    path: str | os.PathLike[str],
    examples: Sequence[Any],
    named: Mapping[str, Any],
    example: Mapping[str, Any] | Sequence[Any] | bool,
) -> None:
    """Write a bundle: see `XRTModule.save`."""
    programs = module.programs
    programs.check_open()
    if examples or named or not any(build.is_compiled for build in programs.specializations):
        module.compile(*examples, **named)
    if not isinstance(example, bool):
        examples, named = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
        module.compile(*examples, **named)
    stored = None
    if example is not False:
        stored = _make_module_example(module, examples, named, is_required=not isinstance(example, bool))
    _write(module, path, stored)


def _write(module: XRTModule, path: str | os.PathLike[str], example: Example | None) -> None:
    """Write the programs of a module, and its example.

    Raises BundleError if the file cannot be written, ModelError for a Function without ONNX form.
    """
    from xrt.formats.placement_file import spell_serving
    from xrt.module.tuning import find_serving_record
    from xrt.partition.serialization import to_message  # imports protobuf, which a load does not need

    source, engines, settings = module.source, module.programs.engines, module.programs.settings
    builds = [(fetch, build) for (_, fetch), build in module.programs.specializations.to_dict().items() if build.is_compiled]
    models: dict[str, Function] = {} if source.is_traced else {"model": source.get_declared_function()}
    plans: dict[str, dict[str, Any]] = {}
    compiled: dict[str, Buffer] = {}
    programs: list[StoredProgram] = []
    for fetch, build in builds:
        plan, number = build.plan, f":{len(programs)}"
        models[f"function{number}"], plans[f"plan{number}"] = build.full_function(), to_message(plan)
        regions = zip(build.regions(), build.program().executables, strict=True)
        forms = tuple(_save_region(region, executable, compiled) for region, executable in regions)
        program = store_program(plan, _list_weights)
        programs.append(program._replace(fetch=tuple(fetch), function=f"function{number}", plan=f"plan{number}", compiled=forms))
    facts = {
        **_list_facts(add_lowered_engines(engines, [build for _, build in builds]), settings),
        "model": "" if source.is_traced else "model",
        "shapes": dump_shapes(module.sizes.saved),
        "serving": spell_serving(find_serving_record(module)),
    }
    record = ProgramRecord(source.inputs, source.outputs, tuple(programs), facts=facts)
    if example is not None:
        compiled[SELF_TEST_SECTION] = encode_example(example)
    write_bundle(path, record, models, plans, compiled)


def _list_weights(function: Function) -> Iterator[StoredWeight]:
    """Yield the large constants of a region, which are sections of the bundle."""
    for constant in list_large_constants(function).values():
        yield StoredWeight(constant.digest.hex(), OWN, 0, constant.nbytes)


def add_lowered_engines(engines: EngineList, builds: Iterable[Specialization]) -> EngineList:
    """Return the list with the engines of lower precision that plans have, behind those that were asked for."""
    known = {engine.spec for engine in engines.engines}
    lowered = {one.spec: one for build in builds for one in build.engines.lowered if one.spec not in known}
    named = [engine for engine in engines.engines if engine.spec != engines.implicit]
    implicit = engines.engines[len(named) :]
    return replace(engines, engines=(*named, *lowered.values(), *implicit)) if lowered else engines


def _list_facts(engines: EngineList, settings: ModuleOptions) -> dict[str, Any]:
    """The engines and options of the module."""
    return {
        "writer": __version__,
        "engines": [{"spec": engine.spec, "version": engine.version()} for engine in _list_named(engines)],
        "clustering": asdict(settings.clustering),
        "execution": asdict(settings.execution),
        "device": engines.context.device,
        "strict": settings.strict,
        "fold_constants": settings.fold_constants,
    }


def _list_named(engines: EngineList) -> list[GraphCompiler]:
    return [engine for engine in engines.engines if engine.spec != engines.implicit]


def _save_region(region: RegionToCompile, executable: Executable, compiled: dict[str, Buffer]) -> CompiledForm:
    """Add the compiled form of a region, if its engine can save it, to the others."""
    signature = region.signature
    section, reason = f"compiled:{signature.key}", ""
    if section not in compiled:
        try:
            with make_working_directory() as folder:
                compiled[section] = region.engine.save(executable, replace(region.context, workdir=folder, is_shared=True))
        except CompileRefused as error:
            section, reason = "", str(error)
        except Exception as error:  # noqa: BLE001  # whatever the engine's library raises: the region can be compiled again
            _log.warning("engine %r failed to save %s", region.engine.spec, region.launch.name, exc_info=True)
            section, reason = "", f"{type(error).__name__}: {error}"
    return CompiledForm(section, signature.ingredients, reason)


ADVICE = "Save a bundle with m.save(path), and xrt.load it where it is needed"


@dataclass(frozen=True, slots=True)
class Construction:
    """The arguments that a module was made with, but for the model's bytes: its Function has what was in them."""

    engine: Any
    device: str
    cache: CompileCache | str | os.PathLike[str] | None
    options: Mapping[str, Any]
    path: Path | None
    """The model's file, absolute; None where it came otherwise."""

    @classmethod
    def of(cls, model: Any, engine: Any, device: str, cache: Any, options: Mapping[str, Any]) -> Construction:
        return cls(engine, device, cache, options, Path(model).absolute() if isinstance(model, str | os.PathLike) else None)


def describe_construction(module: XRTModule) -> tuple[Any, ...]:
    """Return how to make a module again, for `pickle`; raises TypeError where that cannot be written down."""
    model, given = _find_model(module.source), module.construction
    if isinstance(given.cache, CompileCache):
        raise TypeError(f"a module with a CompileCache of its own cannot be pickled; give cache= a directory. {ADVICE}")
    parts = {"its model": model if is_graph(model) else None, "its engines": given.engine, "its options": given.options}
    for name, part in parts.items():
        if reason := _why_not_written(part):
            raise TypeError(f"this module cannot be pickled, since {name} cannot: {reason}. {ADVICE}")
    return _make, (type(module), given.path or model, given.engine, given.device, given.cache, dict(given.options))


def copy_module(module: M, memo: dict[int, Any]) -> M:
    """Make another module with the same arguments, over a copy of its graph."""
    model, given = _find_model(module.source), module.construction
    function = copy.deepcopy(model, memo) if is_graph(model) else model  # a Function never changes
    made: M = _make(type(module), function, given.engine, given.device, given.cache, given.options)
    return made


def _find_model(source: ModelSource) -> Any:
    """Return the Function, or the graph, that a module runs; raises TypeError for one from a bundle."""
    if isinstance(source, BundledModel | BundledTraces):
        raise TypeError("a module from a bundle cannot be pickled or copied; xrt.load the bundle again where it is needed")
    return source.graph if isinstance(source, TracedModel) else source.get_declared_function()


def _why_not_written(part: Any) -> str | None:
    """Return why a part cannot be pickled; None where nothing is seen that speaks against it.

    A pickle has functions and classes by name, so they must be found by it; `copy.deepcopy` takes the rest apart as it does.
    """
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
