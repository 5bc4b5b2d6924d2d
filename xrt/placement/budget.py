"""What tuning may take: parts of its budget, and of the machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from xrt.placement.race import StoppingRule

__all__ = ["BOUNDS", "TuningBudget"]


@dataclass(frozen=True, slots=True)
class TuningBudget:
    """What parts of the budget, and of the machine, tuning may take."""

    survey: float = 0.55
    """Share of the time left that goes to measuring pieces, before plans race."""
    limit: float = 0.2
    """Share of the budget that one compile, or one measurement, may take."""
    first: float = 0.6
    """Share of the budget for which the search waits for a first engine that is ready to have the whole measured on it."""
    start: float = 0.3
    """Share of the budget for which it then waits for the others: while they are imported, nothing is measured well."""
    ask: float = 0.15
    """Share of the time left for which it waits, from time to time, for those that are not ready even then."""
    turn: float = 0.2
    """Share of the budget for which it waits for one engine before the next is begun: who all start at once keep each other."""
    small: float = 10.0
    """Seconds of a budget below which the plan by the list is called in this process first: workers take long to start."""
    quick: float = 0.6
    """Share of such a budget that this may take."""
    calm: float = 0.7
    """Share of a larger budget: if less is left once engines were measured on the whole, they race before mixtures are sought."""
    truth: float = 0.6
    """Share of the time left in which the reference must have computed what is right."""
    hurry: float = 0.5
    """Where nothing was measured in a worker by the time that so much of the budget is left, a plan runs in this process."""
    grace: float = 0.5
    """Seconds by which the budget may be overrun for the sake of one measurement."""
    slice: float = 0.025
    """Share of the budget that the samples of one region may take, and not more than `longest`."""
    longest: float = 0.6
    """Seconds of samples after which a region is known well enough to plan by, however busy the machine is."""
    calibration: float = 0.1
    """Share of the budget after which no further launch or boundary is measured that is not known yet."""
    far: float = 4.0
    """An engine that takes so many times what the quickest takes on the whole is not calibrated."""
    ready: float = 0.85
    """Share of the same time after which no further plan is made ready."""
    last: float = 0.1
    """Share of the budget with which no further survey is begun."""
    end: float = 0.02
    """Share of the budget that is kept for the end, when workers are let go and what was found is written down."""
    plans: int = 6
    """Mixtures that join the contest at a time, at most."""
    worse: float = 2.5
    """A plan of one engine that was measured to take so many times the best of these is not made ready: it has lost. So has a
    mixture whose regions, measured one by one, take so many times what those of the best plan take."""
    memory: int | None = None
    """Bytes of address space for each worker; None is no limit."""
    apart: bool = True
    """Whether pieces are measured in a worker process per engine. In this process a search may take a fraction of a second, but a
    hang is not cut off, and a crash is the process's own: only for engines that have proved themselves on what is searched."""
    rules: StoppingRule = field(default_factory=StoppingRule)
    """How plans race."""


BOUNDS = TuningBudget()
