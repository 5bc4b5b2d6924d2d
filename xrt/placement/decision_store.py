"""A stored decision: the result of a search as a placement file, for the next process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from xrt import __version__
from xrt.cache import Signature
from xrt.cache.signature import CODE_UNKNOWN, hash_sources, make_context_key
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine, RecordedSupportEngine
from xrt.errors import PlacementFileError
from xrt.formats.placement_file import FORMAT, MOST_CANDIDATES, CandidateRecord, DeclinedNodes, PlacementFile, SearchRecord
from xrt.graph import FrozenDict
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement.lockfile import FIGURES, list_candidate_records, plan_from_ranges
from xrt.placement.result import CandidateComparison, CandidateResult, PlacementRequest, TuningResult, unwrap, with_reasons
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler

__all__ = ["make_decision", "make_decision_key", "make_questions_key", "read_decision"]

MOST_TEXT = 2000
"""The most characters that are kept of a note or a reason."""


def make_decision_key(request: PlacementRequest) -> Signature | None:
    """Return the key of a decision: the model, the engines with their versions and code, options, machine, devices.

    Returns None if an engine's code is in no file, since a change of the code would go unnoticed.
    """
    engines, context, devices = unwrap(request.engines), request.context, sorted(request.devices.items())
    codes = [_code(engine) for engine in engines]
    if CODE_UNKNOWN in codes:
        return None
    named = ", ".join(f"{engine.spec} {_version(engine)} {code}" for engine, code in zip(engines, codes, strict=True))
    own = (("decision", f"{FORMAT} of xrt {__version__}"), ("function", request.function.fingerprint), ("engines", named))
    terms = (("implicit", str(request.implicit)), ("clustering", str(request.clustering)))
    elsewhere = {spec: dict(make_context_key(on_device(name, context)))["device"] for spec, name in devices}
    places = (("devices", str(elsewhere)),) * bool(devices) + (("graph", "recorded"),) * request.cuda_graph
    return Signature((*own, *terms, *make_context_key(context), *places))


def make_questions_key(engine: GraphCompiler, context: CompileContext) -> Signature | None:
    """Return what an engine's answers about nodes rest on.

    Its version and code, and the machine. None as for `make_decision_key`.
    """
    code = _code(engine)
    if code == CODE_UNKNOWN:
        return None
    machine = [(name, value) for name, value in make_context_key(context) if name in ("device", "machine")]
    named = (("questions", f"1 of xrt {__version__}"), ("engine", f"{engine.spec} {_version(engine)}"), ("code", code))
    return Signature((*named, *machine))


def _code(engine: GraphCompiler) -> str:
    """Return a hash of an engine's code, without importing the code of an engine that is still unused."""
    return hash_sources(
        registry.find_entry_module(engine.name) if isinstance(engine, LazyEngine) else engine.implementation.__module__
    )


def _version(engine: GraphCompiler) -> str:
    """Return an engine's version, without importing the library of an engine that is still unused."""
    return engine.status.version if isinstance(engine, LazyEngine) else engine.version()


def make_decision(tuned: TuningResult, request: PlacementRequest) -> PlacementFile:
    """Return the decision as a document. Nodes are identified by their positions, so names do not matter.

    It contains only the engines that took part, which may be fewer than the request has.
    """
    engines = [engine for engine in tuned.asked or request.engines if engine.spec in tuned.plan.engines]
    search = SearchRecord(
        tuned.budget,
        tuned.spent,
        tuned.race.rounds,
        tuned.searches,
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
    """Return the reasons of each engine with the positions of their nodes, so that the engine need not be queried again."""
    homes, function = request.device_map, request.function
    capability = SupportMatrix.of(function, engines, [homes.of(engine.spec) for engine in engines])
    found: dict[tuple[str, str], list[int]] = {}
    for number, engine in enumerate(engines):
        for position in range(len(function.nodes)):
            if (reason := capability.reason(position, number)) is not None:
                found.setdefault((engine.spec, reason[:MOST_TEXT]), []).append(position)
    return tuple(DeclinedNodes(*subject, tuple(positions)) for subject, positions in found.items())


def read_decision(document: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Return the decision in a document, with ``how`` as ``remembered``.

    Raises PlacementFileError where it holds none, or one that does not fit the request.
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
        searches=search.searches,
        asked=asked,
    )


def _read_candidate(record: CandidateRecord, request: PlacementRequest, search: SearchRecord) -> CandidateResult:
    plan = with_reasons(plan_from_ranges(record.ranges, request), search.unmeasured)
    figures = {name: getattr(record, name) for name in FIGURES}
    return CandidateResult(plan, record.verdict, note=record.note, regions=record.regions, **figures)
