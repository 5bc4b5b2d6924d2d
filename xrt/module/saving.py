"""A module as a bundle: `XRTModule.save`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from xrt import __version__
from xrt.cache.signature import describe_machine
from xrt.errors import BundleError, CompileRefused
from xrt.formats.bundle import make_working_directory, write_bundle
from xrt.formats.example import encode_example
from xrt.module.bundle_index import BUCKETS, SECTION, make_index
from xrt.module.self_test import SECTION as EXAMPLE
from xrt.module.stored_serving import SERVING
from xrt.module.variants import SECTION as VARIANTS
from xrt.module.variants import Extension, Variant, dump_variants, extend_bundle
from xrt.partition.serialization import to_message

if TYPE_CHECKING:
    from xrt.engines import Executable, GraphCompiler
    from xrt.formats.bundle import BundleFile
    from xrt.formats.container import Buffer
    from xrt.formats.example import Example
    from xrt.graph import Function
    from xrt.module.model_source import ModelSource
    from xrt.module.options import BucketOption, ModuleOptions
    from xrt.module.specialization import Specialization
    from xrt.placement.engine_list import EngineList
    from xrt.runtime import RegionToCompile

__all__ = ["save_module"]

_log = logging.getLogger(__name__)


def save_module(
    path: str | os.PathLike[str],
    source: ModelSource,
    engines: EngineList,
    settings: ModuleOptions,
    builds: Mapping[Any, Specialization],
    example: Example | None = None,
    serving: str = "",
    base: BundleFile | None = None,
    *,
    has_buckets: bool = False,
) -> None:
    """Write the bundle of a module. Builds are by what of the inputs they depend on, and what they fetch.

    ``serving`` is the text of its serving configuration. The bundle ``base`` is extended by a variant. With ``has_buckets``
    builds are of the padded form of the model, which a load makes again. Raises BundleError where ``base`` is of another model,
    or the file cannot be written; ModelError for a Function that ONNX cannot say.
    """
    terms = describe_machine(), engines.context.threads, [engine.spec for engine in _list_named(engines)]
    extension = Extension("", (Variant("", *terms[:2], tuple(terms[2])),), {})
    if base is not None:
        _check_same_model(base, source)
        extension = extend_bundle(base, *terms)
    models: dict[str, Function] = {} if source.is_traced else {"model": source.get_declared_function()}
    compiled: dict[str, Buffer] = {f"{SERVING}{extension.suffix}": serving.encode()} if serving else {}
    programs: list[dict[str, Any]] = []
    for (_, fetch), build in builds.items():
        if build.is_compiled:
            name = f"function{extension.suffix}:{len(programs)}"
            models[name] = build.full_function()
            regions = [_region(*pair, compiled) for pair in zip(build.regions(), build.program().executables, strict=True)]
            programs.append({"function": name, "fetch": fetch, "plan": to_message(build.plan), "regions": regions})
    engines = add_lowered_engines(engines, builds.values())
    manifest = {**_asked(engines, settings), **_ends(source), "programs": programs}
    index = make_index(manifest, [build.plan for build in builds.values() if build.is_compiled])
    if has_buckets or settings.dynamic != "auto":
        buckets = _list_buckets(settings.buckets) if has_buckets else None
        compiled[f"{BUCKETS}{extension.suffix}"] = json.dumps({"buckets": buckets, "dynamic": settings.dynamic}).encode()
    if index is not None:
        compiled = {f"{SECTION}{extension.suffix}": index, **compiled}
    if example is not None:
        compiled[EXAMPLE] = encode_example(example)
    compiled[VARIANTS] = dump_variants(extension.variants)
    write_bundle(path, manifest, models, compiled, suffix=extension.suffix, copied=extension.copied)


def _check_same_model(base: BundleFile, source: ModelSource) -> None:
    """Raise BundleError where a bundle is of another model than the module."""
    manifest = base.manifest
    same = bool(manifest["model"]) != source.is_traced and tuple(manifest["inputs"]) == tuple(source.inputs)
    if same and manifest["model"]:
        same = base.model(manifest["model"]).fingerprint == source.get_declared_function().fingerprint
    if not same:
        reason = "it is the bundle of another model; save this one to a file of its own"
        raise BundleError(f"cannot add a variant to {os.fspath(base.path)!r}: {reason}")


def _list_buckets(asked: BucketOption) -> Any:
    return {name: list(sizes) for name, sizes in asked.items()} if isinstance(asked, Mapping) else asked


def add_lowered_engines(engines: EngineList, builds: Iterable[Specialization]) -> EngineList:
    """Return the list with the engines of lower precision that plans have, behind those that were asked for."""
    known = {engine.spec for engine in engines.engines}
    lowered = {one.spec: one for build in builds for one in build.engines.lowered if one.spec not in known}
    named = [engine for engine in engines.engines if engine.spec != engines.implicit]
    implicit = engines.engines[len(named) :]
    return replace(engines, engines=(*named, *lowered.values(), *implicit)) if lowered else engines


def _asked(engines: EngineList, settings: ModuleOptions) -> dict[str, Any]:
    """Return what the module was asked for."""
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


def _ends(source: ModelSource) -> dict[str, Any]:
    model = "" if source.is_traced else "model"
    return {"inputs": source.inputs, "outputs": source.outputs, "model": model}


def _region(region: RegionToCompile, executable: Executable, compiled: dict[str, Buffer]) -> dict[str, Any]:
    """Return what the manifest says of a region, and put its compiled form, if there is one, with the others."""
    signature = region.signature
    ingredients = [{"name": name, "value": value} for name, value in signature.ingredients]
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
    return {"section": section, "ingredients": ingredients, "reason": reason}
