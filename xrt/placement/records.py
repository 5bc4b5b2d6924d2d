"""Convert a `TuningResult` to and from a placement file (a lockfile or a stored decision), which stores plans as node ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from xrt import __version__
from xrt.cache import Signature
from xrt.cache.signature import CODE_UNKNOWN, hash_sources, make_context_key
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine, RecordedSupportEngine
from xrt.errors import DeviceError, LockError, OptionError, PlacementFileError, PlanError, XRTError
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
from xrt.placement.result import (
    FIGURES,
    CandidateComparison,
    CandidateResult,
    PlacementRequest,
    TuningResult,
    describe_candidate,
    unwrap,
    with_reasons,
)
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.cache.cost_store import CostStore
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.partition import Plan

Ingredients: TypeAlias = tuple[tuple[str, str], ...]
"""Parts of the key of a decision."""
MOST_LOCKED = 16
"""Maximum number of candidates in a lock."""
DEVICE_OF = "device of "
"""Prefix, before an engine's spec, of the option for its device, if that is not the module's."""
LONGEST = 400
"""Maximum characters of a name in a lock."""
SHOWN = 12
"""Characters of a fingerprint shown in messages."""


def create_lock(
    tuned: TuningResult,
    request: PlacementRequest,
    *,
    baseline: Baseline | None = None,
    source: Mapping[str, str] = FrozenDict(),
    values: Mapping[str, str] = FrozenDict(),
    now: datetime | None = None,
) -> PlacementFile:
    """Create the lockfile of the result of a search.

    The plan is of the request's Function, or of its quantized form. ``source`` records where the model came from, for a later
    check, and ``values`` the files of inputs; other inputs are random.
    """
    function, plan = request.function, tuned.plan
    machine, options = _describe_setting(request, {launch.engine for launch in plan.launches})
    # A check runs the baseline, too, and compares the versions of both.
    used = {*plan.engines, *(run.engine for run in (baseline.ranges if baseline else ()))}
    return PlacementFile(
        writer=__version__,
        date=(now or datetime.now(UTC)).strftime("%Y-%m-%d"),
        model={**_describe_model(function), **source},
        inputs=_list_inputs(function),
        engines={engine.spec: engine.version() for engine in unwrap(request.engines) if engine.spec in used},
        machine=machine,
        options=options,
        plan=list_node_ranges(plan, make_planned_function(function, tuned.precision)),
        candidates=tuple(record.rounded() for record in list_candidate_records(tuned.race)[:MOST_LOCKED]),
        baseline=None if baseline is None else baseline.rounded(),
        values=values,
        precision=tuned.precision,
    )


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
    ranges, first_node = [], 0
    for group, members in groupby(names, groups.__getitem__):
        run = list(members)
        # Names are for the reader of a diff: positions place the nodes.
        first, last = run[0][:LONGEST], run[-1][:LONGEST]
        ranges.append(NodeRange(group, homes[run[0]], first_node, len(run), first, last if len(run) > 1 else ""))
        first_node += len(run)
    return tuple(ranges)


def list_candidate_records(race: CandidateComparison, function: Function | None = None) -> tuple[CandidateRecord, ...]:
    """Record the result of each candidate; with a Function, its regions too."""
    return tuple(
        CandidateRecord(
            contender.title,
            is_baseline=number == race.baseline,
            regions=contender.regions if function else (),
            ranges=list_node_ranges(contender.plan, function) if function else (),
            **{**{name: getattr(contender, name) for name in FIGURES}, "note": contender.note[:1000]},
        )
        for number, contender in enumerate(race.contenders)
    )


# ---------------------------------------------------------------------- from a file to a plan


def plan_from_ranges(ranges: Sequence[NodeRange], request: PlacementRequest) -> Plan:
    """Rebuild a plan from node ranges; raises LockError if it does not fit the request's Function and engines."""
    homes: dict[str, str] = {}
    groups: dict[str, int] = {}
    function, count = request.function, len(request.function.nodes)
    for run in ranges:
        if (last := run.at + run.nodes) > count:
            raise LockError(f"nodes up to number {last} are placed, and the model has {count} of them")
        for node in function.nodes[run.at : last]:
            if node.name in homes:
                raise LockError(f"node {node.name!r} is placed twice")
            homes[node.name], groups[node.name] = run.engine, run.region
    # A file may be edited by hand: each node must be placed exactly once.
    if len(homes) < count:
        missing = next(node.name for node in function.nodes if node.name not in homes)
        raise LockError(f"{len(homes)} of {count} nodes are placed, and not {missing!r}")
    implicit, device = request.implicit, request.device_map
    try:
        return plan_from_assignment(function, request.engines, homes, groups=groups, implicit=implicit, device=device)
    except PlanError as error:
        raise LockError(f"it is no plan any more: {error}") from error


# ---------------------------------------------------------------------- mismatches


def list_mismatches(lock: PlacementFile, request: PlacementRequest, *, for_check: bool = False) -> tuple[str, ...]:
    """List the differences between a lock and a request, each as a clause; empty if the lock applies.

    Only the engines of the plan are compared. With ``for_check``, those of the baseline too, and clustering options are ignored.
    """
    if reasons := tuple(_compare_model(lock, request.function)):
        return reasons  # for another model, other differences do not matter
    ranges = [*lock.plan, *(lock.baseline.ranges if lock.baseline and for_check else ())]
    machine, options = _describe_setting(request, {run.engine for run in lock.plan})
    options |= {"clustering": lock.options.get("clustering", "")} if for_check else {}
    return (
        *_compare_engines(lock, request.engines, (run.engine for run in ranges)),
        *_compare_facts(lock.machine, machine),
        *_compare_facts(lock.options, options),
    )


def _compare_model(lock: PlacementFile, function: Function) -> Iterator[str]:
    current = _describe_model(function)
    if lock.model.get("fingerprint") == current["fingerprint"]:
        return
    were, are = ({f"input {name}": type_ for name, type_ in x.items()} for x in (lock.inputs, _list_inputs(function)))
    inputs = tuple(_compare_facts(were, are))
    if inputs and were.keys() == are.keys() and lock.model.get("nodes") == current["nodes"]:
        yield f"the sizes differ: {'; '.join(inputs)}"  # enough to change the fingerprint
        return
    yield from inputs
    yield from _compare_facts(*({"the number of nodes": facts.get("nodes", "unknown")} for facts in (lock.model, current)))
    was, is_ = lock.model.get("fingerprint", "unknown"), current["fingerprint"]
    yield f"the model {lock.model.get('name', '')!r} had fingerprint {was[:SHOWN]}, and {current['name']!r} has {is_[:SHOWN]}"


def _compare_engines(lock: PlacementFile, engines: Sequence[GraphCompiler], used: Iterable[str]) -> Iterator[str]:
    by_spec = {engine.spec: engine for engine in unwrap(engines)}
    for spec in dict.fromkeys(used):
        if spec not in by_spec:
            yield f"engine {spec!r}, which has a part of the plan, is not in the list of engines or not ready"
        elif (was := lock.engines.get(spec, "unknown")) != (now := by_spec[spec].version()):
            yield f"engine {spec!r} was {was} and is {now}"


def _compare_facts(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**was, **now}:
        if name not in now:
            yield f"{name} was {was[name]} and is not there"
        elif name not in was:
            yield f"{name} is {now[name]} and was not there"
        elif was[name] != now[name]:
            yield f"{name} was {was[name]} and is {now[name]}"


def _describe_model(function: Function) -> dict[str, str]:
    return {"name": function.name, "fingerprint": function.fingerprint, "nodes": str(len(function.nodes))}


def _list_inputs(function: Function) -> dict[str, str]:
    return {value.name[:LONGEST]: str(value.type) for value in function.inputs}


def _describe_setting(request: PlacementRequest, specs: Set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Describe the machine and the options of a plan on these engines; an unavailable device is left out."""
    context = request.context
    # A lock must apply on machines that lack the devices of other engines.
    devices = {spec: name for spec, name in sorted(request.devices.items()) if spec in specs}
    sets, _, processor = dict(make_context_key(context))["machine"].partition("; ")
    system, machine, *extensions = sets.split(" ")
    facts = {"system": f"{system} {machine}", "processor": processor, "extensions": " ".join(extensions)}
    for name in sorted({context.device, *devices.values()} - {"cpu"}):
        with suppress(DeviceError):
            accelerator = on_device(name, context).accelerator
            facts[normalize_device(name)] = accelerator.hardware if accelerator is not None else ""
    options = {"precision": context.options.precision, "device": context.device, "threads": str(context.threads)}
    elsewhere = {f"{DEVICE_OF}{spec}": name for spec, name in devices.items()}
    return facts, {**options, **elsewhere, "clustering": str(request.clustering)}


MOST_TEXT = 2000
"""Maximum characters of a note or a reason."""


def make_decision_key(request: PlacementRequest, ingredients: Ingredients | None = ()) -> Signature | None:
    """Make the key of a decision: the model, the engines with versions and code, options, machine, devices and ``ingredients``.

    Return None if the code of an engine is in no file, since a change would go unnoticed, and if ``ingredients`` is None.
    """
    engines, devices = unwrap(request.engines), sorted(request.devices.items())
    # The code of an unused engine is hashed without importing it.
    modules = (registry.find_entry_module(e.name) if isinstance(e, LazyEngine) else e.implementation.__module__ for e in engines)
    codes = [hash_sources(module) for module in modules]
    if CODE_UNKNOWN in codes or ingredients is None:
        return None
    context = on_device(request.context.device, request.context)
    # An engine in development keeps its version while its code changes, so that the code counts too.
    described = ", ".join(f"{engine.spec} {_get_version(engine)} {code}" for engine, code in zip(engines, codes, strict=True))
    subject = (("decision", f"of xrt {__version__}"), ("function", request.function.fingerprint), ("engines", described))
    options = (("implicit", str(request.implicit)), ("clustering", str(request.clustering)))
    elsewhere = {spec: dict(make_context_key(on_device(name, context)))["device"] for spec, name in devices}
    places = (("devices", str(elsewhere)),) * bool(devices) + (("graph", "recorded"),) * request.cuda_graph
    return Signature((*subject, *options, *make_context_key(context), *places, *ingredients))


def _get_version(engine: GraphCompiler) -> str:
    """The version of an engine, without importing the library of an unused engine."""
    return engine.status.version if isinstance(engine, LazyEngine) else engine.version()


def load_decision(request: PlacementRequest, store: CostStore, ingredients: Ingredients | None = ()) -> TuningResult | None:
    """Load the decision of an earlier search with at least this budget, or an explicit one; None if there is none.

    Nothing is measured or calibrated. ``ingredients`` are those of the error budget, if there is one.
    """
    document = store.decision(make_decision_key(request, ingredients))
    if document is None:
        return None
    try:
        result = read_decision(document, request)
    except XRTError as error:
        store.trouble(f"a decision cannot be used: {error}")
        return None
    return result if result.is_explicit or result.budget >= request.budget else None


def store_decision(
    tuned: TuningResult, request: PlacementRequest, store: CostStore, ingredients: Ingredients | None = ()
) -> None:
    """Store a decision for later processes, if a plan won and the search was not interrupted."""
    if tuned.how == "measured" and tuned.race.winner is not None:
        store.store_decision(make_decision_key(request, ingredients), make_decision(tuned, request))


def mark_checked(request: PlacementRequest, store: CostStore, ingredients: Ingredients | None = ()) -> None:
    """Record in a stored decision that the results of its plan agreed with the reference."""
    key = make_decision_key(request, ingredients)
    document = store.decision(key)
    if document is not None and document.search is not None:
        store.store_decision(key, document.replace(search=document.search.replace(is_checked=True)))


SEARCH_FACTS = ("budget", "spent", "is_provisional", "is_explicit", "is_checked")
"""The fields of a result that a decision has unchanged."""


def make_decision(tuned: TuningResult, request: PlacementRequest) -> PlacementFile:
    """Convert the result of a search to a document. Nodes are identified by position, so names do not matter.

    It has only the engines of the chosen plan, which may be fewer than the request has. Of plans of lower precision it has only
    the chosen one, since others place other forms of the model.
    """
    request, race, engines = plan_form(request, tuned.precision, tuned.lowered), tuned.race, tuned.queried or request.engines
    if tuned.precision is not None:
        # The ranges of other candidates are positions in other forms of the model.
        engines, race = request.engines, replace(race, contenders=race.contenders[:1], baseline=None)
    used = [engine for engine in engines if engine.spec in tuned.plan.engines]
    specs = {engine.spec for engine in used}
    return PlacementFile(
        writer=__version__,
        engines={engine.spec: _get_version(engine) for engine in unwrap(request.engines) if engine.spec in specs},
        candidates=list_candidate_records(race, request.function)[:MOST_CANDIDATES],
        precision=tuned.precision,
        search=SearchRecord(
            rounds=race.rounds,
            notes=tuple(note[:MOST_TEXT] for note in tuned.notes),
            unmeasured={spec: reason[:MOST_TEXT] for spec, reason in tuned.unmeasured.items()},
            declined=_list_declined(request, used),
            **{name: getattr(tuned, name) for name in SEARCH_FACTS},
        ),
    )


def plan_form(request: PlacementRequest, precision: PrecisionRecord | None, lowered: Sequence[GraphCompiler]) -> PlacementRequest:
    """The request to place the form of the model that has this precision, on engines of lower precision too."""
    function = make_planned_function(request.function, precision)
    return replace(request, function=function, engines=(*lowered, *request.engines))


def _list_declined(request: PlacementRequest, engines: list[GraphCompiler]) -> tuple[DeclinedNodes, ...]:
    """Record each engine's reasons with the positions of the declined nodes, so that the engine need not be queried again."""
    function = request.function
    capability = SupportMatrix.of(function, engines, request.device_map)
    declined: dict[tuple[str, str], list[int]] = {}
    for number, engine in enumerate(engines):
        for position in range(len(function.nodes)):
            if (reason := capability.reason(position, number)) is not None:
                declined.setdefault((engine.spec, reason[:MOST_TEXT]), []).append(position)
    return tuple(DeclinedNodes(*subject, tuple(positions)) for subject, positions in declined.items())


def read_decision(document: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Read the result of a search from a decision.

    Raises PlacementFileError if it has none, or one that does not fit the request; CalibrationError or OptionError if the
    precision does not fit.
    """
    search, precision, records = document.search, document.precision, document.candidates
    if search is None:
        raise PlacementFileError("it has no section 'search', so it is no decision")
    lowered: tuple[GraphCompiler, ...] = ()
    if precision is not None:
        lowered = create_lowered_engines([run.engine for record in records for run in record.ranges], request)
    request = plan_form(request, precision, lowered)
    request = _with_engines(request, _restore_engines(document, search, request))
    unmeasured = FrozenDict(search.unmeasured)
    candidates = tuple(
        _make_candidate(record, with_reasons(plan_from_ranges(record.ranges, request), unmeasured)) for record in records
    )
    baseline = next((number for number, record in enumerate(records) if record.is_baseline), None)
    race = CandidateComparison(candidates, search.rounds, baseline)
    if race.winner is None:
        raise PlacementFileError("candidates: none has won, so it holds no decision", position="candidates")
    return TuningResult(
        race.winner.plan,
        race=race,
        how="remembered",
        notes=search.notes,
        unmeasured=unmeasured,
        queried=request.engines,
        precision=precision,
        lowered=lowered,
        **{name: getattr(search, name) for name in SEARCH_FACTS},
    )


def read_locked_result(lock: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Read the result of a lock: its plan with the figures of the winner; the other candidates become notes.

    Raises LockError if the plan does not fit the request, CalibrationError or OptionError if the precision does not.
    """
    request, used = plan_form(request, lock.precision, ()), {run.engine for run in lock.plan}
    request = _with_engines(request, [x for x in request.engines if x.spec != request.implicit or x.spec in used])
    plan = plan_from_ranges(lock.plan, request)
    winner = next((record for record in lock.candidates if record.verdict == "won"), CandidateRecord("", "won"))
    race = CandidateComparison((_make_candidate(winner, plan),), baseline=0 if winner.is_baseline else None)
    others = (record for record in lock.candidates if record.verdict != "won")
    notes = tuple(describe_candidate(record, record.plan, is_baseline=record.is_baseline) for record in others)
    return TuningResult(plan, race=race, how="locked", notes=notes, precision=lock.precision)


def _make_candidate(record: CandidateRecord, plan: Plan) -> CandidateResult:
    return CandidateResult(plan, regions=record.regions, **{name: getattr(record, name) for name in FIGURES})


def _with_engines(request: PlacementRequest, engines: Sequence[GraphCompiler]) -> PlacementRequest:
    """The request with other engines; its implicit engine only if it is among them."""
    implicit = request.implicit if any(engine.spec == request.implicit for engine in engines) else None
    return replace(request, engines=tuple(engines), implicit=implicit)


def _restore_engines(document: PlacementFile, search: SearchRecord, request: PlacementRequest) -> tuple[GraphCompiler, ...]:
    """The engines of a decision, with their recorded reasons for declining nodes, so that no library is imported."""
    names, specs = [node.name for node in request.function.nodes], {engine.spec for engine in request.engines}
    declined: dict[str, dict[str, str]] = {spec: {} for spec in document.engines if spec in specs}
    for row in search.declined:
        if row.engine not in declined or max(row.nodes, default=0) >= len(names):
            raise PlacementFileError("search.declined: an engine or a node is not of the request", position="search.declined")
        declined[row.engine].update((names[position], row.reason) for position in row.nodes)
    if not declined:
        raise PlacementFileError("engines: none of them is of the request", position="engines")
    return tuple(RecordedSupportEngine(engine, declined[engine.spec]) for engine in request.engines if engine.spec in declined)


def create_lowered_engines(specs: Sequence[str], request: PlacementRequest) -> tuple[GraphCompiler, ...]:
    """Create the engines of a plan that the request lacks; raises OptionError for one that no engine offers.

    Each must be a lower precision that an engine of the request offers, so that a file cannot choose the code to run.
    """
    present = {engine.spec for engine in request.engines}
    missing = [spec for spec in dict.fromkeys(specs) if spec not in present]
    if not missing:
        return ()
    offers = {offer.spec: offer for engine in request.engines for offer in _list_offers(engine) if offer is not None}
    for spec in missing:
        if spec not in offers:
            raise OptionError(f"engine {spec!r} of a plan of lower precision is not offered by any engine of the list")
    return tuple(offers[spec] for spec in missing)


def _list_offers(engine: GraphCompiler) -> list[GraphCompiler | None]:
    """The engine's variants in int8, bf16 and fp16, and those of the int8 variant in bf16 and fp16."""
    integers = engine.lower_precision("int8")
    return [integers, *(e.lower_precision(name) for e in (engine, integers) if e is not None for name in ("bf16", "fp16"))]
