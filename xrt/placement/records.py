"""Convert placements to and from placement files: search decisions and lockfiles. Both store plans as ranges of nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from xrt import __version__
from xrt.cache import Signature
from xrt.cache.signature import CODE_UNKNOWN, hash_sources, make_context_key
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine, RecordedSupportEngine
from xrt.errors import DeviceError, LockError, PlacementFileError, PlanError
from xrt.formats.placement_file import (
    MOST_CANDIDATES,
    Baseline,
    CandidateRecord,
    DeclinedNodes,
    NodeRange,
    PlacementFile,
    SearchRecord,
    read_placement,
)
from xrt.graph import FrozenDict, Function
from xrt.graph.device_names import normalize_device
from xrt.partition.partitioner import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.passes.quantize.form import make_planned_function
from xrt.placement.result import CandidateComparison, CandidateResult, PlacementRequest, TuningResult, unwrap, with_reasons
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.partition import Plan
    from xrt.placement.result import CandidateComparison


T = TypeVar("T", CandidateRecord, Baseline)
KEPT = 16
"""Maximum number of candidates in a lock."""
DEVICE_OF = "device of "
"""Prefix, before an engine's spec, of the option for its device, if that is not the module's."""
LONGEST = 400
"""Maximum characters of a name in a lock."""
SHOWN = 12
"""Characters of a fingerprint shown in messages."""
# ---------------------------------------------------------------------- from a plan to a lock


def create_lock(
    plan: Plan,
    race: CandidateComparison,
    request: PlacementRequest,
    *,
    baseline: Baseline | None = None,
    source: Mapping[str, str] = FrozenDict(),
    values: Mapping[str, str] = FrozenDict(),
    precision: PrecisionRecord | None = None,
    now: datetime | None = None,
) -> PlacementFile:
    """Create the lockfile of a plan for a request.

    The plan is of the request's Function, or of the quantized form that ``precision`` describes. ``source`` records where the
    model came from, for a later check, and ``values`` the files of inputs; other inputs are random.
    """
    function, used = request.function, _select(request.devices, (launch.engine for launch in plan.launches))
    return PlacementFile(
        writer=__version__,
        date=(now or datetime.now(UTC)).strftime("%Y-%m-%d"),
        model={**_facts_of_model(function), **source},
        inputs=_inputs(function),
        engines={engine.spec: engine.version() for engine in unwrap(request.engines) if engine.spec in plan.engines},
        machine=_machine(request.context, used),
        options=_options(request, used),
        plan=list_node_ranges(plan, make_planned_function(function, precision)),
        candidates=tuple(map(_round, list_candidate_records(race)[:KEPT])),
        baseline=None if baseline is None else _round(baseline),
        values=values,
        precision=precision,
    )


def _round(record: T) -> T:
    """Round each float to six digits: more are noise, which a diff would show."""
    figures = {name: value for name, value in record.to_dict().items() if isinstance(value, float)}
    return record.replace(**{name: float(f"{value:.6g}") for name, value in figures.items()})


def read_lock(path: str | os.PathLike[str]) -> PlacementFile:
    """Read the lockfile at a path. Raises PlacementFileError if it cannot be read, and LockError if it is not a lockfile."""
    document, name = read_placement(path), os.fspath(path)
    if not document.model:
        raise LockError(f"{name!r} has no section 'model', so it is no lockfile; `xrt lock MODEL -o FILE` writes one", file=name)
    return document


def read_shapes(lock: PlacementFile, function: Function) -> dict[str, tuple[int, ...]]:
    """Parse the input shapes that the lock was made for; inputs without a static shape in the lock are missing."""
    matches = {value.name: _SHAPED.fullmatch(lock.inputs.get(value.name[:LONGEST], "")) for value in function.inputs}
    return {name: tuple(map(int, filter(None, match[1].split(",")))) for name, match in matches.items() if match}


_SHAPED = re.compile(r"\w+\[((?:\d{1,18}(?:,\d{1,18})*)?)\]", re.ASCII)
"""A tensor type with static extents only."""


def list_node_ranges(plan: Plan, function: Function) -> tuple[NodeRange, ...]:
    """List the node ranges of a plan; consecutive nodes of one region share a range."""
    homes, groups, names = map_nodes_to_engines(plan), map_nodes_to_regions(plan), [node.name for node in function.nodes]
    found, at = [], 0
    for group, members in groupby(names, groups.__getitem__):
        run = list(members)
        first, last = run[0][:LONGEST], run[-1][:LONGEST]
        found.append(NodeRange(group, homes[run[0]], at, len(run), first, last if len(run) > 1 else ""))
        at += len(run)
    return tuple(found)


def list_candidate_records(race: CandidateComparison, function: Function | None = None) -> tuple[CandidateRecord, ...]:
    """Record the result of each candidate; with a Function, its regions too."""
    return tuple(
        CandidateRecord(
            one.title,
            one.verdict,
            number == race.baseline,
            **{name: getattr(one, name) for name in FIGURES},
            note=one.note[:1000],
            regions=one.regions if function else (),
            ranges=list_node_ranges(one.plan, function) if function else (),
        )
        for number, one in enumerate(race.contenders)
    )


FIGURES = ("seconds", "low", "high", "ratio", "ratio_low", "ratio_high")
"""The numeric fields of a candidate, in its record and in its result."""
# ---------------------------------------------------------------------- from a lock to a plan


def plan_from_ranges(ranges: Sequence[NodeRange], request: PlacementRequest) -> Plan:
    """Rebuild a plan from node ranges; raises LockError if it does not fit the request's Function and engines."""
    homes: dict[str, str] = {}
    groups: dict[str, int] = {}
    function = request.function
    for run in ranges:
        for name in _names(run, function):
            if name in homes:
                raise LockError(f"node {name!r} is placed twice")
            homes[name], groups[name] = run.engine, run.region
    if len(homes) < len(function.nodes):
        left = next(node.name for node in function.nodes if node.name not in homes)
        raise LockError(f"{len(homes)} of {len(function.nodes)} nodes are placed, and not {left!r}")
    try:
        where, implicit = request.device_map, request.implicit
        return plan_from_assignment(function, request.engines, homes, groups=groups, implicit=implicit, device=where)
    except PlanError as error:
        raise LockError(f"it is no plan any more: {error}") from error


def _names(run: NodeRange, function: Function) -> Iterator[str]:
    if run.at + run.nodes > len(function.nodes):
        last = run.at + run.nodes
        raise LockError(f"nodes up to number {last} are placed, and the model has {len(function.nodes)} of them")
    return (node.name for node in function.nodes[run.at : run.at + run.nodes])


# ---------------------------------------------------------------------- mismatches


def list_mismatches(lock: PlacementFile, request: PlacementRequest, *, for_check: bool = False) -> tuple[str, ...]:
    """List the differences between a lock and a request, each as a clause; empty if the lock applies.

    Only the engines of the plan are compared. With ``for_check``, those of the baseline too, and clustering options are ignored.
    """
    if reasons := tuple(_of_model(lock, request.function)):
        return reasons  # for another model, other differences do not matter
    ranges = [*lock.plan, *(lock.baseline.ranges if lock.baseline and for_check else ())]
    used = _select(request.devices, (run.engine for run in lock.plan))
    options = _options(request, used) | ({"clustering": lock.options.get("clustering", "")} if for_check else {})
    return (
        *_of_engines(lock, request.engines, (run.engine for run in ranges)),
        *_of_facts(lock.machine, _machine(request.context, used)),
        *_of_facts(lock.options, options),
    )


def _of_model(lock: PlacementFile, function: Function) -> Iterator[str]:
    mine = _facts_of_model(function)
    if lock.model.get("fingerprint") == mine["fingerprint"]:
        return
    inputs = tuple(_of_facts(_called(lock.inputs), _called(_inputs(function))))
    if inputs and lock.inputs.keys() == _inputs(function).keys() and lock.model.get("nodes") == mine["nodes"]:
        yield f"the sizes differ: {'; '.join(inputs)}"  # enough to change the fingerprint
        return
    yield from inputs
    yield from _of_facts(_counted(lock.model), _counted(mine))
    was, is_ = lock.model.get("fingerprint", "unknown"), mine["fingerprint"]
    yield f"the model {lock.model.get('name', '')!r} had fingerprint {was[:SHOWN]}, and {mine['name']!r} has {is_[:SHOWN]}"


def _called(inputs: Mapping[str, str]) -> dict[str, str]:
    return {f"input {name}": type_ for name, type_ in inputs.items()}


def _counted(model: Mapping[str, str]) -> dict[str, str]:
    return {"the number of nodes": model.get("nodes", "unknown")}


def _of_engines(lock: PlacementFile, engines: Sequence[GraphCompiler], used: Iterable[str]) -> Iterator[str]:
    by_spec = {engine.spec: engine for engine in unwrap(engines)}
    for spec in dict.fromkeys(used):
        if spec not in by_spec:
            yield f"engine {spec!r}, which has a part of the plan, is not in the list of engines or not ready"
        elif (was := lock.engines.get(spec, "unknown")) != (now := by_spec[spec].version()):
            yield f"engine {spec!r} was {was} and is {now}"


def _of_facts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**was, **now}:
        if name not in now:
            yield f"{name} was {was[name]} and is not there"
        elif name not in was:
            yield f"{name} is {now[name]} and was not there"
        elif was[name] != now[name]:
            yield f"{name} was {was[name]} and is {now[name]}"


# ---------------------------------------------------------------------- facts


def _facts_of_model(function: Function) -> dict[str, str]:
    return {"name": function.name, "fingerprint": function.fingerprint, "nodes": str(len(function.nodes))}


def _inputs(function: Function) -> dict[str, str]:
    return {value.name[:LONGEST]: str(value.type) for value in function.inputs}


def _select(devices: Mapping[str, str], specs: Iterable[str]) -> dict[str, str]:
    """Select the devices of the engines that a plan uses; other devices may be unavailable."""
    return {spec: devices[spec] for spec in dict.fromkeys(specs) if spec in devices}


def _machine(context: CompileContext, devices: Mapping[str, str]) -> dict[str, str]:
    """Describe the machine and each requested device with its model; an unavailable device is left out."""
    sets, _, processor = dict(make_context_key(context))["machine"].partition("; ")
    system, machine, *extensions = sets.split(" ")
    return {"system": f"{system} {machine}", "processor": processor, "extensions": " ".join(extensions)} | _hardware(
        {context.device, *devices.values()} - {"cpu"}, context
    )


def _hardware(names: Iterable[str], context: CompileContext) -> dict[str, str]:
    found = {}
    for name in sorted(names):
        with suppress(DeviceError):
            accelerator = on_device(name, context).accelerator
            found[normalize_device(name)] = accelerator.hardware if accelerator is not None else ""
    return found


def _options(request: PlacementRequest, devices: Mapping[str, str]) -> dict[str, str]:
    context = request.context
    own = {"precision": context.options.precision, "device": context.device, "threads": str(context.threads)}
    elsewhere = {f"{DEVICE_OF}{spec}": name for spec, name in sorted(devices.items())}
    return {**own, **elsewhere, "clustering": str(request.clustering)}


MOST_TEXT = 2000
"""Maximum characters of a note or a reason."""


def make_decision_key(request: PlacementRequest) -> Signature | None:
    """Make the key of a decision: the model, the engines with versions and code, options, machine and devices.

    Return None if the code of an engine is in no file, since a change would go unnoticed.
    """
    engines, context, devices = unwrap(request.engines), request.context, sorted(request.devices.items())
    codes = [_code(engine) for engine in engines]
    if CODE_UNKNOWN in codes:
        return None
    named = ", ".join(f"{engine.spec} {_version(engine)} {code}" for engine, code in zip(engines, codes, strict=True))
    subject = (("decision", f"of xrt {__version__}"), ("function", request.function.fingerprint), ("engines", named))
    options = (("implicit", str(request.implicit)), ("clustering", str(request.clustering)))
    elsewhere = {spec: dict(make_context_key(on_device(name, context)))["device"] for spec, name in devices}
    places = (("devices", str(elsewhere)),) * bool(devices) + (("graph", "recorded"),) * request.cuda_graph
    return Signature((*subject, *options, *make_context_key(context), *places))


def _code(engine: GraphCompiler) -> str:
    """Hash an engine's code, without importing the code of an unused engine."""
    return hash_sources(
        registry.find_entry_module(engine.name) if isinstance(engine, LazyEngine) else engine.implementation.__module__
    )


def _version(engine: GraphCompiler) -> str:
    """The version of an engine, without importing the library of an unused engine."""
    return engine.status.version if isinstance(engine, LazyEngine) else engine.version()


def make_decision(tuned: TuningResult, request: PlacementRequest) -> PlacementFile:
    """Convert a tuning result to a document. Nodes are identified by position, so names do not matter.

    It contains only the engines of the chosen plan, which may be fewer than the request has.
    """
    engines = [engine for engine in tuned.asked or request.engines if engine.spec in tuned.plan.engines]
    search = SearchRecord(
        tuned.budget,
        tuned.spent,
        tuned.race.rounds,
        tuned.is_provisional,
        tuple(note[:MOST_TEXT] for note in tuned.notes),
        {spec: reason[:MOST_TEXT] for spec, reason in tuned.unmeasured.items()},
        _list_declined(request, engines),
        tuned.is_explicit,
        tuned.is_checked,
    )
    candidates = list_candidate_records(tuned.race, request.function)[:MOST_CANDIDATES]
    specs = {engine.spec for engine in engines}
    versions = {engine.spec: _version(engine) for engine in unwrap(request.engines) if engine.spec in specs}
    return PlacementFile(writer=__version__, engines=versions, candidates=candidates, search=search)


def _list_declined(request: PlacementRequest, engines: list[GraphCompiler]) -> tuple[DeclinedNodes, ...]:
    """Record each engine's reasons with the positions of the declined nodes, so that the engine need not be queried again."""
    homes, function = request.device_map, request.function
    capability = SupportMatrix.of(function, engines, [homes.of(engine.spec) for engine in engines])
    found: dict[tuple[str, str], list[int]] = {}
    for number, engine in enumerate(engines):
        for position in range(len(function.nodes)):
            if (reason := capability.reason(position, number)) is not None:
                found.setdefault((engine.spec, reason[:MOST_TEXT]), []).append(position)
    return tuple(DeclinedNodes(*subject, tuple(positions)) for subject, positions in found.items())


def read_decision(document: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Read the decision in a document; its ``how`` is ``remembered``.

    Raises PlacementFileError if there is no decision, or if it does not fit the request.
    """
    search, known = document.search, {engine.spec for engine in request.engines}
    if search is None:
        raise PlacementFileError("it has no section 'search', so it is no decision")
    names = [node.name for node in request.function.nodes]
    answers: dict[str, dict[str, str]] = {spec: {} for spec in document.engines if spec in known}
    for row in search.declined:
        if row.engine not in answers or max(row.nodes, default=0) >= len(names):
            raise PlacementFileError("search.declined: an engine or a node is not of the request", position="search.declined")
        answers[row.engine].update((names[position], row.reason) for position in row.nodes)
    if not answers:
        raise PlacementFileError("engines: none of them is of the request", position="engines")
    asked = tuple(RecordedSupportEngine(one, answers[one.spec]) for one in request.engines if one.spec in answers)
    implicit = request.implicit if request.implicit in answers else None
    given = replace(request, engines=asked, implicit=implicit)
    candidates = tuple(_read_candidate(record, given, search) for record in document.candidates)
    baseline = next((number for number, record in enumerate(document.candidates) if record.is_baseline), None)
    race = CandidateComparison(candidates, search.rounds, baseline)
    if race.winner is None:
        raise PlacementFileError("candidates: none has won, so it holds no decision", position="candidates")
    return TuningResult(
        race.winner.plan,
        race=race,
        how="remembered",
        budget=search.budget,
        spent=search.spent,
        notes=search.notes,
        unmeasured=FrozenDict(search.unmeasured),
        is_provisional=search.is_provisional,
        is_explicit=search.is_explicit,
        is_checked=search.is_checked,
        asked=asked,
    )


def _read_candidate(record: CandidateRecord, request: PlacementRequest, search: SearchRecord) -> CandidateResult:
    plan = with_reasons(plan_from_ranges(record.ranges, request), search.unmeasured)
    figures = {name: getattr(record, name) for name in FIGURES}
    return CandidateResult(plan, record.verdict, note=record.note, regions=record.regions, **figures)
