"""Batch jobs: append a model's outputs to the rows of tables.

Columns are matched to inputs by name; rows are grouped by shape, run, and returned in order. A job writes its results in atomic
parts, so that it can be resumed. Runs in this process; `xrt.integrations.ray` uses a cluster.
"""

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.integrations.batch.job import BatchJob as BatchJob, JobReport as JobReport, run_job as run_job
    from xrt.integrations.batch.model import RowModel as RowModel, open_model as open_model

__all__, __getattr__, __dir__ = load_lazily(__name__)
