"""XRT on Ray: batch jobs and services, where Ray runs the processes and XRT the models.

    from xrt.ray import Predictor

    rows.map_batches(Predictor, fn_constructor_args=["model.xrt"], num_cpus=1, batch_size=Predictor.batch("model.xrt"))

Once this is imported, a module in an actor or a task has the threads that Ray grants it, unless it is made with ``threads=``.
Names load on first use. What needs Ray says so where Ray is missing: pip install 'xrt-engine[ray]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.integrations.ray import count_granted_threads
from xrt.lazy_names import load_lazily
from xrt.runtime import set_budget_source

if TYPE_CHECKING:
    from xrt.integrations.ray import (
        Predictor as Predictor,
        deployment as deployment,
        predict as predict,
        run_cluster_job as run_cluster_job,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
set_budget_source(count_granted_threads)
