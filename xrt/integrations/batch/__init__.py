"""Batch jobs: rows of a table go in, and the same rows with a model's outputs come out.

Rows become inputs by the names of columns, are grouped by their sizes, run, and return in their order. A job writes its results
in parts, each whole or not at all, so that it can be continued. Nothing here starts a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import list_names, load_lazily

if TYPE_CHECKING:
    from xrt.integrations.batch.job import BatchJob as BatchJob, JobReport as JobReport, run_job as run_job
    from xrt.integrations.batch.model import RowModel as RowModel, open_model as open_model

_MODULES = {
    "xrt.integrations.batch.job": ("BatchJob", "JobReport", "run_job"),
    "xrt.integrations.batch.model": ("RowModel", "open_model"),
}

__all__ = [*list_names(_MODULES)]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
