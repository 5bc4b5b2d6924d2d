"""What placement by measurement asks for lower precision: earlier decisions, a search, and a place to keep its result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xrt.cache import Signature
from xrt.cache.cost_store import CostStore
from xrt.engines.contract import registry
from xrt.errors import CalibrationError, LockError, OptionError, PlacementFileError, XRTError
from xrt.formats.placement_file import PlacementFile
from xrt.placement.autotune import load_decision
from xrt.placement.decision_store import make_decision, make_decision_key, read_decision
from xrt.placement.lockfile import make_planned_function
from xrt.placement.result import MOST_SEARCHES
from xrt.precision.tuning import lower_within_budget, without_ratio
from xrt.runtime import on_device

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.placement.result import PlacementRequest, TuningResult
    from xrt.placement.session import ProgressCallback
    from xrt.precision.terms import PrecisionTerms

__all__ = ["LoweringWithinBudget", "create_lowered_engines"]

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
