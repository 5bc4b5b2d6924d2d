"""Tuning a module: find the fastest plan for a call, or the configuration that serves most requests per second.

Throughput is measured by instances that call the module in a loop, with a plan for each batch size. An instance is a thread that
calls a module; engines release the GIL while they compute. If an instance computes on several threads, it has a separate module,
because calls of one executable share its threads. The same holds if an executable runs only one call at a time: with OpenVINO
2026.4.1 without streams, two concurrent calls of a small BERT take 2.38 ms, and one call 1.20 ms.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from xrt.cache import CompileCache, Signature
from xrt.comparison import compare_all
from xrt.errors import BundleError, OptionError, PlacementFileError, PlacementWarning, XRTError, warn
from xrt.measure.timing import LoadResult, run_closed_loop
from xrt.module.options import KEYWORDS
from xrt.operators.sample_inputs import sample_inputs
from xrt.placement.result import Progress, describe_plan
from xrt.placement.sizes import list_open_axes, read_sizes, resize_values
from xrt.placement.throughput import ThroughputResult, find_batch_dim
from xrt.progress import show_progress

if TYPE_CHECKING:
    from xrt.cache.cost_store import CostStore
    from xrt.formats.bundle import BundleFile
    from xrt.formats.placement_file import ServingConfiguration, Split
    from xrt.module.module import XRTModule
    from xrt.module.programs import Specialization
    from xrt.placement import ProgressCallback, TuningResult
    from xrt.precision.placement import ReducedPrecisionSearch

Objective: TypeAlias = Literal["latency", "throughput"]
THROUGHPUT_KEYWORDS = ("p99", "batches", "instances", "batch_dim", "seed")
"""Keywords of `XRTModule.tune` that are only for throughput."""
SEARCH_FRACTION = 0.5
THROUGHPUT_BUDGET_SECONDS = 60.0


def tune(
    module: XRTModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    objective: Objective,
    budget: float | None,
    progress: ProgressCallback | bool | None,
    throughput: Mapping[str, Any],
) -> TuningResult | ThroughputResult:
    """Implement `XRTModule.tune`. ``throughput`` has the arguments `THROUGHPUT_KEYWORDS`; None: not passed by the caller.

    Raises OptionError if one of these was passed with another objective.
    """
    throughput = {name: value for name, value in throughput.items() if value is not None}
    if objective not in ("latency", "throughput"):
        raise OptionError(f"objective must be 'latency' or 'throughput'; got {objective!r}")
    inputs = [value.name for value in module.source.inputs]
    if option := next((name for name in kwargs if name in KEYWORDS and name not in inputs), None):
        raise OptionError(f"{option}= is an option of the module; pass it to XRTModule instead of tune()")
    programs = module.programs
    if objective == "throughput":
        shows = programs.settings.shows_progress if progress is None else progress
        return tune_throughput(module, args, kwargs, budget=budget, progress=shows, **throughput)
    if throughput:
        raise OptionError(f"{next(iter(throughput))}= is for objective='throughput'; pass that too, or remove it")
    values = module.programs.check_inputs(args, kwargs) if args or kwargs else None
    placer = partial(programs.placer.tune, values=values, budget=budget, progress=progress, retune=True)
    build = module.programs.specialize(values, place=placer)
    programs.adopt_decision(build)
    assert build.tuned is not None  # the placer has set it
    return build.tuned


def find_serving_record(module: XRTModule) -> ServingConfiguration | None:
    """Find the serving configuration of a module: from `tune`, its lockfile, its bundle, or the cache; None if there is none."""
    if module.serving_record is None and (lock := module.programs.settings.lock) is not None:
        module.serving_record = lock.lock.serving
    if module.serving_record is None and module.bundle is not None:
        module.serving_record = read_serving(module.bundle)
    elif module.serving_record is None:
        location = None
        with suppress(XRTError):  # if the model cannot be read, a call reports it
            location = _find_record_location(module, module.programs.reducer)
        if location is not None:
            store, key = location
            document = store.read_decision(key)
            module.serving_record = None if document is None else document.serving
    return module.serving_record


def _find_record_location(module: XRTModule, reducer: ReducedPrecisionSearch | None) -> tuple[CostStore, Signature] | None:
    """Return the store and the key of a module's serving configuration; None if it cannot be stored.

    The key includes the error budget of ``reducer``. If the code of the budget's metric is unknown, nothing can be stored.
    """
    from xrt.cache import DiskTier
    from xrt.cache.cost_store import CostStore
    from xrt.placement.records import make_decision_key

    programs = module.programs
    if not isinstance(programs.cache.disk, DiskTier) or programs.source.is_traced:
        return None
    store = CostStore.for_cache(programs.cache)
    request = programs.engines.make_request(programs.source.get_declared_function(), clustering=programs.settings.clustering)
    budget = () if reducer is None else reducer.ingredients
    key = None if budget is None else make_decision_key(request, (*budget, ("objective", "throughput")))
    return None if store is None or key is None else (store, key)


def store_serving(module: XRTModule, record: ServingConfiguration, reducer: ReducedPrecisionSearch | None = None) -> None:
    """Store a configuration for modules with the same engines, thread budget and error budget."""
    from xrt.formats.placement_file import PlacementFile

    location = _find_record_location(module, reducer)
    if location is not None:
        store, key = location
        store.store_decision(key, PlacementFile(serving=record))


def read_serving(file: BundleFile) -> ServingConfiguration | None:
    """Read the serving configuration of a bundle; None if its module was not tuned. Raises BundleError if it is damaged."""
    from xrt.formats.placement_file import loads

    try:
        return loads(file.record.facts["serving"]).serving
    except PlacementFileError as error:
        raise BundleError(f"cannot load {str(file.path)!r}: its serving configuration cannot be read: {error}") from None


# ---------------------------------------------------------------------- throughput


def tune_throughput(
    module: XRTModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    p99: float | None = None,
    batches: Sequence[int] | None = None,
    instances: Sequence[int] | int | None = None,
    batch_dim: str | None = None,
    seed: int = 0,
    budget: float | None = None,
    progress: ProgressCallback | bool = False,
    use: Callable[[XRTModule, Sequence[Any]], object] | None = None,
) -> ThroughputResult:
    """Tune for throughput as `XRTModule.tune` describes, and store the result in the module and its cache.

    Before the instances are closed, ``use`` is called with one of the chosen configuration, and the inputs of a full batch.
    """
    from xrt.placement.autotune import check_budget
    from xrt.placement.throughput import BATCH_SIZES, ThroughputRequest, ThroughputSweep, list_splits, parse_batches, parse_bound

    reducer = module.programs.reducer  # the instances have no error budget: the bench searches their plans of reduced precision
    seconds = THROUGHPUT_BUDGET_SECONDS if budget is None else budget
    check_budget(seconds)
    bound = parse_bound(p99)
    values = module.programs.check_inputs(args, kwargs, pads=False)[: len(module.inputs)] if args or kwargs else None
    splits = list_splits(module.threads, instances)
    pool = RequestPool(module, values, batch_dim, seed)
    sizes = parse_batches(BATCH_SIZES if batches is None else batches)
    reason = pool.reason
    if not reason and sizes[-1] > 1:
        with nullcontext(module) if reducer is None else _make_exact_module(module) as exact:
            reason = pool.check_independent(exact, min(MAX_REQUESTS_CHECKED, sizes[-1]))
    notes: tuple[str, ...] = ()
    if reason:
        sizes, notes = (1,), (f"requests are not batched: {reason}",)
    with (
        closing(ModuleBench(module, pool, splits, sizes, SEARCH_FRACTION * seconds, reducer)) as bench,
        show_progress(f"tuning for throughput (budget {seconds:g} s)", enabled=progress is True) as show,
    ):
        began = time.perf_counter()

        def report(text: str) -> object:
            state = Progress(text, "", None, time.perf_counter() - began, seconds)
            if callable(progress):
                return progress(state)
            return None if show is None else show(text)

        tuned = ThroughputSweep(bench, ThroughputRequest(splits, sizes, bound, seconds), report=report, notes=notes).run()
        record, configuration = tuned.to_record(), tuned.configuration
        if record is None or configuration is None:
            warn(f"{tuned.headline}; allow a larger p99, or more threads", PlacementWarning)
            return tuned
        module.serving_record = record
        bench.transfer_plans(record.threads)
        for target in dict.fromkeys((module, bench.find_module(record.threads))):
            store_serving(target, record, reducer)
        if use is not None:
            instance = bench.find_module(configuration.threads)
            use(instance, instance.programs.check_inputs(pool.join(0, configuration.batch), {}))
    return tuned


def _make_exact_module(module: XRTModule) -> XRTModule:
    """Create a float32 module that places by list order, to compare the results of batches and single requests."""
    from xrt.module.module import XRTModule  # which imports this module

    listed = module.programs.engines
    engines = [engine for engine in listed.engines if engine.spec != listed.implicit]
    device, cache = module.construction.device, CompileCache()
    return XRTModule(module.source, engines, device, threads=module.threads, cache=cache)


def count_modules(module: XRTModule, calls: int) -> int:
    """Count the modules that ``calls`` concurrent calls need, with the executables that are compiled now.

    With several threads each call needs a module, because calls of one executable share its threads. With one thread, one module
    is enough unless an executable limits its concurrent runs.
    """
    if module.threads > 1:
        return calls
    programs = (build.compiled for build in module.dispatcher)
    limits = (executable.concurrent_runs for program in programs if program is not None for executable in program.executables)
    calls_per_module = min((limit for limit in limits if limit is not None), default=calls)
    return math.ceil(calls / calls_per_module)


POOL_SIZE = 32
MAX_REQUESTS_CHECKED = 4
"""Maximum size of the batch whose results are compared with those of single requests."""
PRECISION_KEYWORDS = ("max_error", "calibrate", "validate", "precision")
MIN_SEARCH_SECONDS = 6.0
"""Minimum time of a search for a plan. With a small budget, plans are searched for fewer batch sizes."""


class RequestPool:
    """Requests of one row each, which can be concatenated to the inputs of a call."""

    def __init__(self, module: XRTModule, values: Sequence[Any] | None, batch_dim: str | None, seed: int) -> None:
        """``values`` are the inputs of a call; None draws random inputs. Raises InputError if that fails."""
        source = module.source
        self.inputs = source.inputs
        self.dim, self.reason = "", "an xrt.Graph has no symbolic dim"
        """The symbolic dim that counts requests. If there is none, it is empty and `reason` says why."""
        if not source.is_traced:
            self.dim, self.reason = find_batch_dim(source.inputs, source.outputs, batch_dim)
        elif batch_dim is not None:
            raise OptionError("batch_dim= needs a model with symbolic dims, and an xrt.Graph has none; pass graph.trace(...)")
        if values is None:
            samples = sample_inputs(source.get_declared_function(), seed, {self.dim: POOL_SIZE} if self.dim else {})
            values = [samples[value.name] for value in self.inputs]
        self._values, self._rows = list(values), list[dict[int, Any]]()
        """`_values`: the inputs of a call. `_rows`: each request's row of every input with the batch dim, by input index."""
        if self.dim:
            axes = list(list_open_axes(self.inputs))
            sizes = {**read_sizes(self.inputs, self._values), self.dim: POOL_SIZE}
            resized = resize_values(self.inputs, self._values, sizes)
            batched = {index for index, _, name in axes if name == self.dim}
            self._rows = [{index: resized[index][row : row + 1].copy() for index in batched} for row in range(POOL_SIZE)]

    def join(self, first: int, count: int) -> list[Any]:
        """Concatenate ``count`` requests, from index ``first``, to the inputs of a call."""
        rows, values = self._rows, list(self._values)
        if not rows:  # without a batch dim, all requests are the same call
            return values
        for index in rows[0]:
            values[index] = np.concatenate([rows[request % len(rows)][index] for request in range(first, first + count)])
        return values

    def split(self, results: Any, count: int) -> list[Any]:
        """Split the results of a call with ``count`` requests into a list of outputs for each request."""
        outputs = results if isinstance(results, tuple) else (results,)
        return [[output[row : row + 1] for output in outputs] for row in range(count)] if self.dim else [outputs]

    def check_independent(self, module: XRTModule, count: int) -> str:
        """Explain why requests cannot be batched; empty if ``count`` requests have the same results in a batch as alone."""
        batch_results = module(*self.join(0, count))
        outputs = batch_results if isinstance(batch_results, tuple) else (batch_results,)
        names = [value.name for value in module.outputs]
        for name, output in zip(names, outputs, strict=True):
            if output.ndim == 0 or output.shape[0] != count:
                return f"output {name!r} has the shape {list(output.shape)} for {count} requests"
        for index, batched in enumerate(self.split(batch_results, count)):
            (alone,) = self.split(module(*self.join(index, 1)), 1)
            if not (comparison := compare_all(batched, alone, names=names)):
                return f"a request has other results in a batch than alone: {comparison.message}"
        return ""


class ModuleBench:
    """Creates and measures instances of a module for a `ThroughputSweep`. Close it to release the instances."""

    def __init__(
        self,
        module: XRTModule,
        pool: RequestPool,
        splits: Sequence[Split],
        sizes: Sequence[int],
        budget: float,
        reducer: ReducedPrecisionSearch | None = None,
    ) -> None:
        """``budget`` is the time of all searches for plans, in seconds; ``reducer`` searches for plans within an error budget."""
        self.dim, self._pool, self._module, self._reducer = pool.dim, pool, module, reducer
        self._largest = sizes[-1]
        # Without duplicates, since several splits may have the same threads. `sizes` is ascending.
        searches = dict.fromkeys((split.threads, size) for size in (sizes[-1], sizes[0]) for split in splits)
        self._searches = list(searches)[: max(1, int(budget / MIN_SEARCH_SECONDS))]
        """(threads, batch size) of each search for a plan, the largest size first."""
        self._seconds = budget / len(self._searches)
        self._modules: dict[int, list[XRTModule]] = defaultdict(list)
        self._placements: dict[tuple[int, int], TuningResult] = {}
        self._placed: set[tuple[int, int]] = set()
        """(id of module, batch size) for which the module uses the placement."""
        self._warm: set[tuple[int, int]] = set()
        """(id of module, batch size) of calls that were made before the measurement."""
        self.is_exact = bool(pool.dim)
        """Whether each batch size needs a separate program."""
        if pool.dim:
            values = module.programs.check_inputs(pool.join(0, 1), {}, pads=False)[: len(module.inputs)]
            reason = module.sizes.why_not_general(values, module.programs)
            sizes_of_call = read_sizes(module.inputs, values)
            self.is_exact = bool(module.programs.engines.is_auto or reason)
            if reason and (padding := module.sizes.find_padding(module.programs)) is not None:
                # A padded program serves several batch sizes if, for example, a batch of 3 is padded.
                self.is_exact = padding.choose({**sizes_of_call, self.dim: 3})[self.dim] == 3

    def find_module(self, threads: int, index: int = 0) -> XRTModule:
        """Return the module with this thread budget and index, created on first use. Modules share only the disk cache."""
        from xrt.module.module import XRTModule  # which imports this module

        modules, construction = self._modules[threads], self._module.construction
        # The search for plans of reduced precision already has these options.
        left_out = () if self._reducer is None else PRECISION_KEYWORDS
        options = {name: value for name, value in construction.options.items() if name not in left_out}
        options |= {"threads": threads, "lock": None, "progress": False}
        while len(modules) <= index:
            cache = CompileCache(disk=self._module.programs.cache.disk)
            construction = replace(construction, cache=cache, options=options)
            modules.append(construction.create_module(XRTModule, self._module.source))
        return modules[index]

    def _warm_up(self, module: XRTModule, sizes: Sequence[int]) -> None:
        for size in sizes:
            if (id(module), size) not in self._warm:
                self._specialize(module, size)
                module(*self._pool.join(0, size))
                self._warm.add((id(module), size))

    def _count_modules(self, split: Split, sizes: Sequence[int]) -> int:
        first = self.find_module(split.threads)
        if split.threads == 1:
            self._warm_up(first, sizes)
        return count_modules(first, split.instances)

    def _specialize(self, module: XRTModule, size: int) -> Specialization:
        """Return the specialization for calls of ``size`` requests. With "auto", first give the module the placement."""
        values = module.programs.check_inputs(self._pool.join(0, size), {})
        # All modules with one thread budget share the placement of a size, but each must adopt it once.
        placement_key = module.threads, size
        if module.programs.engines.is_auto and (id(module), size) not in self._placed:
            if placement_key not in self._placements:
                self._placements[placement_key] = self._find_placement(module, size, values)
            tuned = self._placements[placement_key]
            build = module.programs.specialize(values, place=lambda function: tuned)
            module.programs.compile(build)
            module.programs.adopt_decision(build)
            self._placed.add((id(module), size))
        return module.programs.specialize(values)

    def _find_placement(self, module: XRTModule, size: int, values: list[Any]) -> TuningResult:
        """Find the placement for a batch size: by a search for the largest and smallest, else that of the largest size."""
        placer, threads = module.programs.placer, module.threads
        if (threads, size) in self._searches:
            place = partial(placer.tune, values=values, budget=self._seconds, progress=False, reducer=self._reducer)
        else:
            searched_threads = threads if (threads, self._largest) in self._searches else self._searches[0][0]
            base = self._specialize(self.find_module(searched_threads), self._largest).tuned
            assert base is not None  # it is placed by measurement
            place = partial(placer.adapt, base, note=f"for calls of {size} the plan that was found for calls of {self._largest}")
        tuned = module.programs.specialize(values, place=place).tuned
        assert tuned is not None  # the placer has set it
        return tuned

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        modules = [self.find_module(split.threads, index) for index in range(self._count_modules(split, (batch,)))]
        for module in modules:
            self._warm_up(module, (batch,))

        def serve(instance: int, first: int, count: int) -> list[Any]:
            return self._pool.split(modules[instance % len(modules)](*self._pool.join(first, count)), count)

        return run_closed_loop([partial(serve, instance) for instance in range(split.instances)], batch, concurrency, seconds)

    def describe_plan(self, split: Split, size: int) -> str:
        return describe_plan(self._specialize(self.find_module(split.threads), size).plan)

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int:
        """Sum the bytes of the modules that the instances use: the weights, which count once, and other memory of each module."""
        builds = [self._specialize(self.find_module(split.threads), size) for size in sizes]
        reports = [build.memory() for build in {id(build): build for build in builds}.values()]
        weights = max((memory.weights + memory.unused for memory in reports), default=0)
        private = sum(memory.held - memory.weights - memory.unused for memory in reports)
        return weights + self._count_modules(split, sizes) * private

    def transfer_plans(self, threads: int) -> None:
        """Give the tuned module the plans that were found for ``threads``, if this is its thread budget."""
        for placed_threads, size in list(self._placements):
            if placed_threads == threads == self._module.threads:
                self._specialize(self._module, size)

    def close(self) -> None:
        for module in chain.from_iterable(self._modules.values()):
            module.close()
        self._modules.clear()
