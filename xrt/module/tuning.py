"""A module as it is tuned: for the time of a call, or for the requests that it serves per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

from xrt.errors import OptionError, PlacementWarning, warn
from xrt.module.fallback import shorten_tracebacks
from xrt.module.precision import make_module_lowering, override_budget

if TYPE_CHECKING:
    from xrt.formats.serving_record import ServingRecord
    from xrt.module.module import XRTModule
    from xrt.module.options import ModuleOptions
    from xrt.module.throughput import ModuleBench
    from xrt.placement import ProgressCallback, TuningResult
    from xrt.placement.throughput.result import ServingConfiguration, ThroughputResult
    from xrt.placement.throughput.sweep import Tell
    from xrt.precision import ErrorBudget
    from xrt.precision.lowering import LoweringWithinBudget

__all__ = ["TERMS", "Objective", "Tunable", "open_throughput_bench", "tune_throughput"]

Objective: TypeAlias = Literal["latency", "throughput"]
OBJECTIVES = ("latency", "throughput")
TERMS = ("p99", "batches", "instances", "batch_dim", "seed")
"""Keywords of `Tunable.tune` for throughput alone."""
SEARCHING = 0.5
"""Share of the budget for searches of plans, one for each batch size that time allows."""
THROUGHPUT_BUDGET = 60.0
"""Seconds of a search for throughput where the caller names none."""


@shorten_tracebacks
class Tunable:
    """A module that can be tuned."""

    _settings: ModuleOptions
    _serving: ServingRecord | None = None
    _load_serving: Callable[[], ServingRecord | None] | None = None
    """Reads what the bundle of the module holds."""

    @property
    def tuned(self) -> TuningResult | None:
        """How the last signature was placed by measurement: who ran against whom; None where it was not. Prints as text."""
        return cast("XRTModule", self)._current().tuned

    @property
    def serving(self) -> ServingConfiguration | None:
        """How to serve the model, as it was tuned for throughput; None where it was not.

        By `tune` of this module, else by the bundle or the lock that it is of, else by an earlier process whose result the
        cache keeps for this model, engines and thread budget.
        """
        from xrt.placement.throughput.result import ServingConfiguration

        record = self._find_serving_record()
        return None if record is None else ServingConfiguration.from_record(record)

    def _find_serving_record(self) -> ServingRecord | None:
        if self._serving is None and self._settings.lock is not None:
            self._serving = self._settings.lock.lock.serving
        if self._serving is None and self._load_serving is not None:
            self._serving = self._load_serving()
        elif self._serving is None:
            from xrt.module.bundle_index import load_serving

            self._serving = load_serving(cast("XRTModule", self))
        return self._serving

    def _spell_serving(self) -> str:
        """Return the text that a bundle holds; empty where the module was not tuned for throughput."""
        from xrt.formats.serving_record import spell_serving

        return spell_serving(self._find_serving_record())

    @overload
    def tune(
        self,
        *args: Any,
        objective: Literal["latency"] = ...,
        budget: float | None = ...,
        progress: ProgressCallback | bool | None = ...,
        max_error: float | ErrorBudget | None = ...,
        calibrate: Iterable[Any] | None = ...,
        validate: Iterable[Any] | None = ...,
        **named: Any,
    ) -> TuningResult: ...

    @overload
    def tune(
        self,
        *args: Any,
        objective: Literal["throughput"],
        p99: float | None = ...,
        batches: Sequence[int] = ...,
        instances: Sequence[int] | int | None = ...,
        batch_dim: str | None = ...,
        seed: int = ...,
        budget: float | None = ...,
        progress: ProgressCallback | bool | None = ...,
        max_error: float | ErrorBudget | None = ...,
        calibrate: Iterable[Any] | None = ...,
        validate: Iterable[Any] | None = ...,
        **named: Any,
    ) -> ThroughputResult: ...

    def tune(
        self,
        *args: Any,
        objective: Objective = "latency",
        budget: float | None = None,
        progress: ProgressCallback | bool | None = None,
        p99: float | None = None,
        batches: Sequence[int] | None = None,
        instances: Sequence[int] | int | None = None,
        batch_dim: str | None = None,
        seed: int | None = None,
        max_error: float | ErrorBudget | None = None,
        calibrate: Iterable[Any] | None = None,
        validate: Iterable[Any] | None = None,
        **named: Any,
    ) -> TuningResult | ThroughputResult:
        """Search again for the best placement for these inputs, or for random ones, within ``budget`` seconds.

        ``objective="latency"`` looks for the plan whose call is fastest. The module uses it from now on, the cache keeps it, and
        later modules use it whatever their budget. ``progress`` is called with the state of the search; True shows it, False does
        not. ``max_error``, ``calibrate`` and ``validate`` are as for `XRTModule`, and replace the module's.

        ``objective="throughput"`` looks for the configuration that serves most requests per second, each a row of the inputs,
        while 99 of 100 have their result within ``p99`` seconds: how many requests are joined in a call (of ``batches``), how
        many calls run at a time (of ``instances``, which divide the thread budget), and with ``engine="auto"`` the plan for each
        batch size. `serving` is what was chosen; `save` and a lock keep it. ``batch_dim`` names the symbolic dim that counts
        requests, where it is not the first extent of all inputs and outputs. ``seed`` is that of random inputs. Within
        ``max_error`` the plan for each batch size is the fastest whose error at that size is within the budget.
        """
        module = cast("XRTModule", self)
        given: dict[str, Any] = {"p99": p99, "batches": batches, "instances": instances, "batch_dim": batch_dim, "seed": seed}
        given = {name: value for name, value in given.items() if value is not None}
        if objective not in OBJECTIVES:
            raise OptionError(f"objective must be 'latency' or 'throughput'; got {objective!r}")
        lowers = max_error is not None or calibrate is not None or validate is not None
        lower = module._lowering
        if lowers:
            lower = make_module_lowering(override_budget(self._settings, max_error, calibrate, validate), module._served)
        if objective == "throughput":
            return tune_throughput(module, args, named, budget=budget, progress=progress, lower=lower, **given)
        if given:
            raise OptionError(f"{next(iter(given))}= is of objective='throughput'; pass that too, or leave it out")
        values = module._check_inputs(args, named) if args or named else None
        placing = module._automatic.make_placer(values, budget=budget, progress=progress, retune=True, lower=lower)
        build = module._specialize(values, place=placing)
        module._adopt_decision(build)
        return cast("TuningResult", build.tuned)  # it has just been placed


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
    progress: ProgressCallback | bool | None = None,
    tell: Tell | None = None,
    use: Callable[[XRTModule, Sequence[Any]], object] | None = None,
    lower: LoweringWithinBudget | None = None,
) -> ThroughputResult:
    """Return the result of a search for throughput, as `Tunable.tune` describes; the module and its cache keep the choice.

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
    shown = (progress is None and module._settings.shows_progress) or progress is True
    with (
        open_throughput_bench(module, args, named, budget=seconds, lower=lower, **terms) as (bench, found),
        show_progress(f"tuning for throughput (budget {seconds:g} s)", enabled=shown) as show,
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
