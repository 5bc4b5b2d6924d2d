"""Placement by measurement for a model with symbolic dims: a search for the first call, its decision for all sizes near it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrt.formats.placement_file import PlacementFile, SizeRecord
from xrt.graph import FrozenDict
from xrt.placement.autotune import load_decision
from xrt.placement.decision_store import make_decision_key
from xrt.placement.size_ranges import SizeRanges, Sizes, resize_values, sort_by_distance
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.cache import Signature
    from xrt.cache.disk.cost_store import CostStore
    from xrt.graph import Function
    from xrt.placement.auto import AutoPlacement
    from xrt.placement.result import TuningResult
    from xrt.placement.session import ProgressCallback

__all__ = ["RangedPlacement"]

MOST_RANGES = 256
"""Sizes that the store remembers of a model."""


@dataclass(eq=False, slots=True)
class RangedPlacement:
    """The placements of one model by ranges of sizes; what was decided is kept for later processes."""

    ranges: SizeRanges
    get_declared: Callable[[], Function]
    """Gives the model with its symbolic dims."""
    specialize: Callable[[Sizes], Function]
    """Gives what is planned for such sizes."""
    background: bool = False
    """Whether ranges other than that of the first call are measured later, by `measure`."""
    _recalled: set[tuple[int, ...]] = field(default_factory=set)

    def place(
        self,
        automatic: AutoPlacement,
        function: Function,
        sizes: Sizes,
        values: Sequence[Any],
        *,
        began: float | None = None,
        progress: ProgressCallback | bool | None = None,
    ) -> TuningResult:
        """Return the placement of the Function for these sizes: that of their range, else of the nearest one that is known.

        Searches only if none is known: at the asked sizes, or at these.
        """
        self._recall(automatic, function, sizes)
        if self.ranges.find(sizes) is None:
            self._search(automatic, function, sizes, values, began, progress)
        found = self.ranges.find(sizes)
        assert found is not None  # the search has added it
        return automatic.adapt(found, sizes, function)

    def measure(
        self, automatic: AutoPlacement, sizes: Sizes, values: Sequence[Any], progress: ProgressCallback | bool | None
    ) -> None:
        """Search at what represents these sizes, within the whole budget, and keep the decision for their range."""
        self._measure(automatic, self.ranges.list_representatives(sizes)[0], values, automatic.options.budget, None, progress)

    def record(self, automatic: AutoPlacement, sizes: Sizes, tuned: TuningResult) -> None:
        """Keep a decision for the range of these sizes."""
        self.ranges.add(sizes, tuned)
        store = automatic.get_store()
        key = self._make_key(automatic)
        if tuned.how != "measured" or store is None or key is None:
            return
        known = [one for one in self._list_stored(store, key) if one.sizes != dict(sizes)]
        records = (*known, SizeRecord(sizes=dict(sizes)))[-MOST_RANGES:]
        store.store_decision(key, PlacementFile(ranges=records))

    # ------------------------------------------------------------------ searches

    def _search(
        self,
        automatic: AutoPlacement,
        function: Function,
        sizes: Sizes,
        values: Sequence[Any],
        began: float | None,
        progress: ProgressCallback | bool | None,
    ) -> None:
        """Measure at all asked sizes within the budget, or at the first of them; without asked sizes, at the given ones."""
        asked = self.ranges.list_representatives(sizes)
        due = asked[:1] if self.background else asked
        for number, one in enumerate(due):
            whole = function if one == sizes else None
            self._measure(
                automatic, one, values, automatic.options.budget / len(due), began if number == 0 else None, progress, whole
            )

    def _measure(
        self,
        automatic: AutoPlacement,
        sizes: Sizes,
        values: Sequence[Any],
        budget: float,
        began: float | None,
        progress: ProgressCallback | bool | None,
        function: Function | None = None,
    ) -> None:
        given = resize_values(self.get_declared().inputs, to_host(list(values)), sizes)
        function = function if function is not None else self.specialize(sizes)
        tuned = automatic.tune(function, given, budget, progress=progress, retune=False, began=began)
        self.record(automatic, sizes, tuned)

    # ------------------------------------------------------------------ what is kept

    def _make_key(self, automatic: AutoPlacement) -> Signature | None:
        return make_decision_key(automatic.make_request(self.get_declared()))

    def _list_stored(self, store: CostStore, key: Signature) -> tuple[SizeRecord, ...]:
        document = store.decision(key)
        return document.ranges if document is not None else ()

    def _recall(self, automatic: AutoPlacement, function: Function, sizes: Sizes) -> None:
        """Load the stored decision of a range; of the nearest one where no range is known at all. Looks once for each range."""
        mine, store = self.ranges.get_key(sizes), automatic.get_store()
        if store is None or mine in self._recalled or self.ranges.is_measured(sizes):
            return
        self._recalled.add(mine)
        if (key := self._make_key(automatic)) is None:
            return
        stored = [FrozenDict(one.sizes) for one in self._list_stored(store, key)]
        fitting = [one for one in stored if one.keys() == sizes.keys()]
        own = [one for one in fitting if self.ranges.get_key({name: one[name] for name in sizes}) == mine]
        for one in own[-1:] or ([] if next(iter(self.ranges), None) else sort_by_distance(fitting, sizes)[:1]):
            at = {name: one[name] for name in sizes}
            whole = function if at == sizes else self.specialize(at)
            known = load_decision(automatic.make_request(whole), store)
            if known is not None:
                self.ranges.add(FrozenDict(at), known)
