"""XRT on Ray: batch jobs and services, where Ray runs the processes and XRT the models.

    from xrt.ray import Predictor

    rows.map_batches(Predictor, fn_constructor_args=["model.xrt"], num_cpus=1, batch_size=Predictor.batch("model.xrt"))

Once this is imported, a module in an actor or a task has the threads that Ray grants it, unless it is made with ``threads=``.
What needs Ray says so where Ray is missing: pip install 'xrt-engine[ray]'.
"""

from xrt.integrations.ray import Predictor, count_granted_threads, deployment, predict, run_cluster_job
from xrt.runtime import set_budget_source

__all__ = ["Predictor", "deployment", "predict", "run_cluster_job"]
set_budget_source(count_granted_threads)
