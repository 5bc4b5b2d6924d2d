"""A batch job: its description, the computation of a part, the folder of its results, and the threads that run it here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from xrt.engines.toolkit.libraries import shorten
from xrt.errors import BatchJobError, EngineError, InputError
from xrt.formats.output import remove_dead_temporaries, replace_file
from xrt.integrations.batch.model import ERROR, OnError, RowModel, choose_batch, open_model
from xrt.integrations.batch.tables import Chunk, RowFile, list_chunks, list_row_files, read_chunk
from xrt.runtime import count_available_cores

ERROR_COUNT_KEY = "xrt_errors"
"""Key in the schema metadata of a part for the number of its rows without outputs."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The arguments of a job. The manifest of the folder has the arguments and the row files, which determine the results."""

    model: str
    """Absolute path of a bundle or an ONNX file, valid on every machine of the job."""
    engine: tuple[str, ...] = ()
    # The next four are as in `RowModel`.
    columns: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    keep: tuple[str, ...] | None = None
    on_error: OnError = "raise"
    part_rows: int | None = None
    """Rows per part; by default chosen by size."""
    batch: int | None = None
    """Rows per call; may change when a job is resumed."""

    def open_model(self, threads: int | None) -> RowModel:
        """Load the model with a budget of ``threads``; None stands for the default budget."""
        module = open_model(self.model, engine=list(self.engine), threads=threads)
        batch = self.batch or choose_batch(module)
        options = {"columns": self.columns, "outputs": self.outputs, "keep": self.keep, "on_error": self.on_error}
        return RowModel(module, batch=batch, **options)  # type: ignore[arg-type]  # the fields have these types


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """The result of a chunk whose part has been written."""

    chunk: Chunk
    errors: int
    engine: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class JobReport:
    """Progress or result of a job."""

    rows: int
    present: int
    """Rows written by an earlier run."""
    written: int
    errors: int
    parts: int
    engine: str = field(default="", compare=False)

    def add(self, part: ChunkReport) -> JobReport:
        """Return the report with one more part. The report's engine is that of the latest part."""
        rows = part.chunk.stop - part.chunk.start
        return replace(
            self, written=self.written + rows, errors=self.errors + part.errors, parts=self.parts + 1, engine=part.engine
        )


def run_chunk(job: BatchJob, model: RowModel, folder: str, chunk: Chunk) -> ChunkReport:
    """Compute the rows of a chunk and write its part atomically. A second call replaces the part by an equal one.

    Raises InputError or EngineError, with a note on the rows, if a row fails, unless ``job.on_error`` is "column".
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from xrt.integrations.batch.tables import from_arrow, to_arrow

    table = read_chunk(chunk)
    # Convert only the columns that the model reads; the others are passed on as Arrow columns.
    used = {row_input.column for row_input in model.inputs}
    columns = {name: from_arrow(table.column(name)) for name in table.column_names if name in used}
    passed_columns = model.list_passed_columns(table.column_names)
    try:
        results, errors = model.predict(columns)
    except (InputError, EngineError) as error:
        error.add_note(f"in the rows from {chunk.start} on of {chunk.path}, which are counted from 0 here")
        raise
    result_columns = {value.name: to_arrow(value, results[value.name], list(errors)) for value in model.outputs}
    if job.on_error == "column":
        result_columns[ERROR] = pa.array([errors.get(row) for row in range(table.num_rows)], pa.string())
    part = table.select(passed_columns)
    for name, column in result_columns.items():
        part = part.append_column(name, column)
    # Stored in the part: a job that is resumed counts the errors without reading rows.
    part = part.replace_schema_metadata({**(part.schema.metadata or {}), ERROR_COUNT_KEY: str(len(errors))})
    replace_file(Path(folder, chunk.part), lambda file: pq.write_table(part, file, write_page_checksum=True))
    return ChunkReport(chunk, len(errors), model.module.engines[0])


def count_part_errors(part: Path, chunk: Chunk) -> int | None:
    """Count the rows without outputs in a part; None if it is damaged. Reads the whole file to verify its checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            footer = file.metadata
            for group in range(footer.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException):
        return None
    errors = (footer.metadata or {}).get(ERROR_COUNT_KEY.encode(), b"")
    is_complete = footer.num_rows == chunk.stop - chunk.start
    return int(errors) if is_complete and errors.isdigit() else None


MANIFEST = "_xrt_batch.json"
"""Describes the job of a folder. Table readers skip names that begin with an underscore."""
MANIFEST_VERSION = 2
"""Version of the manifest. A job is not resumed in a folder whose manifest has another version."""
_DAMAGE_REMEDY = "remove the folder to run the whole job again, or use another folder"


@contextmanager
def claim_folder(
    path: str | os.PathLike[str], job: BatchJob, rows: Sequence[str]
) -> Iterator[tuple[str, list[Chunk], JobReport]]:
    """Lock the results folder of a job; yield its absolute path, the chunks without a part and the initial report.

    Raises BatchJobError if another process has the lock, or if the folder has results of a job with other arguments.
    """
    folder = Path(path).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BatchJobError(f"{folder} is being filled by another process; wait for it, or use another folder") from None
    try:
        yield os.fspath(folder), *_find_missing(folder, job, list_row_files(rows))
    finally:
        lock.release()


def _find_missing(folder: Path, job: BatchJob, files: Sequence[RowFile]) -> tuple[list[Chunk], JobReport]:
    """Find the chunks without a valid part; return them and a report of the other chunks. Write the manifest of a new job."""
    chunks = list_chunks(files, job.part_rows)
    description = _describe(job, files, chunks)
    manifest = folder / MANIFEST
    parts = {part.name: part for part in folder.glob("part-*.parquet")}
    if not parts:  # a job that wrote no parts may be replaced
        replace_file(manifest, lambda file: file.write(json.dumps(description, indent=1).encode()))
    # Without the manifest it is unknown whether the parts belong to this job.
    elif not manifest.exists():
        raise BatchJobError(f"{folder} has parts without {MANIFEST}, which names their job; use another folder")
    else:
        _check_same_job(manifest, description)
    remove_dead_temporaries(folder)  # of a process that was killed while it wrote
    errors = {chunk: count_part_errors(parts[chunk.part], chunk) for chunk in chunks if chunk.part in parts}
    # Damaged parts are computed again, like missing ones.
    missing = [chunk for chunk in chunks if errors.get(chunk) is None]
    total = sum(file.rows for file in files)
    present = total - sum(chunk.stop - chunk.start for chunk in missing)
    return missing, JobReport(rows=total, present=present, written=0, errors=sum(filter(None, errors.values())), parts=0)


def _check_same_job(manifest: Path, current: Mapping[str, Any]) -> None:
    """Raise BatchJobError if the manifest of a folder is damaged, or has other arguments than ``current``."""
    try:
        stored = json.loads(manifest.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BatchJobError(f"{manifest} is damaged ({error}); {_DAMAGE_REMEDY}") from error
    if not isinstance(stored, dict):
        raise BatchJobError(f"{manifest} is damaged (it is not a JSON object); {_DAMAGE_REMEDY}")
    for name in current:
        if stored.get(name) != current[name]:
            old, new = (shorten(json.dumps(job.get(name)), 200) for job in (stored, current))
            raise BatchJobError(
                f"{manifest.parent} has results of another job: {name} was {old} and is {new}; "
                "continue it with the same arguments and files, or use another folder"
            )


def _describe(job: BatchJob, files: Sequence[RowFile], chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Create the manifest of a job: everything that its results depend on, as JSON values."""
    status = Path(job.model).stat()
    model = {"path": job.model, "bytes": status.st_size, "modified": status.st_mtime_ns}
    # Without the batch size: the rows of a call must not depend on each other, so it changes no result.
    arguments = {name: value for name, value in asdict(job).items() if name not in ("model", "batch")}
    rows = [asdict(file) for file in files]
    description = {"format": MANIFEST_VERSION, "model": model, **arguments, "rows": rows, "parts": len(chunks)}
    return json.loads(json.dumps(description))  # type: ignore[no-any-return]  # with lists for tuples, as in a file that is read


def run_job(
    job: BatchJob,
    rows: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[JobReport], object] = lambda report: None,
) -> JobReport:
    """Compute the missing parts of a job with ``workers`` threads (default: one per core), which share the cores.

    ``progress`` is called with the report after each part. Raises BatchJobError for a folder of another job, and InputError
    or EngineError if a row fails; the parts that were written remain.
    """
    with claim_folder(folder, job, rows) as (path, missing, present):
        if not missing:
            return present
        count = min(workers or count_available_cores(), len(missing))
        # All threads call one module, and each call has an equal share of the cores.
        model = job.open_model(max(1, count_available_cores() // count))
        report = present
        with model.module, ThreadPoolExecutor(count, "xrt-batch") as pool:
            try:
                for done in as_completed([pool.submit(run_chunk, job, model, path, chunk) for chunk in missing]):
                    report = report.add(done.result())
                    progress(report)
            finally:  # after an error no other chunk begins
                pool.shutdown(cancel_futures=True)
        return report
