"""Run a batch job on a Ray cluster: each task computes a few parts, and is repeated elsewhere if its machine is lost.

A task costs Ray about 30 ms of CPU time. It gets consecutive parts, so that a row group is read once for all of them. Tasks get
smaller towards the end, since the slowest one determines the total time: guided self-scheduling (Polychronopoulos and Kuck, IEEE
Transactions on Computers C-36, 1987).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from xrt.errors import BatchJobError, XRTError
from xrt.integrations.batch.job import BatchJob, ChunkReport, JobReport, claim_folder, run_chunk
from xrt.integrations.batch.model import stamp_model
from xrt.integrations.batch.tables import Chunk
from xrt.integrations.ray.predictor import count_granted_threads, import_ray, load_once

AHEAD = 2
"""Submitted tasks per task that can run."""
SHARE = 2
"""Each new task gets 1 / (SHARE * workers) of the remaining chunks."""
MOST_CHUNKS = 8
"""Maximum chunks per task: the unit of recomputation after a loss, and of progress reports."""


def run_cluster_job(
    job: BatchJob,
    rows: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    address: str | None = "auto",
    workers: int | None = None,
    num_cpus: int = 1,
    progress: Callable[[JobReport], object] = lambda report: None,
) -> JobReport:
    """Compute the missing parts of a job with Ray tasks of ``num_cpus`` CPUs each.

    The folder, the model and the row files must have the same paths on every machine. At most ``workers`` tasks run at a time, by
    default as many as the cluster has CPUs for. ``address`` is passed to `ray.init` unless Ray is connected. Raises BatchJobError
    if the cluster cannot be reached or is lost, and otherwise like `xrt.integrations.batch.run_job`.
    """
    ray = import_ray()
    with claim_folder(folder, job, rows) as (path, missing, report):
        if not missing:
            return report
        is_local_cluster = not ray.is_initialized()
        if is_local_cluster:
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise BatchJobError(f"there is no cluster of Ray at {address!r}: {error}; start one: ray start --head") from error
        try:
            return _run(ray, job, missing, path, report, workers, num_cpus, progress)
        finally:
            if is_local_cluster:
                ray.shutdown()


def _run(
    ray: Any,
    job: BatchJob,
    missing: Sequence[Chunk],
    folder: str,
    report: JobReport,
    workers: int | None,
    num_cpus: int,
    progress: Callable[[JobReport], object],
) -> JobReport:
    """Submit chunks, a few more than can run, and collect the reports."""
    task = ray.remote(num_cpus=num_cpus, max_retries=-1)(_run_in_task)
    submitted = 0
    running: set[Any] = set()
    try:
        while True:
            # Read each time: machines may join or leave.
            room = max(1, int(ray.cluster_resources().get("CPU", 1)) // num_cpus)
            limit = workers or AHEAD * room
            while len(running) < limit and submitted < len(missing):
                count = count_next_chunks(len(missing) - submitted, min(room, limit))
                running.add(task.remote(job, folder, missing[submitted : submitted + count]))
                submitted += count
            if not running:
                return report
            done, _ = ray.wait(list(running))
            for reference in done:
                running.discard(reference)
                for chunk_report in _get_reports(ray, reference):
                    report = report.add(chunk_report)
                    progress(report)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def count_next_chunks(remaining: int, workers: int) -> int:
    """The number of remaining chunks for the next task."""
    return min(MOST_CHUNKS, -(-remaining // (SHARE * workers)))


def _get_reports(ray: Any, reference: Any) -> list[ChunkReport]:
    try:
        return ray.get(reference)  # type: ignore[no-any-return]  # untyped
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, XRTError):
            raise error.cause from None
        raise BatchJobError(f"a part of the job failed: {error}") from error
    except ray.exceptions.RayError as error:
        raise BatchJobError(f"the cluster lost a part of the job: {error}; run the same command to continue") from error


def _run_in_task(job: BatchJob, folder: str, chunks: Sequence[Chunk]) -> list[ChunkReport]:
    threads = count_granted_threads()
    model = load_once(f"{job!r} {stamp_model(job.model)} {threads}", lambda: job.open_model(threads))
    return [run_chunk(job, model, folder, chunk) for chunk in chunks]
