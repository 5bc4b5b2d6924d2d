"""Tuning a module for throughput: the requests that it serves per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt.errors import OptionError, PlacementWarning, warn

if TYPE_CHECKING:
    from xrt.module.module import XRTModule
    from xrt.module.throughput import ModuleBench
    from xrt.placement import ProgressCallback
    from xrt.placement.throughput.result import ThroughputResult
    from xrt.placement.throughput.sweep import Tell
    from xrt.precision.lowering import LoweringWithinBudget

__all__ = ["OBJECTIVES", "TERMS", "Objective", "open_throughput_bench", "tune_throughput"]

Objective: TypeAlias = Literal["latency", "throughput"]
OBJECTIVES = ("latency", "throughput")
TERMS = ("p99", "batches", "instances", "batch_dim", "seed")
"""Keywords of `XRTModule.tune` for throughput alone."""
SEARCHING = 0.5
"""Share of the budget for searches of plans, one for each batch size that time allows."""
THROUGHPUT_BUDGET = 60.0
"""Seconds of a search for throughput where the caller names none."""


@contextmanager
def open_throughput_bench(
    module: XRTModule,
    args: Sequence[Any],
    named: Mapping[str, Any],
    *,
    budget: float,
    batches: Sequence[int],
    instances: Sequence[int] | int | None,
    batch_dim: str | None,
    seed: int,
    lower: LoweringWithinBudget | None = None,
) -> Iterator[tuple[ModuleBench, dict[str, Any]]]:
    """Yield what measures the module, and the terms of its search: splits, batch sizes and notes.

    ``lower`` finds plans within an error budget. Whether requests are independent is a question of the exact model.
    """
    from xrt.module.throughput import CHECKED, ModuleBench, RequestPool, open_exact_module
    from xrt.placement.throughput.result import list_splits, parse_batches

    values = module._check_inputs(args, named, pads=False)[: len(module._source.inputs)] if args or named else None
    splits = list_splits(module.threads, instances if not isinstance(instances, int) else (instances,))
    pool, sizes, notes = RequestPool(module, values, batch_dim, seed), parse_batches(batches), []
    if not pool.dim:
        sizes, notes = (1,), [f"requests are not joined: {pool.reason}"]
    elif sizes[-1] > 1:
        with open_exact_module(module, lower) as exact:
            reason = pool.check_independent(exact, min(CHECKED, sizes[-1]))
        sizes, notes = ((1,), [f"requests are not joined: {reason}"]) if reason else (sizes, notes)
    bench = ModuleBench(module, pool, splits, sizes, SEARCHING * budget, lower)
    try:
        yield bench, {"splits": splits, "batches": sizes, "notes": tuple(notes)}
    finally:
        bench.close()


def tune_throughput(
    module: XRTModule,
    args: Sequence[Any] = (),
    named: Mapping[str, Any] = MappingProxyType({}),
    *,
    p99: float | None = None,
    batches: Sequence[int] | None = None,
    instances: Sequence[int] | int | None = None,
    batch_dim: str | None = None,
    seed: int = 0,
    budget: float | None = None,
    progress: ProgressCallback | bool = False,
    tell: Tell | None = None,
    use: Callable[[XRTModule, Sequence[Any]], object] | None = None,
    lower: LoweringWithinBudget | None = None,
) -> ThroughputResult:
    """Return the result of a search for throughput, as `XRTModule.tune` describes; the module and its cache keep the choice.

    ``tell`` takes the state of the search as text. ``use`` is called with an instance of the chosen threads and the inputs of a
    full batch, before the instances are closed. ``lower`` finds plans within an error budget, in place of the module's own.
    Raises OptionError for a budget where the engines are not placed by measurement.
    """
    from xrt.placement.autotune import check_budget
    from xrt.placement.throughput.result import BATCHES, ThroughputRequest, parse_bound
    from xrt.placement.throughput.sweep import ThroughputSweep
    from xrt.progress import show_progress

    lower = lower or module._lowering
    if lower is not None and not module._engines.is_auto:
        raise OptionError("max_error= is kept by measurement; pass engine='auto', or a list with 'auto' in it")
    seconds = THROUGHPUT_BUDGET if budget is None else budget
    check_budget(seconds)
    bound = parse_bound(p99)
    terms: dict[str, Any] = {
        "batches": BATCHES if batches is None else batches,
        "instances": instances,
        "batch_dim": batch_dim,
        "seed": seed,
    }
    with (
        open_throughput_bench(module, args, named, budget=seconds, lower=lower, **terms) as (bench, found),
        show_progress(f"tuning for throughput (budget {seconds:g} s)", enabled=progress is True) as show,
    ):
        request = ThroughputRequest(found["splits"], found["batches"], bound, seconds)
        tell = tell or _make_tell(progress, show, seconds)
        tuned = ThroughputSweep(bench, request, tell=tell, notes=found["notes"]).run()
        keep_serving(module, bench, tuned, lower)
        if use is not None and (chosen := tuned.configuration) is not None:
            use(*bench.find_example(chosen.threads, chosen.batch))
    return tuned


def _make_tell(progress: Any, show: Tell, budget: float) -> Tell:
    """Return what takes the state of the search: the caller's function, which takes a `Progress`, or the line on the screen."""
    if not callable(progress):
        return show
    from xrt.placement.result import Progress

    began = time.perf_counter()
    return lambda text: progress(Progress(text, "", None, time.perf_counter() - began, budget))


def keep_serving(
    module: XRTModule, bench: ModuleBench, tuned: ThroughputResult, lower: LoweringWithinBudget | None = None
) -> None:
    """Let the module and the cache keep what was chosen; warn where nothing was."""
    from xrt.module.bundle_index import store_serving

    record = tuned.to_record()
    if record is None:
        warn(f"{tuned.headline}; allow a larger p99, or more threads", PlacementWarning)
        return
    module._serving = record
    bench.hand_over(record.threads)
    for one in dict.fromkeys((module, bench.find_module(record.threads))):
        store_serving(one, record, lower)
