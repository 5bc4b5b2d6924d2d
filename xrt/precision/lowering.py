"""Placement with lower precision: search for plans within the error budget after the exact search, and store decisions."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.engines.contract.proxy import load_engine
from xrt.errors import CalibrationError, CompileRefused, XRTError
from xrt.formats.placement_file import ExactNodeRecord, PrecisionRecord, RegionPrecision
from xrt.html.views import format_count
from xrt.placement.profiler import find_first_random_node
from xrt.placement.race import Entrant, StoppingRule, run_interleaved, select_winner
from xrt.placement.report import format_error
from xrt.placement.result import CandidateComparison, Progress, TuningResult
from xrt.precision.budget import PrecisionOptions
from xrt.precision.search import Attempt, PrecisionSearch, Workbench, list_contenders
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.measure.timing import Clock
    from xrt.placement.autotune import ProgressCallback
    from xrt.placement.result import PlacementRequest


@dataclass(frozen=True)
class LoweringWithinBudget:
    """Searches for plans of lower precision within an error budget."""

    options: PrecisionOptions

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...] | None:
        """Name and value of each option that the cache key of a decision depends on; None if it cannot be stored."""
        return self.options.ingredients

    def lower(
        self, request: PlacementRequest, exact: TuningResult, cache: CompileCache, seconds: float, progress: ProgressCallback
    ) -> TuningResult:
        """Search for ``seconds`` for the fastest plan within the error budget. The result is the exact plan if none is faster.

        Before a plan is timed, its outputs on the validation examples are compared with those of the exact plan. Raises
        CalibrationError for unsuitable examples, and if a metric fails.
        """
        return _LoweringRun(request, exact, self.options, cache, seconds, progress).run()


_log = logging.getLogger(__name__)

RACE_RULES = StoppingRule()
CANDIDATE_TIME_SHARE = 0.75
"""Share of the search time for finding and checking candidates; the rest is for timing them."""
MIN_RACE_SECONDS = 2.0
"""The plans are timed for at least this long, even if the candidates used up the search time."""


@dataclass(eq=False)
class _LoweringRun:
    """The state of one search for plans of lower precision."""

    request: PlacementRequest
    exact: TuningResult
    options: PrecisionOptions
    cache: CompileCache
    seconds: float
    progress: ProgressCallback
    clock: Clock = time.perf_counter

    def __post_init__(self) -> None:
        self.start_time = self.clock()
        self.calibrate, self.validate = self.options.fit(self.request.function)
        # The exact plan is timed too, and wins unless another plan is clearly faster.
        self.exact_attempt = Attempt(self.exact.plan, "fp32")

    def run(self) -> TuningResult:
        if reason := self._why_not_lowered():
            return self._make_result(None, CandidateComparison(), [reason])
        if len(self.validate) < 2:
            raise CalibrationError(
                f"an error budget needs a confidence interval, and validate= has {len(self.validate)} examples of this size; "
                "pass two examples or more"
            )
        bench = Workbench(self.request, self.cache, sort_engines(self.request, self.exact))
        deadline = self.start_time + CANDIDATE_TIME_SHARE * self.seconds
        try:
            self.exact_attempt.program = bench.compile(self.exact.plan)
        except CompileRefused as error:
            _log.info("the exact plan does not compile", exc_info=True)
            raise XRTError(f"the exact plan cannot be compared with others: {error}") from error
        search = PrecisionSearch(
            *(bench, self.options, self.request.function, self.exact_attempt, self.calibrate, self.validate),
            is_in_time=lambda: self.clock() < deadline,
            report=self._report,
        )
        try:
            try:
                search.run()
            except KeyboardInterrupt:
                search.notes.append("it was interrupted before all precisions were tried")
            if nearest := search.describe_nearest():
                search.notes.append(nearest)
            in_budget = [attempt for attempt in search.attempts if attempt.is_in_budget]
            racing = list_contenders(in_budget, self.exact_attempt.first_calls)
            for attempt in in_budget:
                if attempt not in racing:
                    attempt.note, attempt.seconds = "by its first calls, and not raced", attempt.first_calls
            return self._make_result(search, self._race([self.exact_attempt, *racing]), search.notes)
        finally:
            for attempt in (self.exact_attempt, *search.attempts):
                attempt.close()

    def _why_not_lowered(self) -> str:
        """Explain why no plan of lower precision is searched for, or return an empty string."""
        if self.exact.how == "priority":
            return "nothing is lowered: the exact plan was not measured"
        if self.options.budget.limit <= 0:
            return "the error budget is 0: nothing is lowered"
        if reason := find_first_random_node(self.request.function):
            return f"nothing is lowered: {reason}"
        if self.request.device_map.device != "cpu" or any(device != "cpu" for device in self.request.devices.values()):
            return "nothing is lowered: precision is searched for on the cpu alone"
        return ""

    def _report(self, text: str) -> None:
        self.progress(Progress(text, "", None, self.clock() - self.start_time, self.seconds))

    # ------------------------------------------------------------------ the race

    def _race(self, attempts: Sequence[Attempt]) -> CandidateComparison:
        """Time the plans in interleaved rounds and set their outcomes. The exact plan wins unless another is clearly faster."""
        values = list(self.validate.items[0].values)
        entrants = []
        for attempt in attempts:
            assert attempt.program is not None  # true for each attempt in the budget
            call = attempt.program.make_timed_call(values)
            entrants.append(Entrant(attempt.plan, call, is_simple=attempt.precision == "fp32", program=attempt.program))
        self._report(f"timing {format_count(len(entrants), 'plan')} in turn")
        # The candidates may have used up the time, but below the minimum of rounds no plan could be chosen.
        needed = RACE_RULES.estimate_seconds(attempt.first_calls for attempt in attempts)
        deadline = max(self.start_time + self.seconds, self.clock() + min(max(MIN_RACE_SECONDS, needed), self.seconds))
        rounds = run_interleaved(entrants, until=deadline, rules=RACE_RULES, clock=self.clock)
        for entrant in entrants:
            if entrant.has_run and not entrant.is_out:
                entrant.profile(values)
        race = select_winner(entrants, [], rounds, RACE_RULES.least, prefers_simple=False)
        by_plan = {id(attempt.plan): attempt for attempt in attempts}
        contenders = []
        for contender in race.contenders:
            attempt = by_plan[id(contender.plan)]
            if contender.seconds is None:
                attempt.note = contender.note
            else:
                attempt.outcome, attempt.seconds = contender.verdict, contender.seconds
            error = (
                f", error {format_error(attempt.error.error, self.options.budget.name)}" if attempt.precision != "fp32" else ""
            )
            contenders.append(replace(contender, note="; ".join(filter(None, (f"{attempt.precision}{error}", contender.note)))))
        return replace(race, contenders=tuple(contenders))

    # ------------------------------------------------------------------ the result

    def _make_result(self, search: PrecisionSearch | None, race: CandidateComparison, notes: Sequence[str]) -> TuningResult:
        """Make the result from the winner of ``race``, or from the exact plan if it has none. ``search`` is None if none ran."""
        winner, attempts = race.winner, [self.exact_attempt, *(search.attempts if search is not None else ())]
        chosen = next((attempt for attempt in attempts if winner is not None and attempt.plan is winner.plan), self.exact_attempt)
        result = replace(
            self.exact,
            budget=self.request.budget,
            spent=self.exact.spent + self.clock() - self.start_time,
            race=race,
            how="measured",
        )
        if chosen is self.exact_attempt:
            chosen.outcome = "won"
            if chosen.seconds is None and self.exact.race.winner is not None:
                chosen.seconds = self.exact.race.winner.seconds
            # Even if the exact plan was loaded from the cache, its comparison with plans of lower precision was measured now.
            how = "measured" if self.exact.how == "remembered" else self.exact.how
            result = replace(result, how=how, race=race if winner is not None and len(race.contenders) > 1 else self.exact.race)
        summary, form = chosen.to_record(), chosen.form
        record = PrecisionRecord(
            measure=self.options.budget.name,
            limit=self.options.budget.limit,
            precision=chosen.precision,
            data=self.options.digest,
            validation=self.options.validate.digest,
            items=len(self.validate),
            calibrated=len(self.calibrate),
            error=summary.error or 0.0,
            high=summary.high,
            worst=summary.worst,
            plans=tuple(attempt.to_record() for attempt in attempts),
            notes=tuple(dict.fromkeys(note[:1000] for note in notes)),
        )
        if search is not None and chosen is not self.exact_attempt:
            record = record.replace(
                regions=tuple(_describe_regions(chosen, self.exact_attempt)), exact_nodes=tuple(_list_exact_nodes(search, chosen))
            )
        if form is not None:
            form_fields = {"form": form.kind, "reduce_range": form.reduce_range, "table": form.table, "balance": form.balance}
            record = record.replace(is_quantized=True, **form_fields)
        # With more time the search might find a faster plan: a provisional decision is measured again when there is more.
        is_unsure = search is not None and (search.is_cut_off or winner is None or race.rounds < RACE_RULES.least)
        is_provisional = is_unsure or (chosen is self.exact_attempt and self.exact.is_provisional)
        return replace(result, plan=chosen.plan, precision=record, lowered=chosen.engines, is_provisional=is_provisional)


def sort_engines(request: PlacementRequest, exact: TuningResult) -> list[GraphCompiler]:
    """List the engines that plans of lower precision may use: the fastest on the whole model first, the implicit one last.

    Leave out engines that were too late, failed or computed wrong results on the whole model. Leave out isolated engines too,
    because plans are compiled in this process.
    """
    single_engine_results = {x.plan.launches[0].engine: x for x in exact.race.contenders if x.is_single and x.plan.launches}
    used = {launch.engine for launch in exact.plan.launches}

    def is_sound(engine: GraphCompiler) -> bool:
        entry = single_engine_results.get(engine.spec)
        is_usable = entry is None or entry.verdict not in ("late", "wrong", "failed")
        return engine.spec in used or engine.spec == request.implicit or is_usable

    def rank(engine: GraphCompiler) -> tuple[bool, float]:
        entry = single_engine_results.get(engine.spec)
        seconds = entry.seconds if entry is not None and entry.seconds is not None else float("inf")
        return engine.spec == request.implicit, seconds

    sound = [engine for engine in request.engines if is_sound(engine) and not isinstance(engine, IsolatedEngine)]
    return [load_engine(engine) for engine in sorted(sound, key=rank)]


def _list_exact_nodes(search: PrecisionSearch, chosen: Attempt) -> Sequence[ExactNodeRecord]:
    """List the quantizable nodes that stay in float32, largest error first."""
    if chosen.form is None:
        return ()
    errors, nodes = search.find_errors(chosen.form), search.prepared.nodes
    reasons = {i: "asked for" if i in search.fixed else "its error" for i in chosen.form.exact_nodes}
    rows = [ExactNodeRecord(i, nodes[i].name[:400], nodes[i].op, errors.get(nodes[i].name), why) for i, why in reasons.items()]
    return sorted(rows, key=lambda row: -(row.error or 0.0))


def _describe_regions(chosen: Attempt, exact_attempt: Attempt) -> Iterator[RegionPrecision]:
    """Yield the precision of each region of the chosen plan, "fp32" where the exact plan has the same region and engine."""
    lowered = {engine.spec for engine in chosen.engines}
    exact = {launch.nodes: launch.engine for launch in exact_attempt.plan.launches}
    for launch in chosen.plan.launches:
        # A region that the exact plan has too, on the same engine, is not lowered.
        is_lowered = launch.engine in lowered and exact.get(launch.nodes) != launch.engine
        yield RegionPrecision(launch.name, launch.engine, chosen.precision if is_lowered else "fp32")
