"""Lower precision in placement by measurement: an exact search, then one for plans within the error budget; stored decisions."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from xrt.cache import Signature
from xrt.cache.cost_store import CostStore
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import load_engine
from xrt.errors import CalibrationError, CompileRefused, LockError, OptionError, PlacementFileError, XRTError
from xrt.formats.placement_file import KeptNodeRecord, PlacementFile, PrecisionRecord, RegionPrecision
from xrt.passes.quantize.form import make_planned_function
from xrt.placement.autotune import load_decision
from xrt.placement.profiler import find_first_random_node
from xrt.placement.race import PreparedPlan, RankedPlan, StoppingRule, TimedCandidate, run_interleaved, select_winner
from xrt.placement.records import make_decision, make_decision_key, read_decision
from xrt.placement.report import format_error
from xrt.placement.result import MOST_SEARCHES, CandidateComparison, CandidateResult, Progress, TuningResult, format_count
from xrt.precision.budget import PrecisionTerms
from xrt.precision.execution import Attempt, Workbench
from xrt.precision.integer_search import list_contenders
from xrt.precision.search import PrecisionSearch
from xrt.runtime import on_device
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import SelectionOutcome
    from xrt.measure.timing import Clock
    from xrt.placement.autotune import ProgressCallback
    from xrt.placement.result import PlacementRequest
    from xrt.precision.budget import Examples

__all__ = ["LoweringWithinBudget", "create_lowered_engines", "lower_within_budget", "without_ratio"]

MOST_FORMS = 16
"""Quantized forms that are kept of searches on the same examples, those with the largest errors."""


@dataclass(frozen=True)
class LoweringWithinBudget:
    """The search for plans of lower precision, with its terms."""

    terms: PrecisionTerms

    def find_stored(self, request: PlacementRequest, store: CostStore | None) -> TuningResult | None:
        """Return what an earlier search for the same terms, data and machine has decided; None where there was none.

        Nothing is calibrated or measured for it.
        """
        key = self._make_key(request) if store is not None else None
        if store is None or key is None or (document := store.decision(key)) is None or document.precision is None:
            return None
        search = document.search
        if search is None or (search.budget < request.budget and not search.is_explicit):
            return None
        try:
            known = read_lowered_decision(document, request)
        except (PlacementFileError, LockError, CalibrationError, XRTError) as error:
            store.trouble(f"a decision of lower precision cannot be used: {error}")
            return None
        known = self._add_exact(known, request, store)
        is_final = known.is_explicit or not known.is_provisional or known.searches >= MOST_SEARCHES
        return known if is_final else None

    def _add_exact(self, known: TuningResult, request: PlacementRequest, store: CostStore) -> TuningResult:
        """Return the decision with the contenders of the exact search, if that is stored too."""
        exact = load_decision(replace(request, budget=0.0), store)
        if exact is None or known.race.winner is None:
            return known
        if known.plan == exact.plan:
            return replace(known, race=exact.race)
        others = tuple(without_ratio(one) for one in exact.race.contenders)
        first = next((at for at, one in enumerate(others) if one.plan == exact.plan), None)
        contenders = (known.race.winner, *others)
        return replace(known, race=replace(known.race, contenders=contenders, baseline=None if first is None else first + 1))

    def lower(
        self, request: PlacementRequest, exact: TuningResult, cache: CompileCache, seconds: float, progress: ProgressCallback
    ) -> TuningResult:
        """Return the fastest plan within the budget; see `lower_within_budget`."""
        known = self._find_forms(request, CostStore.for_cache(cache))
        return lower_within_budget(request, exact, self.terms, cache, seconds=seconds, progress=progress, known=known)

    def _find_forms(self, request: PlacementRequest, store: CostStore | None) -> PrecisionRecord | None:
        """Return what searches for any budget have found with these examples."""
        key = self._make_key(request, with_limit=False) if store is not None else None
        document = store.decision(key) if store is not None and key is not None else None
        return document.precision if document is not None else None

    def _keep_forms(self, record: PrecisionRecord, request: PlacementRequest, store: CostStore) -> None:
        key, before = self._make_key(request, with_limit=False), self._find_forms(request, store)
        known = {(one.precision, one.engine, one.kept): one for one in (*(before.forms if before else ()), *record.forms)}
        table = record.table or (before.table if before is not None else None)
        if key is not None and known:
            forms = tuple(sorted(known.values(), key=lambda one: -one.bound)[:MOST_FORMS])
            store.store_decision(key, PlacementFile(precision=record.replace(forms=forms, table=table, plans=(), notes=())))

    def keep(self, tuned: TuningResult, request: PlacementRequest, store: CostStore | None) -> None:
        """Store a decision for later processes, with ranges, errors and the hash of the data."""
        key = self._make_key(request) if store is not None and tuned.how == "measured" else None
        won = tuned.race.winner
        if store is None or key is None or won is None:
            return
        if tuned.precision is not None:
            self._keep_forms(tuned.precision, request, store)
        before = store.decision(key)
        if tuned.is_provisional and before is not None and before.search is not None:
            tuned = replace(tuned, searches=before.search.searches + 1)
        winner = replace(tuned, race=replace(tuned.race, contenders=(won,), baseline=None))
        function = make_planned_function(request.function, tuned.precision)
        given = replace(request, function=function, engines=(*tuned.lowered, *request.engines))
        document = make_decision(replace(winner, asked=given.engines), given)
        store.store_decision(key, document.replace(precision=tuned.precision))

    def _make_key(self, request: PlacementRequest, *, with_limit: bool = True) -> Signature | None:
        request = replace(request, context=on_device(request.context.device, request.context))
        key, own = make_decision_key(request), self.terms.ingredients
        if key is None or own is None:
            return None
        return Signature((*key.ingredients, *(one for one in own if with_limit or one[0] != "limit")))


def create_lowered_engines(specs: tuple[str, ...], request: PlacementRequest) -> tuple[GraphCompiler, ...]:
    """Return the engines of a plan that the request does not have; raises OptionError for one that no engine offers.

    Each must be what an engine of the request offers for a lower precision: a file does not choose what code is run.
    """
    known = {engine.spec for engine in request.engines}
    found = []
    for spec in dict.fromkeys(specs):
        if spec in known:
            continue
        engine = registry.create(spec)
        if not any(engine == one for base in request.engines if base.name == engine.name for one in _list_offers(base)):
            raise OptionError(f"engine {spec!r} of a plan of lower precision is not offered by any engine of the list")
        found.append(engine)
    return tuple(found)


def _list_offers(engine: GraphCompiler) -> list[GraphCompiler | None]:
    """Return the engine's forms in each lower precision, and of the integer one in the others."""
    integers = engine.lower_precision("int8")
    return [integers, *(one.lower_precision(name) for one in (engine, integers) if one is not None for name in ("bf16", "fp16"))]


def read_lowered_decision(document: PlacementFile, request: PlacementRequest) -> TuningResult:
    """Return the decision in a document; raises PlacementFileError or CalibrationError for one that does not fit the request."""
    specs = tuple(run.engine for record in document.candidates for run in record.ranges)
    lowered = create_lowered_engines(specs, request)
    function = make_planned_function(request.function, document.precision)
    given = replace(request, function=function, engines=(*lowered, *request.engines))
    return replace(read_decision(document, given), precision=document.precision, lowered=lowered)


_log = logging.getLogger(__name__)

RULES = StoppingRule()
SHARE = 0.75
"""Share of the time left that candidates may take to be found and judged; the rest is for the race."""
LEAST = 2.0
"""Seconds that the race may take in any case."""


@dataclass(eq=False)
class _Lowering:
    """One search for plans of lower precision."""

    request: PlacementRequest
    exact: TuningResult
    terms: PrecisionTerms
    cache: CompileCache
    seconds: float
    progress: ProgressCallback
    known: PrecisionRecord | None = None
    clock: Clock = time.perf_counter
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def run(self) -> TuningResult:
        bench = Workbench(self.request, self.cache, sort_engines(self.request, self.exact))
        first = Attempt(self.exact.plan, "fp32")
        calibrate, validate = self.terms.fit(self.request.function)
        if len(validate) < 2:
            raise CalibrationError(
                f"an error budget is kept by an interval over examples, and validate= has {len(validate)} of this size; give two "
                "examples or more"
            )
        if reason := self._why_not_lowered():
            return self._keep_exact(first, calibrate, validate, [reason])
        until = self.began + SHARE * self.seconds
        first.program = bench.compile(self.exact.plan)
        search = PrecisionSearch(
            *(bench, self.terms, self.request.function, first, calibrate, validate),
            is_in_time=lambda: self.clock() < until,
            tell=self._tell,
            known=self.known,
        )
        try:
            try:
                search.run()
            except KeyboardInterrupt:
                search.notes.append("it was interrupted before all precisions were tried")
            if nearest := search.describe_nearest():
                search.notes.append(nearest)
            racing = _list_racing(search.attempts, self.terms.budget.limit, first.first_calls)
            race = self._race([first, *racing], validate)
            return self._make_result(race, search, first, calibrate, validate)
        finally:
            for one in (first, *search.attempts):
                one.close()

    def _why_not_lowered(self) -> str:
        """Return why nothing can be lowered; empty where it may."""
        if self.terms.budget.limit <= 0:
            return "the error budget is 0: nothing is lowered"
        if reason := find_first_random_node(self.request.function):
            return f"nothing is lowered: {reason}"
        if self.request.device_map.device != "cpu" or any(one != "cpu" for one in self.request.devices.values()):
            return "nothing is lowered: precision is searched for on the cpu alone"
        return ""

    def _tell(self, text: str) -> None:
        self.progress(Progress(text, "", None, self.clock() - self.began, self.seconds))

    # ------------------------------------------------------------------ the race

    def _race(self, attempts: Sequence[Attempt], validate: Examples) -> CandidateComparison:
        """Let the plans within the budget take turns with the exact one, which stays unless another is faster for certain."""
        values = list(validate.items[0].values)
        runners = []
        for one in attempts:
            assert one.program is not None  # each is in the budget
            entrant = TimedCandidate(one.program.make_timed_call(values), is_simple=one.precision == "fp32")
            runners.append(RankedPlan(PreparedPlan(one.plan, one.program, entrant.call), entrant))
        self._tell(f"timing {format_count(len(runners), 'plan')} in turn")
        needed = RULES.seconds(one.first_calls for one in attempts)
        until = max(self.began + self.seconds, self.clock() + min(max(LEAST, needed), self.seconds))
        rounds = run_interleaved([one.entrant for one in runners], until=until, rules=RULES, clock=self.clock)
        for runner in runners:
            if runner.has_run and not runner.entrant.is_out:
                runner.regions = runner.ready.profile(values)
        race = select_winner(runners, [], rounds, RULES.least, prefers_simple=False)
        by_plan = {id(one.plan): one for one in attempts}
        contenders = []
        for found in race.contenders:
            attempt = by_plan[id(found.plan)]
            if found.seconds is None:
                attempt.note = found.note
            else:
                attempt.outcome, attempt.seconds = found.verdict, found.seconds
            error = f", error {format_error(attempt.found.error, self.terms.budget.name)}" if attempt.precision != "fp32" else ""
            contenders.append(replace(found, note="; ".join(filter(None, (f"{attempt.precision}{error}", found.note)))))
        return replace(race, contenders=tuple(contenders))

    # ------------------------------------------------------------------ what comes of it

    def _make_result(
        self, race: CandidateComparison, search: PrecisionSearch, first: Attempt, calibrate: Examples, validate: Examples
    ) -> TuningResult:
        winner = race.winner
        chosen = next((one for one in search.attempts if winner is not None and one.plan is winner.plan), None)
        if chosen is None or winner is None:
            exact = self._keep_exact(first, calibrate, validate, search.notes, search.attempts)
            if winner is not None and len(race.contenders) > 1:
                exact = replace(exact, race=self._join(race))
            return replace(exact, is_provisional=exact.is_provisional or search.is_cut_off or winner is None)
        kept = tuple(_list_kept(search, chosen))
        record = self._make_record(chosen, [first, *search.attempts], calibrate, validate, search.notes).replace(
            kept=kept, regions=tuple(_describe_regions(chosen, winner, first))
        )
        return replace(
            self.exact,
            plan=chosen.plan,
            race=self._join(race),
            how="measured",
            budget=self.request.budget,
            spent=self.exact.spent + self.clock() - self.began,
            precision=record,
            lowered=chosen.engines,
            is_provisional=race.rounds < RULES.least or search.is_cut_off,
        )

    def _join(self, race: CandidateComparison) -> CandidateComparison:
        """Return the race with the other contenders of the exact search behind."""
        lost = (without_ratio(one) for one in self.exact.race.contenders if one.plan != self.exact.plan)
        return replace(race, contenders=(*race.contenders, *lost))

    def _keep_exact(
        self,
        first: Attempt,
        calibrate: Examples,
        validate: Examples,
        notes: Sequence[str],
        attempts: Sequence[Attempt] = (),
    ) -> TuningResult:
        first.outcome = "won"
        if first.seconds is None and self.exact.race.winner is not None:
            first.seconds = self.exact.race.winner.seconds
        record = self._make_record(first, [first, *attempts], calibrate, validate, notes)
        spent = self.exact.spent + self.clock() - self.began
        how = "measured" if self.exact.how == "remembered" else self.exact.how
        return replace(self.exact, how=how, precision=record, budget=self.request.budget, spent=spent)

    def _make_record(
        self, chosen: Attempt, attempts: Sequence[Attempt], calibrate: Examples, validate: Examples, notes: Sequence[str]
    ) -> PrecisionRecord:
        own = chosen.to_record()
        return PrecisionRecord(
            measure=self.terms.budget.name,
            limit=self.terms.budget.limit,
            precision=chosen.precision,
            data=self.terms.digest,
            validation=self.terms.validate.digest,
            items=len(validate),
            calibrated=len(calibrate),
            error=own.error or 0.0,
            high=own.high,
            worst=own.worst,
            is_quantized=chosen.form is not None,
            plans=tuple(one.to_record() for one in attempts),
            notes=tuple(dict.fromkeys(note[:1000] for note in notes)),
            forms=tuple(one for one in map(Attempt.to_form, attempts) if one is not None),
            form="static" if chosen.form is None else chosen.form.kind,
            is_balanced=chosen.form is not None and bool(chosen.form.balance),
            reduce_range=chosen.form is not None and chosen.form.reduce_range,
            table=next((one.form.table for one in attempts if one.form is not None and one.form.table is not None), None),
            balance=next((one.form.balance for one in attempts if one.form is not None and one.form.balance), ()),
        )


def lower_within_budget(
    request: PlacementRequest,
    exact: TuningResult,
    terms: PrecisionTerms,
    cache: CompileCache,
    *,
    seconds: float,
    progress: ProgressCallback,
    known: PrecisionRecord | None = None,
) -> TuningResult:
    """Return the fastest plan within the error budget that is found in so many seconds; the exact one where none is faster.

    ``known`` has what searches for other budgets have found with the same examples.

    Each plan's outputs are compared with those of the exact plan on the examples of validation before it is timed. Raises
    CalibrationError for examples that do not serve, and for a metric that fails.
    """
    if exact.how == "priority":
        reason = "nothing is lowered: the exact plan was not measured"
        calibrate, validate = terms.fit(request.function)
        return _Lowering(request, exact, terms, cache, seconds, progress)._keep_exact(
            Attempt(exact.plan, "fp32"), calibrate, validate, [reason]
        )
    try:
        return _Lowering(request, exact, terms, cache, seconds, progress, known).run()
    except CompileRefused as error:
        _log.info("the exact plan does not compile", exc_info=True)
        raise XRTError(f"the exact plan cannot be compared with others: {error}") from error


def sort_engines(request: PlacementRequest, exact: TuningResult) -> list[GraphCompiler]:
    """Return the engines that plans of lower precision may use: the fastest on the whole first, the implicit one last.

    Those that failed on the whole, or were wrong, are left out, as are those behind a worker: a plan runs in this process.
    """
    singles = {one.plan.launches[0].engine: one for one in exact.race.contenders if one.is_single and one.plan.launches}
    used = {launch.engine for launch in exact.plan.launches}

    def is_sound(engine: GraphCompiler) -> bool:
        known = singles.get(engine.spec)
        return engine.spec in used or engine.spec == request.implicit or known is None or known.verdict not in ("wrong", "failed")

    def rank(engine: GraphCompiler) -> tuple[bool, float]:
        known = singles.get(engine.spec)
        seconds = known.seconds if known is not None and known.seconds is not None else float("inf")
        return engine.spec == request.implicit, seconds

    sound = [engine for engine in request.engines if is_sound(engine) and not isinstance(engine, IsolatedEngine)]
    return [load_engine(engine) for engine in sorted(sound, key=rank)]


def _list_racing(attempts: Sequence[Attempt], limit: float, exact: float) -> list[Attempt]:
    """Return the plans that race; the others within the budget are given the time of their first calls."""
    within = [one for one in attempts if one.is_in_budget]
    racing = list_contenders(within, limit, exact)
    for one in within:
        if one not in racing:
            one.note, one.seconds = "by its first calls, and not raced", one.first_calls
    return racing


def without_ratio(one: CandidateResult) -> CandidateResult:
    """Return a contender of the exact search, whose ratio is to another baseline."""
    verdict: SelectionOutcome = "lost" if one.verdict in ("won", "tie") else one.verdict
    return replace(one, verdict=verdict, ratio=None, ratio_low=None, ratio_high=None)


def _list_kept(search: PrecisionSearch, chosen: Attempt) -> Sequence[KeptNodeRecord]:
    """Return the nodes that could be quantized and stay in float32, the worst first."""
    if chosen.form is None:
        return ()
    integers, found = search.integers, []
    errors = integers.find_errors(chosen.form)
    for at in chosen.form.kept:
        node = integers.prepared.nodes[at]
        error = errors.get(node.name)
        why = "asked for" if at in integers.fixed else "its error"
        found.append(KeptNodeRecord(at, node.name[:400], node.op, error, why))
    return sorted(found, key=lambda one: -(one.error or 0.0))


def _describe_regions(chosen: Attempt, winner: CandidateResult, first: Attempt) -> Sequence[RegionPrecision]:
    """Return the regions of the plan: a region that alone is lowered has all of the error, and all that was gained."""
    lowered = {engine.spec for engine in chosen.engines}
    exact = {launch.nodes: launch.engine for launch in first.plan.launches}
    launches = chosen.plan.launches
    lower = [launch.engine in lowered and exact.get(launch.nodes) != launch.engine for launch in launches]
    gained = first.seconds - winner.seconds if sum(lower) == 1 and first.seconds and winner.seconds else None
    return [
        RegionPrecision(
            launch.name,
            launch.engine,
            chosen.precision if is_lower else "fp32",
            (1.0 / max(1, sum(lower))) if is_lower else 0.0,
            gained if is_lower else None,
        )
        for launch, is_lower in zip(launches, lower, strict=True)
    ]
