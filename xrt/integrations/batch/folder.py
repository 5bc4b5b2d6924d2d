"""The folder of a job's results: a manifest with the arguments and the files of rows, and one file for each range of rows.

A part appears whole or not at all, and what is missing is what has no file. So a job that was killed is continued by the same
command, and no row is lost or written twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from xrt.errors import BatchJobError
from xrt.formats.output import remove_dead_temporaries, replace_file
from xrt.integrations.batch.fragments import Chunk, RowFile, list_chunks, list_row_files
from xrt.integrations.batch.job import BatchJob, JobReport, count_part_errors

__all__ = ["JobFolder"]

MANIFEST = "_xrt_batch.json"
"""Readers of tables skip a name that begins so."""
FORMAT = 2
_AFTER_DAMAGE = "remove the folder to run the whole job again, or use another one"


class JobFolder:
    """The folder of a job's results, locked by the process that fills it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._lock = FileLock(self.path / ".lock")

    def claim(self, job: BatchJob, rows: Sequence[str]) -> tuple[list[Chunk], JobReport]:
        """Lock the folder, and return the chunks that have no part, with what the job is.

        Raises BatchJobError where another process fills it, and where it has results of other arguments.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BatchJobError(f"{self.path} is being filled by another process; wait for it, or use another folder") from None
        try:
            return self._compare(job, list_row_files(rows))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process fill the folder."""
        self._lock.release()

    def _compare(self, job: BatchJob, files: Sequence[RowFile]) -> tuple[list[Chunk], JobReport]:
        chunks = list_chunks(files, job.part_rows)
        wanted = _describe(job, files, chunks)
        manifest = self.path / MANIFEST
        parts = {part.name: part for part in self.path.glob("part-*.parquet")}
        if not parts:  # what another job began, and wrote nothing, holds no result
            replace_file(manifest, lambda file: file.write(json.dumps(wanted, indent=1).encode()))
        elif not manifest.exists():
            raise BatchJobError(f"{self.path} has parts, and no {MANIFEST} says of which job; use another folder")
        else:
            _check_equal(self.path, _read_manifest(manifest), wanted)
        remove_dead_temporaries(self.path)
        errors = {chunk: count_part_errors(parts[chunk.part], chunk) for chunk in chunks if chunk.part in parts}
        missing = [chunk for chunk in chunks if errors.get(chunk) is None]
        total = sum(file.rows for file in files)
        present = total - sum(chunk.stop - chunk.start for chunk in missing)
        return missing, JobReport(rows=total, present=present, written=0, errors=sum(filter(None, errors.values())), parts=0)


def _read_manifest(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BatchJobError(f"{path} is damaged ({error}); {_AFTER_DAMAGE}") from error
    if not isinstance(found, dict):
        raise BatchJobError(f"{path} is damaged (it holds no object of JSON); {_AFTER_DAMAGE}")
    return found


def _describe(job: BatchJob, files: Sequence[RowFile], chunks: Sequence[Chunk]) -> dict[str, Any]:
    status = Path(job.model).stat()
    model = {"path": job.model, "bytes": status.st_size, "modified": status.st_mtime_ns}
    settled = {name: value for name, value in asdict(job).items() if name not in ("model", "batch")}
    found = {"format": FORMAT, "model": model, **settled, "rows": [asdict(file) for file in files], "parts": len(chunks)}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # as it will be read


def _check_equal(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now:
        if was.get(name) != now[name]:
            raise BatchJobError(
                f"{folder} has results of another job: {name} was {_short(was.get(name))} and is {_short(now[name])}; "
                "continue it with the same arguments and files, or use another folder"
            )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
