"""A batch job as a value, and the work of one part: the same on one machine and on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xrt.errors import EngineError, InputError
from xrt.formats.output import replace_file
from xrt.integrations.batch.fragments import Chunk, read_chunk
from xrt.integrations.batch.model import OnError, RowModel, choose_batch, open_model
from xrt.integrations.batch.results import ERROR

__all__ = ["BatchJob", "ChunkReport", "JobReport", "count_part_errors", "run_chunk"]


ERRORS = "xrt_errors"
"""Key of a part's number of rows without outputs, in the metadata of its schema."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What a job computes; with the files of rows, it decides the results."""

    model: str
    """An absolute path of a bundle or an ONNX file, valid on every machine of the job."""
    engine: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] | None = None
    keep: tuple[str, ...] | None = None
    on_error: OnError = "raise"
    part_rows: int | None = None
    """Rows in a part; without it, by their size."""
    batch: int | None = None
    """Rows in a call; it may differ when a job is continued."""

    def open_model(self, threads: int | None) -> RowModel:
        """Return the model, loaded for that many threads."""
        module = open_model(self.model, engine=list(self.engine), threads=threads)
        batch = self.batch or choose_batch(module)
        options = {"columns": self.columns, "outputs": self.outputs, "keep": self.keep, "on_error": self.on_error}
        return RowModel(module, batch=batch, **options)  # type: ignore[arg-type]  # the fields have these types


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """One part that was written."""

    chunk: Chunk
    errors: int
    """Rows without outputs."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a run of a job did."""

    rows: int
    """Of all files."""
    present: int
    """Rows that an earlier run had written."""
    written: int
    """Rows of this run."""
    errors: int
    """Rows without outputs, those of an earlier run too."""
    parts: int

    def add(self, done: ChunkReport) -> JobReport:
        """Return the report with one more part."""
        rows = done.chunk.stop - done.chunk.start
        return replace(self, written=self.written + rows, errors=self.errors + done.errors, parts=self.parts + 1)


def run_chunk(job: BatchJob, model: RowModel, folder: str, chunk: Chunk) -> ChunkReport:
    """Run the rows of a chunk and write its part; run again, it replaces the part by an equal one."""
    import pyarrow.parquet as pq

    from xrt.integrations.batch.tables import add_columns, from_arrow, to_arrow

    table = read_chunk(chunk)
    wanted = {one.column for one in model.inputs}
    columns = {name: from_arrow(table.column(name)) for name in table.column_names if name in wanted}
    kept = model.list_kept(table.column_names)
    try:
        results, errors = model.predict(columns)
    except (InputError, EngineError) as error:
        error.add_note(f"in the rows from {chunk.start} on of {chunk.path}, which are counted from 0 here")
        raise
    made = {value.name: to_arrow(value, results[value.name], list(errors)) for value in model.outputs}
    if job.on_error == "column":
        made[ERROR] = _list_reasons(errors, table.num_rows)
    part = add_columns(table, kept, made)
    part = part.replace_schema_metadata({**(part.schema.metadata or {}), ERRORS: str(len(errors))})
    replace_file(Path(folder, chunk.part), lambda file: pq.write_table(part, file, write_page_checksum=True))
    return ChunkReport(chunk, len(errors))


def count_part_errors(part: Path, chunk: Chunk) -> int | None:
    """How many rows of a part have no outputs; None for a part that is damaged, as far as its footer tells."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(part)
    except (OSError, pa.ArrowException):
        return None
    errors = (footer.metadata or {}).get(ERRORS.encode(), b"")
    return int(errors) if footer.num_rows == chunk.stop - chunk.start and errors.isdigit() else None


def _list_reasons(errors: Mapping[int, str], count: int) -> Any:
    import pyarrow as pa

    return pa.array([errors.get(row) for row in range(count)], pa.string())
