"""XRT on Ray: batch jobs and services. Ray runs the processes, and XRT the models in them.

    from xrt.ray import Predictor

    rows.map_batches(Predictor, fn_constructor_args=["model.xrt"], num_cpus=1, batch_size=Predictor.batch("model.xrt"))

After this import, a module in an actor or a task uses as many threads as Ray assigns CPUs to it, unless ``threads=`` is set.
`run_cluster_job` and `deployment` raise OptionError if Ray is not installed: pip install 'xrt-engine[ray]'.
"""

from xrt.integrations.ray import Predictor, count_granted_threads, deployment, predict, run_cluster_job
from xrt.runtime import set_budget_source

__all__ = ["Predictor", "deployment", "predict", "run_cluster_job"]
# Also for modules that the user's code creates in an actor: Ray itself limits only libraries that read OMP_NUM_THREADS.
set_budget_source(count_granted_threads)
