"""Run a comparison: each candidate in a separate process, alone until warm, then all in turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self, TypeAlias, TypeVar

import msgspec
import numpy as np

from xrt.bench.job_server import BenchOptions, Job, JobFailure, StartupReport
from xrt.bench.report import Agreement, BenchReport, Group, ReportRow, Verdict, describe
from xrt.bench.targets import BenchCandidate, BenchTarget
from xrt.comparison import compare_all, tolerance_for
from xrt.engines.contract.registry import find_declaration, names
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.engines.toolkit.shared_values import read_values
from xrt.graph import FrozenDict
from xrt.html.views import MeanCall
from xrt.measure.statistics import Timing, compute_ratio_of_medians, judge_ratio, rotate
from xrt.processes.client import RemoteError, WorkerLost, WorkerProcess, WorkerTimedOut

T = TypeVar("T")
REFERENCE_CANDIDATE = BenchCandidate((REFERENCE,))
Progress: TypeAlias = Callable[[str], None]
"""Called with a short description of the next step."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit NumPy's thread pools, which the reference uses. Engines declare those of their libraries."""


class BenchWorker:
    """A process that serves one job. Use it as a context manager."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # Libraries read these when they are loaded, so that they must be set before the process starts.
        variables = list(_THREAD_VARIABLES)
        for name in names():
            variables += find_declaration(name).thread_variables
        self._process = WorkerProcess("xrt.bench.job_server:main", environment=dict.fromkeys(variables, str(job.threads)))
        self.results: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, timeout: float) -> StartupReport | JobFailure:
        return self._ask({"do": "start", "job": msgspec.to_builtins(self._job)}, StartupReport, timeout)

    def turn(self, timeout: float) -> float | JobFailure:
        return self._ask({"do": "turn"}, float, timeout)

    def profile(self, timeout: float) -> MeanCall | JobFailure:
        return self._ask({"do": "profile"}, MeanCall, timeout)

    def _ask(self, message: dict[str, Any], response_type: type[T], timeout: float) -> T | JobFailure:
        """Send a request to the worker; convert its response to ``response_type``, and any failure to a JobFailure."""
        try:
            response, memory = self._process.ask(message, seconds=timeout)
        except WorkerTimedOut:
            return JobFailure(f"no answer within {timeout:g} s; allow more time with --time-limit")
        except WorkerLost as error:
            return JobFailure(str(error))
        except RemoteError as error:
            return JobFailure(str(error.restore()))
        if "results" in response:
            self.results = read_values(memory, response["results"])
        return msgspec.convert(response["answer"], response_type)

    def close(self) -> None:
        self._process.close()


def compare_engines(
    subjects: Sequence[BenchTarget],
    candidates: Sequence[BenchCandidate],
    threads: Sequence[int],
    settings: BenchOptions = BenchOptions(),
    progress: Progress = lambda step: None,
    finished: Callable[[Group], None] = lambda group: None,
) -> BenchReport:
    """Compare the candidates on each subject with each thread count; the row of a candidate that fails has the reason.

    ``progress`` is called with a description of each step, ``finished`` with each complete group. Results are compared with
    the reference engine's. All candidates' processes run at the same time, so memory must hold the model once per candidate.
    """
    groups: list[Group] = []
    started_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    for subject, count in itertools.product(subjects, threads):
        groups.append(_compare(subject, candidates, count, settings, progress))
        finished(groups[-1])
    return BenchReport(FrozenDict(describe()), FrozenDict(asdict(settings)), tuple(groups), started_at)


@dataclass(slots=True)
class _Runner:
    """The process and the measurements of one candidate during the comparison."""

    candidate: BenchCandidate
    worker: BenchWorker
    start: StartupReport | None = None
    reason: str = ""
    agreement: Agreement = field(default_factory=Agreement)
    rounds: list[float] = field(default_factory=list)
    timeline: MeanCall | None = None

    @property
    def runs(self) -> bool:
        return self.start is not None and not self.reason

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.rounds))


def _compare(
    subject: BenchTarget, candidates: Sequence[BenchCandidate], threads: int, settings: BenchOptions, progress: Progress
) -> Group:
    """Compare the candidates on one subject. The reference runs first, then each candidate alone, then all in turns."""
    group = Group(str(subject), subject.batch, threads, ())
    reference_settings = replace(settings, warm_seconds=0.0, device="cpu", devices=FrozenDict())
    job = Job(subject, REFERENCE_CANDIDATE, threads, reference_settings)
    with ExitStack() as stack:
        progress(f"{group.title}: the reference")
        with BenchWorker(job) as worker:  # ends before the candidates start, since they need its memory
            response = worker.start(settings.limit_seconds)
            expected = response.reason if isinstance(response, JobFailure) else worker.results
        runners = []
        for candidate in candidates:
            worker = stack.enter_context(BenchWorker(Job(subject, candidate, threads, settings)))
            runner = _Runner(candidate, worker)
            runners.append(runner)
            progress(f"{group.title}: {candidate} alone")
            _start_runner(runner, expected, settings)
        _take_turns(runners, settings, lambda turn: progress(f"{group.title}: round {turn + 1} of {settings.rounds}"))
        for runner in runners:
            if runner.runs:
                progress(f"{group.title}: {runner.candidate} region by region")
                timeline = runner.worker.profile(settings.limit_seconds)
                runner.timeline = None if isinstance(timeline, JobFailure) else timeline
    return _rank_rows(group, runners)


def _check_results(results: list[Any], expected: list[Any] | str) -> Agreement:
    """Compare a candidate's first results with ``expected``, the reference's results or the reason why there are none."""
    if isinstance(expected, str):
        return Agreement(f"there is no reference: {expected}")
    checks = []
    for result, reference in zip(results, expected, strict=True):
        # Errors accumulate over the model, so the tolerance is larger than for one operator.
        tolerance = tolerance_for(reference.dtype, "network") if isinstance(reference, np.ndarray) else None
        checks.append(compare_all([result], [reference], tolerance))
    message = next((check.message for check in checks if not check), "")
    absolute = max((check.absolute for check in checks), default=0.0)
    relative = max((check.relative for check in checks), default=0.0)
    return Agreement(message, absolute, relative)


def _start_runner(runner: _Runner, expected: list[Any] | str, settings: BenchOptions) -> None:
    response = runner.worker.start(settings.limit_seconds)
    if isinstance(response, JobFailure):
        runner.reason = response.reason
        runner.worker.close()
        return
    runner.start = response
    runner.agreement = _check_results(runner.worker.results, expected)
    runner.worker.results.clear()  # they may be large


def _take_turns(runners: Sequence[_Runner], settings: BenchOptions, progress: Callable[[int], None]) -> None:
    """Run one turn of each candidate per round. A candidate that fails, or whose time is used up, has no further turns."""
    # Each candidate has a separate time limit, so that a slow candidate does not cost the others any rounds.
    remaining = {id(runner): settings.limit_seconds for runner in runners if runner.runs}
    for turn in range(settings.rounds):
        progress(turn)
        active = [runner for runner in runners if remaining.get(id(runner), 0) > 0]
        # Rotating the order spreads drift of the machine over all candidates.
        for runner in rotate(active, turn):
            response = runner.worker.turn(settings.limit_seconds)
            if isinstance(response, JobFailure):
                runner.reason, remaining[id(runner)] = response.reason, 0.0
            else:
                runner.rounds.append(response)
                remaining[id(runner)] -= max(response, settings.turn_seconds)


def _rank_rows(group: Group, runners: Sequence[_Runner]) -> Group:
    """Add a row per candidate: fastest first, then wrong ones, then failed ones."""
    # Ratios are to the fastest candidate with correct results.
    correct = [runner for runner in runners if runner.runs and not runner.agreement.is_wrong]
    fastest = min(correct, key=lambda runner: runner.timing.median, default=None)
    ranks = {"wrong": 1, "failed": 2}  # 0 for all others
    rows = [_make_row(runner, fastest) for runner in runners]
    rows.sort(key=lambda row: (ranks.get(row.verdict, 0), row.median_seconds or 0.0))
    return replace(group, rows=tuple(rows))


def _make_row(runner: _Runner, fastest: _Runner | None) -> ReportRow:
    """Convert a runner to its row; ``fastest`` is None if no candidate has correct results."""
    if not runner.runs:
        return ReportRow(runner.candidate, "failed", runner.reason, runner.start)
    timing, ratio = runner.timing, None
    verdict: Verdict = "wrong"
    if fastest is not None and not runner.agreement.is_wrong:
        ratio = compute_ratio_of_medians(timing.seconds, fastest.timing.seconds)
        verdict = "fastest" if runner is fastest else judge_ratio(ratio)
    return ReportRow(
        runner.candidate,
        verdict,
        runner.agreement.message,
        runner.start,
        runner.agreement,
        timing.seconds,
        timing.median,
        timing.interval,
        ratio,
        runner.timeline,
    )
