"""A batch job on this machine alone: one module, and threads that each take a part at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeAlias

from xrt.integrations.batch.folder import JobFolder
from xrt.integrations.batch.job import BatchJob, ChunkReport, JobReport, run_chunk
from xrt.runtime import available_cores

__all__ = ["JobProgress", "run_job"]

JobProgress: TypeAlias = Callable[[JobReport], object]
"""Called with what has been done so far, after each part."""


def run_job(
    job: BatchJob,
    rows: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: JobProgress = lambda report: None,
) -> JobReport:
    """Write the parts of a job that its folder does not have yet; ``workers``, one for each core, share the cores.

    Raises BatchJobError for a folder of another job, InputError and EngineError where a row cannot be run. Parts that were
    written by then stay.
    """
    place = JobFolder(folder)
    missing, report = place.claim(job, rows)
    try:
        if not missing:
            return report
        count = min(workers or available_cores(), len(missing))
        model = job.open_model(max(1, available_cores() // count))
        with model.module, ThreadPoolExecutor(count, "xrt-batch") as pool:
            chunks = iter(missing)
            running: set[Future[ChunkReport]] = set()
            try:
                while True:
                    while len(running) < count and (chunk := next(chunks, None)) is not None:
                        running.add(pool.submit(run_chunk, job, model, os.fspath(place.path), chunk))
                    if not running:
                        return report
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for one in done:
                        report = report.add(one.result())
                        progress(report)
            finally:
                for one in running:
                    one.cancel()
    finally:
        place.close()
