"""Placement with reduced precision: after the exact search, find the fastest plan whose error is within the budget."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.engines.contract.proxy import load_engine
from xrt.errors import CalibrationError, CompileRefused, XRTError
from xrt.formats.placement_file import ExactNodeRecord, PrecisionRecord, RegionPrecision, SearchRecord
from xrt.html.views import format_count
from xrt.placement.profiler import find_first_random_node
from xrt.placement.race import Entrant, StoppingRule, run_interleaved, select_winner
from xrt.placement.report import format_error
from xrt.placement.result import Progress, TuningResult
from xrt.precision.budget import PrecisionOptions
from xrt.precision.search import Attempt, CandidateSearch, Workbench
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.partition import Plan
    from xrt.placement.autotune import ProgressCallback
    from xrt.placement.result import Origin, PlacementRequest


@dataclass(frozen=True)
class ReducedPrecisionSearch:
    options: PrecisionOptions

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...] | None:
        """Name and value of each option that the cache key of a decision depends on; None if it cannot be stored."""
        return self.options.ingredients

    def reduce_precision(
        self, request: PlacementRequest, exact: TuningResult, cache: CompileCache, seconds: float, progress: ProgressCallback
    ) -> TuningResult:
        """Search for ``seconds`` for the fastest plan within the error budget. Returns the exact plan if no other plan is faster.

        Only plans whose outputs on the validation examples were compared with those of the exact plan are timed. Raises
        CalibrationError if an example is unsuitable or the metric fails.
        """
        return _SearchRun(request, exact, self.options, cache, seconds, progress).run()


_log = logging.getLogger(__name__)

RACE_RULES = StoppingRule()
CANDIDATE_TIME_SHARE = 0.75
"""Share of the search time for trying plans and measuring their errors. The remaining time is for timing the best plans."""
MAX_CONTENDERS = 3
"""At most this many plans are timed against the exact plan: the fastest by their first calls."""
FIRST_CALL_RATIO = 1.25
"""A plan whose first call took more than this many times as long as that of the exact plan is not timed."""
MIN_RACE_SECONDS = 2.0
"""The plans are timed for at least this long, even if the candidates used up the search time."""


@dataclass(eq=False)
class _SearchRun:
    """One search for plans of reduced precision: try plans, time the best of them, and record the result."""

    request: PlacementRequest
    exact: TuningResult
    options: PrecisionOptions
    cache: CompileCache
    seconds: float
    progress: ProgressCallback

    def __post_init__(self) -> None:
        self.start_time = time.perf_counter()
        self.calibrate, self.validate = self.options.fit(self.request.function)
        # The exact plan is timed like the others, and wins unless another plan is clearly faster.
        self.exact_attempt = Attempt(self.exact.plan, "fp32")

    def run(self) -> TuningResult:
        """Search for plans within the error budget, then race the fastest ones with the exact plan."""
        if reason := self._why_not_reduced():
            return self._make_result(None, SearchRecord(), [reason])
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
        search = CandidateSearch(
            *(bench, self.options, self.request.function, self.exact_attempt, self.calibrate, self.validate),
            is_in_time=lambda: time.perf_counter() < deadline,
            report=self._report,
        )
        try:
            search.run()
            in_budget = [attempt for attempt in search.attempts if attempt.is_in_budget]
            by_speed = sorted(in_budget, key=lambda attempt: attempt.first_calls)
            limit = FIRST_CALL_RATIO * self.exact_attempt.first_calls
            contenders = [attempt for attempt in by_speed[:MAX_CONTENDERS] if attempt.first_calls <= limit]
            for attempt in in_budget:
                if attempt not in contenders:
                    attempt.note, attempt.seconds = "by its first calls, and not raced", attempt.first_calls
            return self._make_result(search, self._race([self.exact_attempt, *contenders]), search.notes)
        finally:
            for attempt in (self.exact_attempt, *search.attempts):
                attempt.close()

    def _why_not_reduced(self) -> str:
        if self.exact.how == "priority":
            return "precision is not reduced: the exact plan was not measured"
        if self.options.budget.limit <= 0:
            return "the error budget is 0: precision is not reduced"
        if reason := find_first_random_node(self.request.function):
            return f"precision is not reduced: {reason}"
        if self.request.device_map.device != "cpu" or any(device != "cpu" for device in self.request.devices.values()):
            return "precision is not reduced: it is searched for on the cpu alone"
        return ""

    def _report(self, text: str) -> None:
        self.progress(Progress(text, "", None, time.perf_counter() - self.start_time, self.seconds))

    def _race(self, attempts: Sequence[Attempt]) -> SearchRecord[Plan]:
        """Time the plans in interleaved rounds and set their outcomes. The exact plan wins unless another is clearly faster."""
        values = list(self.validate.items[0].values)
        entrants = []
        for attempt in attempts:
            assert attempt.program is not None  # attempts in the budget are compiled
            call = attempt.program.make_timed_call(values)
            entrants.append(Entrant(attempt.plan, call, is_simple=attempt.precision == "fp32", program=attempt.program))
        self._report(f"timing {format_count(len(entrants), 'plan')} in turn")
        # The candidates may have used up the time, but a plan can only be chosen after a minimum of rounds.
        needed = RACE_RULES.estimate_seconds(attempt.first_calls for attempt in attempts)
        minimum = min(max(MIN_RACE_SECONDS, needed), self.seconds)
        deadline = max(self.start_time + self.seconds, time.perf_counter() + minimum)
        rounds = run_interleaved(entrants, until=deadline, rules=RACE_RULES)
        for entrant in entrants:
            if entrant.has_run and not entrant.is_out:
                entrant.profile(values)
        race = select_winner(entrants, [], rounds, RACE_RULES.least, prefers_simple=False)
        by_plan = {id(attempt.plan): attempt for attempt in attempts}
        candidates = []
        for candidate in race.candidates:
            attempt = by_plan[id(candidate.plan)]
            if candidate.seconds is None:
                attempt.note = candidate.note
            else:
                attempt.outcome, attempt.seconds = candidate.verdict, candidate.seconds
            note = attempt.precision
            if attempt is not self.exact_attempt:
                note += f", error {format_error(attempt.error.error, self.options.budget.name)}"
            candidates.append(candidate.replace(note=f"{note}; {candidate.note}" if candidate.note else note))
        return race.replace(candidates=tuple(candidates))

    def _make_result(self, search: CandidateSearch | None, race: SearchRecord[Plan], notes: Sequence[str]) -> TuningResult:
        """Make the result from the winner of ``race``; without a winner, from the exact plan. ``search`` is None if none ran."""
        winner, rounds = race.winner, race.rounds
        how: Origin = "measured"
        attempts = [self.exact_attempt, *(search.attempts if search is not None else ())]
        chosen = self.exact_attempt
        if winner is not None:
            chosen = next(attempt for attempt in attempts if attempt.plan is winner.plan)
        if chosen is self.exact_attempt:
            chosen.outcome = "won"
            if chosen.seconds is None and self.exact.record.winner is not None:
                chosen.seconds = self.exact.record.winner.seconds
            # Even if the exact plan was loaded from the cache, its comparison with plans of reduced precision was measured now.
            how = "measured" if self.exact.how == "remembered" else self.exact.how
            if winner is None or len(race.candidates) == 1:
                race = self.exact.record
        summary = chosen.to_record()
        precision = PrecisionRecord(
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
            form=chosen.form,
            plans=tuple(attempt.to_record() for attempt in attempts),
            notes=tuple(dict.fromkeys(notes)),
        )
        if search is not None and chosen is not self.exact_attempt:
            precision = precision.replace(
                regions=tuple(_describe_regions(chosen, self.exact_attempt)), exact_nodes=tuple(_list_exact_nodes(search, chosen))
            )
        # A provisional decision is measured again when there is more time, which may find a faster plan.
        is_provisional = chosen is self.exact_attempt and self.exact.record.is_provisional
        if search is not None and (search.is_cut_off or winner is None or rounds < RACE_RULES.least):
            is_provisional = True
        result = replace(self.exact, plan=chosen.plan, how=how, reduced_engines=chosen.engines)
        return result.with_record(
            candidates=race.candidates,
            rounds=race.rounds,
            budget=self.request.budget,
            spent=self.exact.record.spent + time.perf_counter() - self.start_time,
            is_provisional=is_provisional,
            precision=precision,
        )


def sort_engines(request: PlacementRequest, exact: TuningResult) -> list[GraphCompiler]:
    """List the engines that plans of reduced precision may use: the fastest on the whole model first, the implicit engine last.

    Engines that were late, wrong or failed on the whole model are left out, unless the exact plan uses them or they are implicit.
    Isolated engines are left out because plans are compiled in this process.
    """
    candidates = {candidate.plan.used_engines: candidate for candidate in exact.record.candidates}
    used = exact.plan.used_engines
    ranked: list[tuple[bool, float, GraphCompiler]] = []
    for engine in request.engines:
        candidate = candidates.get((engine.spec,))
        is_implicit = engine.spec == request.implicit
        is_bad = candidate is not None and candidate.verdict in ("late", "wrong", "failed")
        if isinstance(engine, IsolatedEngine) or (is_bad and engine.spec not in used and not is_implicit):
            continue
        seconds = math.inf if candidate is None or candidate.seconds is None else candidate.seconds
        ranked.append((is_implicit, seconds, engine))
    ranked.sort(key=lambda entry: entry[:2])
    return [load_engine(engine) for _, _, engine in ranked]


def _list_exact_nodes(search: CandidateSearch, chosen: Attempt) -> Sequence[ExactNodeRecord]:
    if chosen.form is None:
        return ()
    errors, records = search.get_node_errors(chosen.form), []
    for index in chosen.form.exact_nodes:
        node = search.prepared.nodes[index]
        reason = "asked for" if index in search.fixed else "its error"
        records.append(ExactNodeRecord(node.name[:400], node.op, errors.get(node.name), reason))
    return sorted(records, key=lambda record: -(record.error or 0.0))


def _describe_regions(chosen: Attempt, exact_attempt: Attempt) -> Iterator[RegionPrecision]:
    reduced_specs = {engine.spec for engine in chosen.engines}
    exact = {launch.nodes: launch.engine for launch in exact_attempt.plan.launches}
    for launch in chosen.plan.launches:
        # The exact plan may have the same region on an engine of the same spec: the region is then exact.
        is_reduced = launch.engine in reduced_specs and exact.get(launch.nodes) != launch.engine
        yield RegionPrecision(launch.name, launch.engine, chosen.precision if is_reduced else "fp32")
