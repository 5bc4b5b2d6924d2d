"""A worker process seen from outside: started, asked for turns, ended; a crash or a silence is a Failure."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from xrt.bench.jobs import PROFILE, TURN, Job, JobFailure, Start, Timeline, Turn
from xrt.engines.contract.registry import find_declaration, names
from xrt.processes import end, start_python

__all__ = ["BenchWorker"]

_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What the thread pools of NumPy, which the reference uses, read when they load. Engines declare those of their libraries."""


class BenchWorker:
    """A process that serves one job. Use as a context, which ends it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed in close()
        self._process = start_python(
            "xrt.bench.job_server:serve",
            environment=dict.fromkeys(_list_pools(), str(job.threads)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, timeout: float) -> Start | JobFailure:
        """Compile, call and warm up; fails when that takes longer than that many seconds."""
        answer = self._ask(self._job.to_line(), timeout)
        return answer if isinstance(answer, JobFailure) else Start.of(answer)

    def turn(self, timeout: float) -> Turn | JobFailure:
        """Take one turn."""
        answer = self._ask(TURN, timeout)
        return answer if isinstance(answer, JobFailure) else Turn.of(answer)

    def profile(self, timeout: float) -> Timeline | JobFailure:
        """Tell where the time of a call goes."""
        answer = self._ask(PROFILE, timeout)
        return answer if isinstance(answer, JobFailure) else Timeline.of(answer)

    def _ask(self, line: str, timeout: float) -> dict[str, Any] | JobFailure:
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018  # both are pipes
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            return JobFailure(self._ending())
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            self._process.kill()
            return JobFailure(f"no answer within its {timeout:g} s; give it more with --budget")
        answer = self._process.stdout.readline()
        if not answer:
            return JobFailure(self._ending())
        data = json.loads(answer)
        return JobFailure(data["reason"]) if data.pop("kind") == JobFailure.__name__ else data

    def _ending(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["it said nothing"]
        ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the process ended ({ended}): {said[-1]}"

    def close(self) -> None:
        """End the process, at once if it does not end by itself, and let go of what it holds."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close(pipe)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        end(self._process)
        self._errors.close()


def _list_pools() -> list[str]:
    return [*_POOLS, *(variable for name in names() for variable in find_declaration(name).thread_variables)]


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        pass  # what was not read any more is of no use to anyone
