"""Batch jobs: rows of a table go in, and the same rows with a model's outputs come out.

Rows become inputs by the names of columns, are grouped by their sizes, run, and return in their order. A job writes its results
in parts, each whole or not at all, so that it can be continued. Nothing here starts a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.integrations.batch.job import BatchJob as BatchJob
    from xrt.integrations.batch.job import JobReport as JobReport
    from xrt.integrations.batch.job import run_job as run_job
    from xrt.integrations.batch.model import RowModel as RowModel
    from xrt.integrations.batch.model import open_model as open_model

_MODULES = {
    "BatchJob": "xrt.integrations.batch.job",
    "JobReport": "xrt.integrations.batch.job",
    "RowModel": "xrt.integrations.batch.model",
    "open_model": "xrt.integrations.batch.model",
    "run_job": "xrt.integrations.batch.job",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
