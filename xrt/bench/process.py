"""A worker process seen from the comparison: started, asked for turns, ended; whatever it fails with is a JobFailure."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from xrt.bench.jobs import Job, JobFailure, Start, Timeline, Turn
from xrt.engines.contract.registry import find_declaration, names
from xrt.engines.toolkit.shared_values import read_values
from xrt.processes.client import RemoteError, WorkerLost, WorkerProcess, WorkerTimedOut

__all__ = ["BenchWorker"]

_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What the thread pools of NumPy, which the reference uses, read when they load. Engines declare those of their libraries."""


class BenchWorker:
    """A process that serves one job. Use as a context, which ends it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = WorkerProcess("xrt.bench.job_server:main", environment=dict.fromkeys(_list_pools(), str(job.threads)))
        self.results: list[Any] = []
        """What the first call computed, once it has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, timeout: float) -> Start | JobFailure:
        """Compile, call and warm up; fails when that takes longer than that many seconds."""
        answer = self._ask({"do": "start", "job": self._job.to_dict()}, timeout)
        return answer if isinstance(answer, JobFailure) else Start.from_dict(answer)

    def turn(self, timeout: float) -> Turn | JobFailure:
        """Take one turn."""
        answer = self._ask({"do": "turn"}, timeout)
        return answer if isinstance(answer, JobFailure) else Turn.from_dict(answer)

    def profile(self, timeout: float) -> Timeline | JobFailure:
        """Measure where the time of a call goes."""
        answer = self._ask({"do": "profile"}, timeout)
        return answer if isinstance(answer, JobFailure) else Timeline.from_dict(answer)

    def _ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any] | JobFailure:
        try:
            answer, memory = self._process.ask(message, seconds=timeout)
        except WorkerTimedOut:
            return JobFailure(f"no answer within its {timeout:g} s; give it more with --time-limit")
        except WorkerLost as error:
            return JobFailure(str(error))
        except RemoteError as error:
            return JobFailure(str(error.restore()))
        if "results" in answer:
            self.results = read_values(memory, answer.pop("results"))
        return answer

    def close(self) -> None:
        """End the process, at once if it does not end by itself."""
        self._process.close()


def _list_pools() -> list[str]:
    return [*_POOLS, *(variable for name in names() for variable in find_declaration(name).thread_variables)]
