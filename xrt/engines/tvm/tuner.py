"""The other side of `tuning`: a process that runs MetaSchedule over loop nests, and judges what it finds.

A request comes in, and reports of what is going on go out, and in the end a record per loop nest.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir import dlight
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str

from xrt.comparison import compare, tolerance_for
from xrt.engines.tvm.schedules import CpuSchedule
from xrt.engines.tvm.tuning_records import TuningRecord, apply_record, is_plain
from xrt.measure.interleave import take_turns
from xrt.measure.statistics import compute_round_ratio
from xrt.processes.ipc import Message
from xrt.processes.server import Request, serve

__all__ = ["main", "select_schedule", "tune"]

Tell = Callable[[str], object]

SEED = 20
"""Of the search and of the numbers that candidates are run on: the same request tries the same schedules."""
BUILD_SECONDS, RUN_SECONDS = 90.0, 30.0
"""What a trial may take; the first build of a worker process counts its start, the import of TVM among it."""
AT_ONCE = 16
"""The most trials between two looks at what the last ones have shown."""
ROUNDS = 7
"""Turns in which the quickest schedule and the default run alternately."""
GAIN = 0.97
"""Times of the default below which a schedule counts as quicker, in the median turn."""


def tune(
    functions: Mapping[str, tirx.PrimFunc], target: Target, trials: int, threads: int, tell: Tell
) -> dict[str, TuningRecord]:
    """Return a record for each loop nest, after so many trials in all; the most promising loop nest gets the next ones."""
    tell(f"{trials} trials of {len(functions)} loop nest{'s' * (len(functions) != 1)}")
    tasks = [_task(name, function, target, threads, SEED + n) for n, (name, function) in enumerate(functions.items())]
    database = ms.database.MemoryDatabase()
    ms.tune_tasks(
        tasks=tasks,
        task_weights=[1.0] * len(tasks),
        work_dir="",
        max_trials_global=trials,
        num_trials_per_iter=max(1, min(AT_ONCE, math.ceil(trials / len(tasks)))),
        builder=ms.builder.LocalBuilder(max_workers=threads, timeout_sec=BUILD_SECONDS),
        runner=ms.runner.LocalRunner(timeout_sec=RUN_SECONDS),
        database=database,
        cost_model="random",
        measure_callbacks=[*ms.MeasureCallback.create("default"), LogWriter([*functions], trials, tell)],
    )
    found: dict[str, TuningRecord] = {}
    for task, (name, function) in zip(tasks, functions.items(), strict=True):
        tell(f"judging {name}")
        found[name] = select_schedule(function, _trace(database.query_tuning_record(task.mod, target, name)), target, trials)
    return found


def _task(name: str, function: tirx.PrimFunc, target: Target, threads: int, seed: int) -> Any:
    quiet = logging.getLogger("xrt.engines.tvm.tuner")
    return ms.TuneContext(
        mod=function,
        target=target,
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name=name,
        rand_state=seed,
        num_threads=threads,
        logger=quiet,
    ).clone()


@derived_object
class LogWriter(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]  # TVM has no types
    """Tells of each batch of trials."""

    def __init__(self, names: Sequence[str], trials: int, tell: Tell) -> None:
        super().__init__()
        self.names = names
        self.trials = trials
        self.tell = tell
        self.done = 0
        self.best: dict[str, float] = {}

    def apply(
        self, task_scheduler: Any, task_id: int, measure_candidates: Any, builder_results: Any, runner_results: Any
    ) -> None:
        """Count the trials, and tell the best time of the nest that they were of."""
        name = self.names[task_id]
        self.done += len(runner_results)
        times = [median(map(float, result.run_secs)) for result in runner_results if result.run_secs]
        self.best[name] = min([*times, self.best.get(name, math.inf)])
        self.tell(f"trial {self.done} of {self.trials}, {name} at {1e3 * self.best[name]:.3g} ms")


def _trace(record: Any) -> str | None:
    """Return what `records.scheduled` reads of a record; None where it cannot be said in JSON, or would not be taken."""
    if record is None:
        return None
    trace = _plain(record.trace.as_json())
    try:
        return json.dumps(trace) if is_plain(trace) else None
    except TypeError:
        return None


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_plain(value) for value in data]
    if isinstance(data, tirx.IntImm):
        return int(data)
    return float(data) if isinstance(data, tirx.FloatImm) else data


# ---------------------------------------------------------------------- judging


def select_schedule(function: tirx.PrimFunc, trace: str | None, target: Target, trials: int) -> TuningRecord:
    """Return the record: it has the trace if the trace computes what the default does, and is quicker in alternate turns."""
    threads = int(os.environ["TVM_NUM_THREADS"])
    with target:
        default = dlight.ApplyDefaultSchedule(CpuSchedule(threads))(IRModule({"main": function}))["main"]
    base = _built(default, target)
    given = _numbers(function)
    if trace is None:
        return TuningRecord(trials, math.inf, _seconds(base, given), None)
    rival = _built(apply_record(function, trace), target)
    if not _agree(base, rival, given):
        return TuningRecord(trials, math.inf, _seconds(base, given), None)
    taken = take_turns({"rival": partial(_seconds, rival, given), "default": partial(_seconds, base, given)}, ROUNDS)
    is_quicker = compute_round_ratio(*taken.values()).median < GAIN
    mine, theirs = map(median, taken.values())
    return TuningRecord(trials, mine, theirs, trace if is_quicker else None)


def _built(function: tirx.PrimFunc, target: Target) -> Any:
    return tvm.tirx.build(IRModule({"main": function.with_attr("global_symbol", "main")}), target=target)


def _numbers(function: tirx.PrimFunc) -> list[Any]:
    """Return an array for each argument, results included."""
    random = np.random.default_rng(SEED)
    return [random.uniform(0.1, 1.0, tuple(map(int, b.shape))).astype(str(b.dtype)) for b in function.params]


def _agree(base: Any, rival: Any, given: Sequence[Any]) -> bool:
    mine, theirs = ([tvm.runtime.tensor(array) for array in given] for _ in range(2))
    rival["main"](*mine)
    base["main"](*theirs)
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(mine, theirs, strict=True)]
    return all(compare(a, b, tolerance_for(b.dtype, "network")) for a, b in pairs)


def _seconds(built: Any, given: Sequence[Any]) -> float:
    timer = built.time_evaluator("main", tvm.cpu(), number=1, repeat=3, min_repeat_ms=20)
    return float(timer(*[tvm.runtime.tensor(array) for array in given]).median)


# ---------------------------------------------------------------------- the process


def main(handle: str) -> None:
    """Serve the socket of that number: records, as text, for the loop nests of a request."""

    def answer(request: Request) -> Message:
        asked = request.message
        target = from_json_graph_str(asked["target"])
        found = tune(_functions(asked["loops"]), target, asked["trials"], asked["threads"], request.report)
        return {name: str(record) for name, record in found.items()}

    serve(handle, answer)


def _functions(text: str) -> dict[str, tirx.PrimFunc]:
    return {gvar.name_hint: function for gvar, function in from_json_graph_str(text).functions_items()}
