"""Calls of a module: inputs and options, checks against the reference, and the dispatcher, which finds the program of a call.

After a call, the next calls with the same input types (dtypes and shapes) are prepared: they only compare the types and run the
program. A bound call checks nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np

from xrt import passes
from xrt.cache.memory import MAX_IDLE_THREADS, MIN_BYTES, close_in_background
from xrt.engines import RunOptions
from xrt.engines.toolkit import reference_evaluator
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import InputError, OptionError, RunFailed, SignatureWarning, XRTError, warn
from xrt.forking import renew_after_fork
from xrt.graph import DType, Function, TensorType, Value
from xrt.runtime import OutputInspector, Program, find_type_mismatch, list_inplace_updates, to_run_failed
from xrt.runtime.devices import use_array_device
from xrt.runtime.inputs import check_buffers, check_updated
from xrt.runtime.program import DEFAULT_OPTIONS
from xrt.verify.deviations import name_likely_cause

if TYPE_CHECKING:
    from xrt.module.options import Check
    from xrt.module.programs import Specialization
    from xrt.partition import Launch, Plan
    from xrt.placement.engine_list import EngineList


@dataclass(frozen=True, slots=True)
class Call:
    inputs: Sequence[Any]
    options: RunOptions = DEFAULT_OPTIONS
    inspection: OutputInspector | None = None
    """Checks the outputs of each region; None without a check."""
    saved_inputs: tuple[tuple[Any, Any], ...] = ()
    """(input, copy of its values before the call) for each input that the model updates; empty if no copy was made."""

    @classmethod
    def create(cls, inputs: Sequence[Any], options: RunOptions | None, out: Any, function: Function, device: str) -> Call:
        """Create a call that writes its outputs to the buffers in ``out`` or in ``options``, or else to new arrays.

        Raises DeviceError for a stream on the CPU; InputError for buffers in both arguments or that do not fit.
        """
        if not isinstance(options, RunOptions | None):
            kind = type(options).__name__
            raise OptionError(f"options= takes RunOptions, such as xrt.RunOptions(profile=True); got: {kind}")
        options = options or DEFAULT_OPTIONS
        buffers = options.host_buffers if device == "cpu" else options.out
        if out is not None:
            if buffers is not None:
                raise InputError("out= is passed twice, as an argument and in options; pass the buffers in one of the two")
            buffers = out
        if buffers is not None:
            options = replace(options, out=check_buffers(buffers, function.outputs, function.inputs, inputs, device))
        return cls(inputs, options)

    def copy_updated_inputs(self, function: Function) -> Call:
        """Copy the inputs that the call updates, so that `restore` can reset them before the call is repeated."""
        return replace(self, saved_inputs=tuple((self.inputs[i], copy) for i, copy in self._copy_updated(function).items()))

    def use_copies(self, function: Function) -> Call:
        """Return a call that writes to no array of the caller: it updates copies of inputs, and has no output buffers."""
        copies = self._copy_updated(function)
        inputs = tuple(copies.get(index, value) for index, value in enumerate(self.inputs))
        return replace(self, inputs=inputs, options=replace(self.options, out=None))

    def _copy_updated(self, function: Function) -> dict[int, Any]:
        updated = {name for name, _ in function.aliases}
        copies = {}
        for index, (declared, value) in enumerate(zip(function.inputs, self.inputs, strict=True)):
            if declared.name in updated:
                with use_array_device(value):
                    copies[index] = value.copy()
        return copies

    def restore(self, plan: Plan, error: RunFailed) -> None:
        """Reset the inputs that were updated before a region failed. Raises RunFailed if their values are not saved."""
        if self.saved_inputs:
            for value, copy in self.saved_inputs:
                with use_array_device(value):
                    value[...] = copy
            return
        updated = list_inplace_updates(plan, error.region) if error.updated is None else error.updated
        if updated:
            names = ", ".join(map(repr, updated))
            raise RunFailed(
                f"{error}; the call is not repeated, since it may have partially updated {names}. Later calls run the region on "
                f"another engine: set {names} to the value before the call, and call again",
                error.region,
                tuple(updated),
            ) from error


# ---------------------------------------------------------------------- checks against the reference engine

REFERENCE_TIMEOUT_SECONDS = 20.0
"""How long the first call of a plan waits for the reference, if the search for the plan had no time to check it."""


class OutputChecks:
    """Checks a module's outputs against the reference engine."""

    def __init__(self, check: Check, threads: int) -> None:
        self.check = check
        self._reference = partial(reference_evaluator.evaluate, threads=threads)
        self.may_check_any_call = check not in (None, "first")
        """Whether later calls may be checked too. Calls are then not prepared, because a prepared call makes no checks."""
        self.count = 0
        self.unchecked: dict[str, str] = {}
        self.is_too_slow = False
        """Whether the reference has exceeded `REFERENCE_TIMEOUT_SECONDS`. Unrequested checks are then skipped."""
        self._numbers = itertools.count(1)

    def instrument(self, call: Call, build: Specialization) -> Call:
        """Add checks to a call: of the types of all results and, if the call is due for it, of their values."""
        # If a search had no time to check its plan, the first call of the plan does.
        is_unchecked = build.tuned is not None and not build.tuned.record.is_checked
        must_check_plan = is_unchecked and not build.checked and not self.is_too_slow
        if not self._is_due(is_first=not build.checked) and not must_check_plan:
            return replace(call, inspection=OutputInspector(self._find_wrong_type))
        inspect = partial(self._find_fault, build.engines)
        # If a region is wrong, it runs again on another engine, on the values of the inputs before the call.
        return replace(call, inspection=OutputInspector(inspect, needs_inputs=True)).copy_updated_inputs(build.function)

    def record(self, call: Call, build: Specialization) -> bool:
        """Count a call whose outputs agreed with the reference; do nothing if its outputs were not compared.

        Return True if the plan can now be stored as checked: its search had no time to check it, this was the first comparison,
        and it covered all regions.
        """
        if call.inspection is None or not call.inspection.needs_inputs or (self.check is None and self.is_too_slow):
            return False
        is_first = not build.checked
        build.checked = True
        self.count += 1
        if not is_first or build.tuned is None or build.tuned.record.is_checked or build.refused:
            return False
        return not self.list_remarks(build.plan)  # which has the regions that could not be compared

    def _is_due(self, *, is_first: bool) -> bool:
        """Whether the option ``check`` requests a check of this call. ``is_first``: no call of its plan was checked yet."""
        if self.check is None:
            return False
        # Spreads the share evenly: with 0.25 every fourth call, not a random quarter.
        share = 0.0 if self.check == "first" else self.check
        call_number = next(self._numbers)
        return is_first or int(call_number * share) > int((call_number - 1) * share)

    def _find_wrong_type(self, launch: Launch, inputs: Sequence[Any], results: Sequence[Any]) -> str | None:
        """Describe a result of a region whose type contradicts the plan; None if the reference returns the same types."""
        mismatch = find_type_mismatch(launch, results)
        if mismatch is None or (expected := self._evaluate(launch, inputs)) is None:
            return None
        # If the reference agrees with the engine, the model declares a wrong type, which another engine would not change.
        return None if _list_types(results) == _list_types(expected) else mismatch

    def _find_fault(self, engines: EngineList, launch: Launch, inputs: Sequence[Any], results: Sequence[Any]) -> str | None:
        """Describe a wrong type or value among the results of a region; None if they are right or cannot be checked."""
        if (mismatch := self._find_wrong_type(launch, inputs, results)) is not None:
            return mismatch
        if (expected := self._evaluate(launch, inputs)) is None:
            return None

        from xrt.verify import Verdict, judge_outputs
        from xrt.verify.comparison import find_precision

        # Without its aliases the function does not update the inputs, on which the reference runs too.
        function = launch.function.replace(aliases=())
        engine = engines.get_host_engine(launch)
        precision = "fp32" if engine is None else find_precision(engine, engines.context)
        judgement = judge_outputs(function, inputs, results, expected, self._reference, precision)
        if judgement.verdict is not Verdict.DISAGREES:
            return None
        problem = f"engine {launch.engine!r} computed {launch.name} wrongly: {judgement.message}"
        cause = None
        if engine is not None:
            cause = name_likely_cause(engine.implementation, function, [*inputs, *results, *expected])
        return f"{problem}; {cause}" if cause else problem

    def _evaluate(self, launch: Launch, inputs: Sequence[Any]) -> list[Any] | None:
        """Compute the results of a region on the reference; None if it runs there already, or cannot run there.

        Unless the user requested checks, wait at most `REFERENCE_TIMEOUT_SECONDS`. The reason for None is added to `unchecked`.
        """
        from xrt.operators import is_deterministic
        from xrt.processes.background import OutOfTime, run_within

        function = launch.function
        if launch.engine == REFERENCE or function.fingerprint in self.unchecked:
            return None
        random = next((node for node in function.nodes if not is_deterministic(node, function)), None)
        if random is not None:
            self.unchecked[function.fingerprint] = f"node {random.name!r} ({random.op}) is not deterministic"
            return None
        run = partial(self._reference, function.replace(aliases=()), inputs)
        try:
            # A check that the user did not request must not delay the call without limit.
            return run() if self.check is not None else run_within(REFERENCE_TIMEOUT_SECONDS, run)
        except (XRTError, OutOfTime) as error:
            self.is_too_slow |= isinstance(error, OutOfTime)
            self.unchecked[function.fingerprint] = f"the reference cannot run it: {error}"
            return None

    def __str__(self) -> str:
        if self.check is None:
            return ""
        calls = "the first call for each set of input types"
        if self.check != "first":
            calls += f" and {self.check:.3g} of the others"
        return f"checked against {REFERENCE}: {calls}; {self.count} call{'' if self.count == 1 else 's'} so far"

    def list_remarks(self, plan: Plan) -> dict[str, str]:
        """Explain why regions are not checked, by region name, without the regions that are."""
        reasons = {launch.name: self.unchecked.get(launch.function.fingerprint) for launch in plan.launches}
        return {name: f"not checked: {reason}" for name, reason in reasons.items() if reason}


def _list_types(values: Sequence[Any]) -> list[Any]:
    return [(value.dtype, value.shape) if isinstance(value, np.ndarray) else type(value) for value in values]


# ---------------------------------------------------------------------- prepared calls

NO_MATCH: Final = object()
"""What a prepared call returns, without running, for inputs of other types or shapes."""
FastCall: TypeAlias = Callable[[tuple[Any, ...]], Any]
"""A prepared call: takes a tuple of inputs, and returns what the module returns, or `NO_MATCH`."""
Run: TypeAlias = Callable[..., Sequence[Any]]
Finish: TypeAlias = Callable[[Sequence[Any]], Any]
Rescue: TypeAlias = Callable[[tuple[Any, ...], Exception], Any]
"""Repeats a failed call on another plan, from its inputs and the exception."""


@dataclass(frozen=True, slots=True)
class FastPath:
    """A prepared call, with the specialization and the program that it runs."""

    call: FastCall = lambda args: NO_MATCH
    accepts: Callable[[tuple[Any, ...]], bool] = lambda args: False
    """Whether the call can run on a tuple of inputs, because they have its types and shapes."""
    build: Specialization | None = None
    program: Program | None = None


Wrap: TypeAlias = Callable[[FastPath], tuple[Sequence[Any], FastPath]]
"""Makes of a path for padded inputs a path that pads its inputs. Also returns the inputs of the last call before padding."""
NO_PATH: Final = FastPath()


def make_fast_path(build: Specialization, program: Program, values: Sequence[Any], rescue: Rescue) -> FastPath:
    """Prepare calls of a specialization for inputs with the types and shapes of ``values``. ``rescue`` handles their errors."""
    expected = tuple((type(value), value.dtype, value.shape) for value in values)
    accepts = make_type_check(expected)
    string_inputs = [index for index, value in enumerate(values) if value.dtype.hasobject]
    if string_inputs:
        accepts = _require_strings(accepts, string_inputs)
    # A program of a single region is called without a frame.
    run: Callable[..., Sequence[Any]] = program.fast_call or (lambda *args: program.run(args))
    finish = unpack_outputs(program.plan.function)
    if len(expected) == 1 and not string_inputs:
        ((kind, dtype, shape),) = expected
        call = _make_one_input_call(run, finish, kind, dtype, shape, rescue)
    else:
        call = _make_checked_call(run, finish, accepts, rescue)
    return FastPath(call, accepts, build, program)


def make_type_check(expected: tuple[tuple[Any, Any, Any], ...]) -> Callable[[tuple[Any, ...]], bool]:
    """Make a function that compares a tuple of inputs with ``expected``, the (class, dtype, shape) of each input."""
    count = len(expected)

    def accepts(args: tuple[Any, ...]) -> bool:
        if len(args) != count:
            return False
        for value, (kind, dtype, shape) in zip(args, expected, strict=True):
            # Identity is faster than equality. NumPy's basic dtypes are singletons. Other equal dtypes take the slow path.
            if type(value) is not kind or value.dtype is not dtype or value.shape != shape:
                return False
        return True

    return accepts


def _require_strings(accepts: Callable[[tuple[Any, ...]], bool], indices: Sequence[int]) -> Callable[[tuple[Any, ...]], bool]:
    """Extend a type check: the inputs with these indices, object arrays, must have only strings as elements."""

    def accepts_strings(args: tuple[Any, ...]) -> bool:
        return accepts(args) and all(type(item) is str for index in indices for item in args[index].flat)

    return accepts_strings


def _make_one_input_call(run: Run, finish: Finish, kind: Any, dtype: Any, shape: Any, rescue: Rescue) -> FastCall:
    """Make the prepared call of a model with one input. It has no loops, because this case is common and must be fast."""

    def call(args: tuple[Any, ...]) -> Any:
        if len(args) == 1:
            (value,) = args
            if type(value) is kind and value.dtype is dtype and value.shape == shape:
                try:
                    return finish(run(value))
                except Exception as error:  # noqa: BLE001  # the rescue decides
                    return rescue(args, error)
        return NO_MATCH

    return call


def _make_checked_call(run: Run, finish: Finish, accepts: Callable[[tuple[Any, ...]], bool], rescue: Rescue) -> FastCall:
    def call(args: tuple[Any, ...]) -> Any:
        if accepts(args):
            try:
                return finish(run(*args))
            except Exception as error:  # noqa: BLE001  # the rescue decides
                return rescue(args, error)
        return NO_MATCH

    return call


def unpack_outputs(function: Function) -> Finish:
    """Make a function that converts results to a call's return value: a single output as is, several as a tuple."""
    return itemgetter(0) if len(function.outputs) == 1 else tuple


def make_argument_sorter(inputs: Sequence[Value]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Make a function that converts inputs by name to a tuple in the order of ``inputs``.

    If the inputs have other names, the function returns a tuple that no prepared call accepts.
    """
    names = [value.name for value in inputs]
    # itemgetter of a single name returns the value instead of a tuple.
    pick = itemgetter(*names) if len(names) > 1 else lambda kwargs: tuple(kwargs[name] for name in names)
    count, other_names = len(names), (NO_MATCH,)

    def sort(kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if len(kwargs) != count:
            return other_names
        try:
            return pick(kwargs)
        except KeyError:
            return other_names

    return sort


def make_type_key(values: Sequence[Any]) -> object:
    """Make a dict key of the classes, dtypes and shapes of the inputs; None if an input is not an array."""
    # If all inputs are NumPy arrays, the usual case, their class is left out: the key is then faster to hash.
    if any(type(value) is not np.ndarray for value in values):
        if any(not hasattr(value, "dtype") or not hasattr(value, "shape") for value in values):
            return None
        return tuple([(type(value), value.dtype, value.shape) for value in values])
    return tuple([(value.dtype, value.shape) for value in values])


# ---------------------------------------------------------------------- the dispatcher


def warn_of_evictions(limit: int) -> None:
    warn(
        f"the programs that this module compiled for different input types hold more than the cache's max_bytes={limit}, or "
        f"{MAX_IDLE_THREADS} threads, so the least recently used are dropped; pass inputs of fewer shapes, use engines that "
        "support symbolic dims, or raise the limit: cache=xrt.cache.CompileCache(max_bytes=...)",
        SignatureWarning,
    )


NO_LIMIT = 1 << 62
"""A memory limit in bytes that disables eviction, for a module whose programs must all be saved."""
MAX_PREPARED_CALLS = 1024
"""Maximum number of prepared calls. They need little memory, because they share programs."""


class Dispatcher:
    """Stores the specializations of a module by key, and prepared calls by the types and shapes of their inputs.

    If a limit on memory or threads is exceeded, the least recently used specialization is evicted. It is closed in the background
    when no call uses it any more. An executable that several specializations share counts once.
    """

    call: FastCall
    """The prepared call that was used last. It is an attribute of its own because each attribute lookup adds to a call's time."""

    def __init__(self, inputs: Sequence[Value], max_bytes: int) -> None:
        self.sort_arguments = make_argument_sorter(inputs)
        self._max_bytes = max_bytes
        self.max_threads = MAX_IDLE_THREADS
        self._builds: OrderedDict[object, Specialization] = OrderedDict()
        self._prepared: OrderedDict[object, FastPath] = OrderedDict()
        self._has_warned = self.is_closed = False
        self.last: Specialization | None = None
        self._install(NO_PATH)
        self._lock = renew_after_fork(RLock())
        self.planning_lock = renew_after_fork(RLock())
        """Held during planning. Calls whose program exists do not wait for it."""

    def __iter__(self) -> Iterator[Specialization]:
        return iter(self.to_dict().values())

    def to_dict(self) -> dict[Any, Specialization]:
        with self._lock:
            return dict(self._builds)

    def check_open(self) -> None:
        if self.is_closed:
            raise InputError("the module is closed; make a new XRTModule")

    def find_or_create(self, key: object, create: Callable[[], Specialization], *, renew: bool = False) -> Specialization:
        """Return the specialization with this key; if there is none, or with ``renew``, create and store it.

        Threads that need the same specialization wait for the first of them. A provisional one is not stored.
        """
        if not renew and (build := self._get(key)) is not None:
            return build
        with self.planning_lock:
            if not renew and (build := self._get(key)) is not None:
                return build
            build = create()
            build.key = key
            if not (build.is_provisional or self.is_closed):  # another thread may have closed the module meanwhile
                self.put(key, build)
            return build

    def _get(self, key: object) -> Specialization | None:
        """Return the specialization with this key, and mark it as most recently used; None if there is none."""
        with self._lock:
            if (build := self._builds.get(key)) is not None:
                self._builds.move_to_end(key)
            return build

    def put(self, key: object, build: Specialization) -> None:
        with self._lock:
            if key in self._builds:
                self._drop(key)
            self._builds[key] = build
            build.key, build.counted = key, None
        self._shrink(build)

    def remove(self, build: Specialization) -> None:
        with self._lock:
            if self._builds.get(build.key) is build:
                self._drop(build.key)

    def _drop(self, key: object) -> None:
        """Remove a specialization and its prepared calls. Its program is closed in the background when no call uses it."""
        build = self._builds.pop(key)
        for types in [types for types, path in self._prepared.items() if path.build is build]:
            del self._prepared[types]
        if build.compiled is not None:
            build.compiled.close_in_background()
        # The list has the last reference. Freeing a large graph takes a while, so the background thread does it.
        close_in_background([build].clear)

    def close(self) -> None:
        """Drop all specializations and prepared calls. A program that a call uses is closed when the call ends."""
        with self._lock:
            self.is_closed = True
            self.forget()
            self.last = None
            self._builds.clear()

    def count_usage(self, build: Specialization, program: Program) -> bool:
        """Add a program's memory and threads to the totals, and evict others if necessary; False if it was counted before."""
        with self._lock:
            if self._builds.get(build.key) is not build:
                return True
            if build.counted is program:
                return False
            build.counted = program
        self._shrink(build)
        return True

    def _sum_usage(self) -> tuple[int, int]:
        usage: dict[int, tuple[int, int]] = {}
        for build in self._builds.values():
            if build.counted is not None:
                usage |= build.counted.usage
        return sum(nbytes for nbytes, _ in usage.values()), sum(threads for _, threads in usage.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the executables keep between calls; each counts as at least `MIN_BYTES`."""
        with self._lock:
            return self._sum_usage()[0]

    def _shrink(self, newest: Specialization) -> None:
        """Evict specializations, but not ``newest``, until the limits are met. The first eviction issues a SignatureWarning."""
        with self._lock:
            count_before = len(self._builds)
            # `_builds` is in order of last use, the least recently used first.
            others = [key for key, build in self._builds.items() if build is not newest]
            while others and self._exceeds_limits():
                self._drop(others.pop(0))
            must_warn = len(self._builds) < count_before and not self._has_warned
            self._has_warned |= must_warn
        if must_warn:
            warn_of_evictions(self._max_bytes)

    def _exceeds_limits(self) -> bool:
        nbytes, threads = self._sum_usage()
        too_many_threads = threads > self.max_threads and self._max_bytes < NO_LIMIT
        return too_many_threads or max(nbytes, len(self._builds) * MIN_BYTES) > self._max_bytes

    def _install(self, path: FastPath) -> None:
        self.path, self.call = path, path.call

    def select(self, build: Specialization) -> None:
        with self._lock:
            # The installed call belongs to the previous specialization. It would run without changing `last` back.
            if build is not self.last:
                self.last = build
                self._install(NO_PATH)

    def call_prepared(self, args: tuple[Any, ...]) -> Any:
        """Run the prepared call for inputs of these types, if it is not the one used last; `NO_MATCH` if there is none."""
        types = make_type_key(args)
        # With the lock, since another thread may iterate over the calls, to evict a specialization.
        with self._lock:
            path = self._prepared.get(types)
            if path is None or path.build is None:
                return NO_MATCH
            self._prepared.move_to_end(types)
            self._builds.move_to_end(path.build.key)
            self.last = path.build
            self._install(path)
        return path.call(args)

    def prepare(self, build: Specialization, values: Sequence[Any], wrap: Wrap | None) -> None:
        """Prepare later calls with inputs of the types and shapes of ``values``, the inputs of the program.

        Does nothing if the specialization was evicted meanwhile, or an input is a list or dict. If the inputs were padded,
        ``wrap`` makes the prepared call pad its inputs, and returns the inputs of this call before padding.
        """
        program = build.compiled
        # The types of lists and dicts cannot be compared quickly.
        if program is None or any(not hasattr(value, "dtype") for value in values):
            return
        path = make_fast_path(build, program, values, partial(_retry_on_failure, weakref.ref(self), build, program))
        caller_values = values  # which later calls are compared with
        if wrap is not None:
            caller_values, path = wrap(path)
        with self._lock:
            if self.is_closed or self._builds.get(build.key) is not build:
                return
            types = make_type_key(caller_values)
            self._prepared[types] = path
            self._prepared.move_to_end(types)
            while len(self._prepared) > MAX_PREPARED_CALLS:
                self._prepared.popitem(last=False)
            self._install(path)

    def forget(self) -> None:
        with self._lock:
            self._install(NO_PATH)
            self._prepared.clear()


def _retry_on_failure(
    dispatcher: weakref.ref[Dispatcher], build: Specialization, program: Program, args: tuple[Any, ...], error: Exception
) -> Any:
    """Repeat a prepared call that failed with ``error``, on another plan; an error of the caller, such as InputError, is raised.

    The reference to the dispatcher is weak, because the dispatcher stores the prepared call.
    """
    launches = program.plan.launches
    owner = dispatcher()
    # A program of a single region is called without conversion of errors; programs of several regions raise RunFailed.
    failed = to_run_failed(launches[0], error) if len(launches) == 1 else error
    if owner is None or not isinstance(failed, RunFailed):
        raise failed
    results = build.rescue(program, failed, Call(args))
    owner.forget()
    return unpack_outputs(build.function)(results)


class IOBinding:
    """A call of a module on fixed arrays: write to the inputs, call, read the outputs. It allocates and checks nothing.

    Calls share the arrays, so use a binding in one thread at a time: make a binding for each thread. It stays valid if the module
    is closed or called with other inputs. `close`, or leaving its ``with`` block, releases the arrays.
    """

    def __init__(self, call: Callable[[], None], inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        self._call = call
        self.inputs = inputs
        """The arrays that every call reads, in the model's order."""
        self.outputs = outputs
        """The arrays that every call writes, in the model's order; an output that updates an input is that input."""
        self._returned = outputs[0] if len(outputs) == 1 else outputs

    def __call__(self) -> Any:
        """Run on the current values of the inputs. Returns the same output array, or tuple of arrays, each time."""
        self._call()
        return self._returned

    def close(self) -> None:
        def fail() -> None:
            raise InputError("the bound call is closed; bind the module's inputs again")

        # The replaced function holds the program and its arrays.
        self._call = fail
        self.inputs = self.outputs = self._returned = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def check_bindable(inputs: Sequence[Value], arguments: Sequence[Any], values: Sequence[Any]) -> None:
    """Raise InputError if an argument was converted or copied to get ``values``: a bound call must read the caller's array."""
    for declared, raw, value in zip(inputs, arguments, values, strict=True):
        if not hasattr(value, "flags"):
            continue
        if isinstance(raw, np.ndarray) and raw.dtype != value.dtype:
            raise InputError(
                f"input {declared.name!r} is {raw.dtype.str}; a bound input is read in place, so it must be "
                f"{value.dtype.str}: bind raw.astype({value.dtype.str!r}), and write to it"
            )
        is_aligned = not isinstance(value, np.ndarray) or value.flags.aligned
        if not value.flags.c_contiguous or not is_aligned:
            fault = "not aligned" if value.flags.c_contiguous else "not C-contiguous"
            fix = "np.ascontiguousarray(...)" if isinstance(value, np.ndarray) else "a C-contiguous copy"
            raise InputError(
                f"input {declared.name!r} is {fault}; a bound input is read in place: bind {fix} of it, and write to it"
            )


def bind_io(program: Program, function: Function, values: Sequence[Any], out: Any) -> IOBinding:
    """Bind a program to the input arrays ``values`` and the buffers ``out``. A new buffer replaces each None in ``out``.

    Raises InputError for a buffer that does not fit, or an output without a buffer whose size is known only at run time.
    """
    # Reversed, so that if a value is returned twice, its first index remains.
    outputs = {value.name: i for i, value in reversed(list(enumerate(function.outputs)))}
    inputs = {value.name: i for i, value in enumerate(function.inputs)}
    updates = {outputs[after]: inputs[before] for before, after in function.aliases}
    for target in updates.values():
        if isinstance(values[target], np.ndarray):
            check_updated(function.inputs[target].name, values[target])
    # The Function with the sizes of these inputs, and the types of its values if they are more precise than the plan's.
    sized, types = function, None
    device = program.plan.device
    if not all(isinstance(value.type, TensorType) and value.type.is_static for value in function.outputs):
        shapes = {v.name: x.shape for v, x in zip(function.inputs, values, strict=True) if isinstance(v.type, TensorType)}
        sized = passes.specialize(function, shapes)
        types = {name: sized.get_type(name) for name in sized.value_names()}
    caller_buffers: Sequence[Any] = (None,) * len(sized.outputs)
    if out is not None:
        caller_buffers = check_buffers(out, sized.outputs, sized.inputs, values, device)
    buffers, returned = list(caller_buffers), list(caller_buffers)
    for index, value in enumerate(sized.outputs):
        if caller_buffers[index] is not None:
            continue
        if index in updates:
            returned[index] = values[updates[index]]
            buffers[index] = returned[index] if device == "cpu" else None  # None: the program on a device updates the input
        else:
            buffers[index] = returned[index] = _allocate_output(value, program)
    return IOBinding(program.bind(values, buffers, types), tuple(values), tuple(returned))


def _allocate_output(value: Value, program: Program) -> Any:
    """Allocate a buffer for an output. Raises InputError if it is not a tensor, or its size is known only at run time."""
    type_ = value.type
    if isinstance(type_, TensorType) and type_.is_static:
        dtype = np.dtype(object) if type_.dtype is DType.STRING else type_.dtype.numpy
        return program.allocate_output(type_.shape, dtype)  # type: ignore[arg-type]  # its shape is static
    if isinstance(type_, TensorType) or type_ is None:
        shown = "of unknown type" if type_ is None else str(type_)
        raise InputError(f"output {value.name!r} is {shown}, whose size is known only after a run; pass a buffer for it in out=")
    raise InputError(
        f"output {value.name!r} is {type_}, which cannot be written to an array; call the module instead of binding it"
    )
