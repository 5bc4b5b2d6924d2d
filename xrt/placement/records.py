"""Lockfiles and stored decisions: a `PlacementFile` with the record of a search, whose plans are ranges of nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import TYPE_CHECKING, TypeAlias

from xrt import __version__
from xrt.cache import Signature
from xrt.cache.signature import CODE_UNKNOWN, hash_sources, make_context_key
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine, RecordedSupportEngine
from xrt.errors import DeviceError, LockError, OptionError, PlacementFileError, PlanError, XRTError
from xrt.formats.placement_file import (
    Baseline,
    DeclinedNodes,
    NodeRange,
    NodeRanges,
    PlacementFile,
    SearchRecord,
    read_placement,
)
from xrt.graph import FrozenDict, Function
from xrt.graph.device_names import normalize_device
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.passes.quantize.form import make_planned_function
from xrt.placement.result import PlacementRequest, TuningResult, describe_plan, unwrap, update_reasons
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.cache.cost_store import CostStore
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.partition import Plan

Ingredients: TypeAlias = tuple[tuple[str, str], ...]
"""(name, value) entries of the key under which a decision is stored."""
DEVICE_OF = "device of "
"""Prefix of the names of options that record the device of an engine, if it is not the module's. The engine's spec follows."""
MAX_NAME_CHARACTERS = 400
"""Maximum characters of a name in a lockfile; longer names are cut."""
FINGERPRINT_DIGITS = 12  # in messages


def create_lock(
    tuned: TuningResult,
    request: PlacementRequest,
    *,
    baseline: Baseline | None = None,
    source: Mapping[str, str] = FrozenDict(),
    values: Mapping[str, str] = FrozenDict(),
    now: datetime | None = None,
) -> PlacementFile:
    """Create the lockfile for the result of a search.

    The plan of the result places the request's Function or its quantized form. ``baseline`` is the comparison with another plan
    that later checks use. ``source`` records where the model came from, and ``values`` has the file of each input; a check loads
    the model and these files, and uses random values for other inputs. ``now`` is the date to record.
    """
    function, plan = request.function, tuned.plan
    machine, options = _describe_setting(request, {*plan.used_engines})
    used = set(plan.engines)
    # A check also runs the baseline plan, and compares the versions of its engines.
    if baseline is not None:
        used.update(node_range.engine for node_range in baseline.ranges)
    record: SearchRecord[NodeRanges] = tuned.record.map_plans(lambda plan: ())
    candidates = tuple(candidate.replace(regions=()).rounded() for candidate in record.candidates)
    return PlacementFile(
        writer=__version__,
        date=(now or datetime.now(UTC)).strftime("%Y-%m-%d"),
        model={**_describe_model(function), **source},
        inputs=_describe_inputs(function),
        engines={engine.spec: engine.version() for engine in unwrap(request.engines) if engine.spec in used},
        machine=machine,
        options=options,
        plan=list_node_ranges(plan, make_planned_function(function, record.precision)),
        search=record.replace(candidates=candidates).rounded(),
        baseline=None if baseline is None else baseline.rounded(),
        values=values,
    )


def read_lock(path: str | os.PathLike[str]) -> PlacementFile:
    """Read the lockfile at a path. Raises PlacementFileError if it cannot be read, and LockError if it is not a lockfile."""
    document, name = read_placement(path), os.fspath(path)
    if not document.model:
        raise LockError(f"{name!r} has no section 'model', so it is no lockfile; `xrt lock MODEL -o FILE` writes one", file=name)
    return document


def read_shapes(lock: PlacementFile, function: Function) -> dict[str, tuple[int, ...]]:
    """Parse the input shapes that the lock records, by name; inputs whose shape was not static are left out."""
    shapes = {}
    for value in function.inputs:
        if match := _STATIC_TYPE.fullmatch(lock.inputs.get(value.name[:MAX_NAME_CHARACTERS], "")):
            shapes[value.name] = tuple(int(extent) for extent in match[1].split(",") if extent)
    return shapes


_STATIC_TYPE = re.compile(r"\w+\[((?:\d{1,18}(?:,\d{1,18})*)?)\]", re.ASCII)


def list_node_ranges(plan: Plan, function: Function) -> NodeRanges:
    """Convert a plan to node ranges, each of consecutive nodes of ``function`` in one region."""
    assignment, region_numbers = map_nodes_to_engines(plan), map_nodes_to_regions(plan)
    ranges, position = [], 0
    for region, group in groupby([node.name for node in function.nodes], region_numbers.__getitem__):
        names = list(group)
        # The names are only for readers of a diff: nodes are placed by position.
        first = names[0][:MAX_NAME_CHARACTERS]
        last = names[-1][:MAX_NAME_CHARACTERS] if len(names) > 1 else ""
        ranges.append(NodeRange(region, assignment[names[0]], position, len(names), first, last))
        position += len(names)
    return tuple(ranges)


def plan_from_ranges(ranges: Sequence[NodeRange], request: PlacementRequest) -> Plan:
    """Rebuild a plan from node ranges; raises LockError if it does not fit the request's Function and engines."""
    assignment: dict[str, str] = {}
    groups: dict[str, int] = {}
    function, count = request.function, len(request.function.nodes)
    for node_range in ranges:
        end = node_range.at + node_range.nodes
        if end > count:
            raise LockError(f"the plan places nodes up to number {end}, and the model has {count} nodes")
        for node in function.nodes[node_range.at : end]:
            if node.name in assignment:
                raise LockError(f"node {node.name!r} is placed twice")
            assignment[node.name] = node_range.engine
            groups[node.name] = node_range.region
    # A file may be edited by hand, so nodes may be missing.
    if len(assignment) < count:
        missing = next(node.name for node in function.nodes if node.name not in assignment)
        raise LockError(f"only {len(assignment)} of {count} nodes are placed; the first missing one is {missing!r}")
    implicit, device_map = request.implicit, request.device_map
    try:
        return plan_from_assignment(
            function, request.engines, assignment, groups=groups, implicit=implicit, device_map=device_map
        )
    except PlanError as error:
        raise LockError(f"the plan is impossible now: {error}") from error


def list_mismatches(lock: PlacementFile, request: PlacementRequest, *, for_check: bool = False) -> tuple[str, ...]:
    """List the differences between a lock and a request, each as a phrase for a message; empty if the lock applies.

    Only engines that the plan uses are compared. A regression check passes ``for_check``, which also compares the engines of the
    baseline, and ignores the clustering options.
    """
    if reasons := tuple(_compare_model(lock, request.function)):
        return reasons  # for another model, other differences do not matter
    ranges = [*lock.plan]
    machine, options = _describe_setting(request, {node_range.engine for node_range in ranges})
    if for_check:
        options["clustering"] = lock.options.get("clustering", "")
        ranges += lock.baseline.ranges if lock.baseline else ()
    return (
        *_compare_engines(lock, request.engines, (node_range.engine for node_range in ranges)),
        *_compare_facts(lock.machine, machine),
        *_compare_facts(lock.options, options),
    )


def _compare_model(lock: PlacementFile, function: Function) -> Iterator[str]:
    current = _describe_model(function)
    if lock.model.get("fingerprint") == current["fingerprint"]:
        return
    locked_types = {f"input {name}": type_ for name, type_ in lock.inputs.items()}
    current_types = {f"input {name}": type_ for name, type_ in _describe_inputs(function).items()}
    differences = tuple(_compare_facts(locked_types, current_types))
    locked_count = lock.model.get("nodes", "unknown")
    if differences and locked_types.keys() == current_types.keys() and locked_count == current["nodes"]:
        # Other input sizes alone explain that the fingerprint differs.
        yield f"the sizes differ: {'; '.join(differences)}"
        return
    yield from differences
    yield from _compare_facts({"the number of nodes": locked_count}, {"the number of nodes": current["nodes"]})
    was, now = lock.model.get("fingerprint", "unknown")[:FINGERPRINT_DIGITS], current["fingerprint"][:FINGERPRINT_DIGITS]
    yield f"the model {lock.model.get('name', '')!r} had fingerprint {was}, and {current['name']!r} has {now}"


def _compare_engines(lock: PlacementFile, engines: Sequence[GraphCompiler], used: Iterable[str]) -> Iterator[str]:
    by_spec = {engine.spec: engine for engine in unwrap(engines)}
    for spec in dict.fromkeys(used):
        if spec not in by_spec:
            yield f"engine {spec!r}, which the plan uses, is not in the list of engines or not ready"
            continue
        was, now = lock.engines.get(spec, "unknown"), by_spec[spec].version()
        if was != now:
            yield f"engine {spec!r} was {was} and is {now}"


def _compare_facts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**was, **now}:
        if name not in now:
            yield f"{name} was {was[name]} and is absent"
        elif name not in was:
            yield f"{name} is {now[name]} and was absent"
        elif was[name] != now[name]:
            yield f"{name} was {was[name]} and is {now[name]}"


def _describe_model(function: Function) -> dict[str, str]:
    return {"name": function.name, "fingerprint": function.fingerprint, "nodes": str(len(function.nodes))}


def _describe_inputs(function: Function) -> dict[str, str]:
    return {value.name[:MAX_NAME_CHARACTERS]: str(value.type) for value in function.inputs}


def _describe_setting(request: PlacementRequest, specs: Set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Describe the machine, and the options for a plan on these engines, as two dicts. Unavailable devices are left out."""
    context = request.context
    # Only devices that the plan needs: the lock must apply on a machine without the devices of other engines.
    devices = {spec: name for spec, name in sorted(request.devices.items()) if spec in specs}
    platform, _, processor = dict(make_context_key(context))["machine"].partition("; ")
    system, architecture, *extensions = platform.split(" ")
    machine = {"system": f"{system} {architecture}", "processor": processor, "extensions": " ".join(extensions)}
    for name in sorted({context.device, *devices.values()} - {"cpu"}):
        with suppress(DeviceError):
            accelerator = on_device(name, context).accelerator
            machine[normalize_device(name)] = accelerator.hardware if accelerator is not None else ""
    options = {"precision": context.options.precision, "device": context.device, "threads": str(context.threads)}
    options |= {f"{DEVICE_OF}{spec}": name for spec, name in devices.items()}
    return machine, {**options, "clustering": str(request.clustering)}


def make_decision_key(request: PlacementRequest, ingredients: Ingredients | None = ()) -> Signature | None:
    """Make the key under which a decision is stored; None if it must not be stored.

    The key has the model, the engines with version and code, the options, machine and devices, and ``ingredients``, those of the
    error budget: () without a budget, None if the code of its metric is unknown. A decision is not stored if the code of the
    metric or of an engine is not in a file: a change of the code would go unnoticed.
    """
    if ingredients is None:
        return None
    context = on_device(request.context.device, request.context)
    descriptions = []
    for engine in unwrap(request.engines):
        # The code of an unused engine is hashed without importing it.
        is_unused = isinstance(engine, LazyEngine)
        code = hash_sources(registry.find_entry(engine.name).module if is_unused else engine.implementation.__module__)
        if code == CODE_UNKNOWN:
            return None
        # An engine in development keeps its version while its code changes, so that the code counts too.
        descriptions.append(f"{engine.spec} {_get_version(engine)} {code}")
    subject = (("decision", f"of xrt {__version__}"), ("function", request.function.fingerprint))
    options = (("implicit", str(request.implicit)), ("clustering", str(request.clustering)))
    entries = [*subject, ("engines", ", ".join(descriptions)), *options, *make_context_key(context)]
    if request.devices:
        contexts = {spec: on_device(name, context) for spec, name in sorted(request.devices.items())}
        hardware = {spec: dict(make_context_key(device_context))["device"] for spec, device_context in contexts.items()}
        entries.append(("devices", str(hardware)))
    if request.cuda_graph:
        entries.append(("graph", "recorded"))
    return Signature((*entries, *ingredients))


def _get_version(engine: GraphCompiler) -> str:
    """Return the version of an engine. The library of an unused engine is not imported."""
    return engine.status.version if isinstance(engine, LazyEngine) else engine.version()


def load_decision(request: PlacementRequest, store: CostStore, ingredients: Ingredients | None = ()) -> TuningResult | None:
    """Load the stored decision for a request; None if there is none, or its search was too short.

    A decision is used if its search had at least the budget of the request, or was requested by the user. ``ingredients`` are as
    for `make_decision_key`.
    """
    document = store.read_decision(make_decision_key(request, ingredients))
    if document is None:
        return None
    try:
        result = read_decision(document, request)
    except XRTError as error:
        store.store.report_problem(f"a decision cannot be used: {error}")
        return None
    return result if result.record.is_explicit or result.record.budget >= request.budget else None


def store_decision(
    tuned: TuningResult, request: PlacementRequest, store: CostStore, ingredients: Ingredients | None = ()
) -> None:
    """Store a decision for later processes, if a plan won and the search was not interrupted."""
    if tuned.how == "measured" and tuned.record.winner is not None:
        store.store_decision(make_decision_key(request, ingredients), make_decision(tuned, request))


def mark_checked(request: PlacementRequest, store: CostStore, ingredients: Ingredients | None = ()) -> None:
    key = make_decision_key(request, ingredients)
    document = store.read_decision(key)
    if document is not None:
        store.store_decision(key, document.replace(search=document.search.replace(is_checked=True)))


def make_decision(tuned: TuningResult, request: PlacementRequest) -> PlacementFile:
    """Make the stored decision of a search, which `read_decision` reads. Nodes are identified by position, not by name.

    Only the engines of the chosen plan are recorded. With an error budget, only the chosen candidate is recorded, because the
    other candidates place other quantized forms of the model.
    """
    record, engines = tuned.record, tuned.queried or request.engines
    request = make_planned_request(request, record.precision, tuned.reduced_engines)
    if record.precision is not None:
        engines, record = request.engines, record.replace(candidates=record.candidates[:1])
    used = [engine for engine in engines if engine.spec in tuned.plan.engines]
    specs = {engine.spec for engine in used}
    return PlacementFile(
        writer=__version__,
        engines={engine.spec: _get_version(engine) for engine in unwrap(request.engines) if engine.spec in specs},
        search=record.map_plans(lambda plan: list_node_ranges(plan, request.function)),
        declined=_list_declined(request, used),
    )


def make_planned_request(
    request: PlacementRequest, precision: PrecisionRecord | None, reduced_engines: Sequence[GraphCompiler]
) -> PlacementRequest:
    """Make the request to place the form of the model that ``precision`` records; None stands for the model as it is.

    ``reduced_engines`` are the engine variants that compute in reduced precision. They are added to the engines.
    """
    function = make_planned_function(request.function, precision)
    return replace(request, function=function, engines=(*reduced_engines, *request.engines))


def _list_declined(request: PlacementRequest, engines: list[GraphCompiler]) -> tuple[DeclinedNodes, ...]:
    """Record which nodes each engine does not support, with reasons, so that no engine need be queried again."""
    function = request.function
    capability = SupportMatrix.of(function, engines, request.device_map)
    declined: dict[tuple[str, str], list[int]] = {}
    for index, engine in enumerate(engines):
        for position in range(len(function.nodes)):
            if (reason := capability.reason(position, index)) is not None:
                declined.setdefault((engine.spec, reason), []).append(position)
    return tuple(DeclinedNodes(spec, reason, tuple(positions)) for (spec, reason), positions in declined.items())


def read_decision(document: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Rebuild the result of a search from its stored decision.

    Raises PlacementFileError if the document is not a decision or does not fit the request; CalibrationError or OptionError if
    its precision does not fit.
    """
    search, precision = document.search, document.search.precision
    reduced_engines: tuple[GraphCompiler, ...] = ()
    if precision is not None:
        node_ranges = chain.from_iterable(candidate.plan for candidate in search.candidates)
        reduced_engines = create_reduced_engines([node_range.engine for node_range in node_ranges], request)
    request = make_planned_request(request, precision, reduced_engines)
    request = _replace_engines(request, _restore_engines(document, request))
    record = search.map_plans(lambda ranges: update_reasons(plan_from_ranges(ranges, request), search.unmeasured))
    if record.winner is None:
        raise PlacementFileError("search.candidates: none has won, so it is not a decision", position="search.candidates")
    plan, engines = record.winner.plan, request.engines
    return TuningResult(plan, record, "remembered", queried=engines, reduced_engines=reduced_engines)


def read_locked_result(lock: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Make the result of a lock: its plan, with the recorded times of the winner; the other candidates become notes.

    Raises LockError if the plan does not fit the request, CalibrationError or OptionError if the precision does not.
    """
    request = make_planned_request(request, lock.search.precision, ())
    if request.implicit not in {node_range.engine for node_range in lock.plan}:
        request = _replace_engines(request, [engine for engine in request.engines if engine.spec != request.implicit])
    plan = plan_from_ranges(lock.plan, request)
    record = lock.search
    won = tuple(candidate.replace(title=describe_plan(plan)) for candidate in record.candidates if candidate.verdict == "won")
    others = (str(candidate) for candidate in record.candidates if candidate.verdict != "won")
    # No module writes to a lock that its first call was checked, so every process would check it again.
    record = record.replace(candidates=won, notes=(*others, *record.notes), is_checked=True)
    return TuningResult(plan, record.map_plans(lambda ranges: plan), "locked")


def _replace_engines(request: PlacementRequest, engines: Sequence[GraphCompiler]) -> PlacementRequest:
    """Replace the engines of a request; the request keeps its implicit engine only if it is among the new ones."""
    implicit = request.implicit if any(engine.spec == request.implicit for engine in engines) else None
    return replace(request, engines=tuple(engines), implicit=implicit)


def _restore_engines(document: PlacementFile, request: PlacementRequest) -> tuple[GraphCompiler, ...]:
    """Restore the engines of a decision as proxies that repeat the recorded support, so that no library is imported."""
    names, specs = [node.name for node in request.function.nodes], {engine.spec for engine in request.engines}
    declined: dict[str, dict[str, str]] = {spec: {} for spec in document.engines if spec in specs}
    for row in document.declined:
        if row.engine not in declined or max(row.nodes, default=0) >= len(names):
            raise PlacementFileError("declined: an engine or a node is not part of the request", position="declined")
        declined[row.engine].update((names[position], row.reason) for position in row.nodes)
    if not declined:
        raise PlacementFileError("engines: none of them is part of the request", position="engines")
    return tuple(RecordedSupportEngine(engine, declined[engine.spec]) for engine in request.engines if engine.spec in declined)


def create_reduced_engines(specs: Sequence[str], request: PlacementRequest) -> tuple[GraphCompiler, ...]:
    """Create the engines among ``specs`` that the request does not have.

    Raises OptionError for an engine that is not a reduced-precision variant of an engine of the request: a file must not choose
    the code to run.
    """
    missing = set(specs) - {engine.spec for engine in request.engines}
    if not missing:
        return ()
    variants: dict[str, GraphCompiler] = {}
    for engine in request.engines:
        variants.update((variant.spec, variant) for variant in _list_reduced_variants(engine))
    for spec in sorted(missing):
        if spec not in variants:
            raise OptionError(f"engine {spec!r} of a plan of reduced precision is not a variant of an engine of the list")
    return tuple(variants[spec] for spec in dict.fromkeys(specs) if spec in missing)


def _list_reduced_variants(engine: GraphCompiler) -> list[GraphCompiler]:
    int8 = engine.with_precision("int8")
    # An engine may combine int8 with bf16 or fp16.
    bases = [engine] if int8 is None else [engine, int8]
    variants = [int8, *(base.with_precision(name) for base in bases for name in ("bf16", "fp16"))]
    return [variant for variant in variants if variant is not None]
