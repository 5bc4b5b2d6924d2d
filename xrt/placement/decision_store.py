"""A decision as text, for the next process: who ran against whom, and where each node went. What is read is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from xrt import __version__
from xrt.cache import Signature
from xrt.cache.signature import CODE_UNKNOWN, hash_sources, make_context_key
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine, RecordedSupportEngine
from xrt.errors import CacheError, XRTError
from xrt.graph import FrozenDict, Function
from xrt.partition.explicit import map_nodes_to_engines, map_nodes_to_regions, plan_from_assignment
from xrt.partition.support_matrix import SupportMatrix
from xrt.placement.request import PlacementRequest, unwrap
from xrt.placement.result import CandidateComparison, CandidateResult, SelectionOutcome, TuningResult, with_reasons
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.partition import Plan
    from xrt.partition.device_map import DeviceMap

__all__ = ["dumps", "loads", "make_decision_key", "make_questions_key"]

FORMAT = 2
MOST_PLANS = 64
MOST_TEXT = 2000
MOST_SECONDS = 1e9

_NUMBERS = ("seconds", "low", "high", "ratio", "ratio_low", "ratio_high")


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


# ------------------------------------------------------------------ written


def dumps(tuned: TuningResult, request: PlacementRequest) -> str:
    """Return the decision as JSON. Nodes are identified by their positions, so names do not matter.

    It contains only the engines that took part, which may be fewer than the request has.
    """
    function = request.function
    engines = [engine for engine in tuned.asked or request.engines if engine.spec in tuned.plan.engines]
    specs = [engine.spec for engine in engines]
    plans = [_row(contender, function, specs) for contender in tuned.race.contenders]
    facts = {"format": FORMAT, "engines": specs, "budget": tuned.budget, "rounds": tuned.race.rounds}
    facts |= {"baseline": tuned.race.baseline, "measurements": tuned.measurements, "spent": tuned.spent}
    facts |= {"provisional": tuned.is_provisional, "searches": tuned.searches}
    facts["unmeasured"] = {spec: reason[:MOST_TEXT] for spec, reason in tuned.unmeasured.items()}
    declined = _declined(function, engines, request.device_map)
    notes = [note[:MOST_TEXT] for note in tuned.notes]
    return json.dumps({**facts, "notes": notes, "declined": declined, "contenders": plans}, indent=1)


def _declined(function: Function, engines: Sequence[GraphCompiler], homes: DeviceMap) -> list[dict[str, list[int]]]:
    """Return for each engine its reasons, each with the positions of its nodes, so that the engine need not be queried again."""
    capability = SupportMatrix.of(function, engines, [homes.of(engine.spec) for engine in engines])
    found: list[dict[str, list[int]]] = []
    for number in range(len(engines)):
        reasons: dict[str, list[int]] = {}
        for place in range(len(function.nodes)):
            if (reason := capability.reason(place, number)) is not None:
                reasons.setdefault(reason[:MOST_TEXT], []).append(place)
        found.append(reasons)
    return found


def _row(contender: CandidateResult, function: Function, specs: Sequence[str]) -> dict[str, Any]:
    homes, groups = map_nodes_to_engines(contender.plan), map_nodes_to_regions(contender.plan)
    names = [node.name for node in function.nodes]
    figures = {name: getattr(contender, name) for name in _NUMBERS}
    return {
        "verdict": contender.verdict,
        **figures,
        "note": contender.note[:MOST_TEXT],
        "regions": list(contender.regions),
        "homes": [specs.index(homes[name]) for name in names],
        "groups": [groups[name] for name in names],
    }


# ------------------------------------------------------------------ read


def loads(data: bytes, request: PlacementRequest) -> TuningResult:
    """Return the decision that the text holds, of how ``remembered``; raises CacheError for text that is damaged or hostile."""
    function, homes = request.function, request.device_map
    try:
        told = json.loads(data)
        if told["format"] != FORMAT:
            raise CacheError(f"it is of format {told['format']!r}; this version reads {FORMAT}")
        specs = [_text(spec) for spec in told["engines"]]
        by_spec = {engine.spec: engine for engine in request.engines}
        pairs = zip([by_spec[spec] for spec in specs], told["declined"], strict=True)
        answered = [_answered(*pair, function) for pair in pairs]
        implicit = request.implicit if request.implicit in specs else None
        unmeasured = {_text(spec): _text(reason) for spec, reason in told["unmeasured"].items()}
        rows = told["contenders"][:MOST_PLANS]
        given = tuple(_contender(row, function, answered, specs, homes, implicit) for row in rows)
        contenders = tuple(replace(one, plan=with_reasons(one.plan, unmeasured)) for one in given)
        race = CandidateComparison(contenders, _count(told["rounds"]), _place(told["baseline"], len(contenders)))
        if race.winner is None:
            raise CacheError("it holds no decision that can be used: nobody won")
        return TuningResult(
            race.winner.plan,
            race=race,
            how="remembered",
            budget=_seconds(told["budget"]),
            spent=_seconds(told["spent"]),
            notes=tuple(_text(note) for note in told["notes"]),
            unmeasured=FrozenDict(unmeasured),
            is_provisional=_truth(told["provisional"]),
            searches=_count(told["searches"]),
            asked=tuple(answered),
        )
    except (XRTError, KeyError, AttributeError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise CacheError(f"it holds no decision that can be used: {type(error).__name__}: {error}") from error


def _answered(engine: GraphCompiler, reasons: Mapping[str, Sequence[int]], function: Function) -> GraphCompiler:
    """Return the engine by the answers that the text has of it."""
    names = [node.name for node in function.nodes]
    return RecordedSupportEngine(
        engine, {names[_count(place)]: _text(reason) for reason, places in reasons.items() for place in places}
    )


def _contender(
    row: Mapping[str, Any],
    function: Function,
    engines: Sequence[GraphCompiler],
    specs: Sequence[str],
    where: DeviceMap,
    implicit: str | None,
) -> CandidateResult:
    homes, groups = row["homes"], row["groups"]
    if len(homes) != len(function.nodes) or len(groups) != len(function.nodes):
        raise CacheError(f"it places {len(homes)} nodes, and the model has {len(function.nodes)}")
    if row["verdict"] not in get_args(SelectionOutcome):
        raise CacheError(f"there is no verdict {row['verdict']!r}")
    names = [node.name for node in function.nodes]
    by_name = dict(zip(names, (specs[_count(home)] for home in homes), strict=True))
    grouped = dict(zip(names, map(_count, groups), strict=True))
    plan: Plan = plan_from_assignment(function, engines, by_name, groups=grouped, implicit=implicit, device=where)
    figures = {name: None if row[name] is None else _seconds(row[name]) for name in _NUMBERS}
    regions = tuple(map(_seconds, row["regions"]))
    return CandidateResult(plan, row["verdict"], note=_text(row["note"]), regions=regions, **figures)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise CacheError(f"expected a text; got {value!r:.80}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise CacheError(f"expected a truth value; got {value!r:.80}")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise CacheError(f"expected a count; got {value!r:.80}")
    return value


def _place(value: object, length: int) -> int | None:
    return None if value is None else range(length)[_count(value)]


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise CacheError(f"expected a number; got {value!r:.80}")
    return float(value)
