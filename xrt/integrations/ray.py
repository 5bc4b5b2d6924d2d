"""Modules on Ray, each with as many threads as Ray assigns CPUs to its process.

`Predictor` and `predict` are for Ray Data, `run_cluster_job` for ``xrt batch --address``, `deployment` for Ray Serve.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.errors import BatchJobError, OptionError, XRTError, did_you_mean
from xrt.integrations.batch.model import OnError, RowModel, choose_batch, open_model, stamp_model

if TYPE_CHECKING:
    from xrt.integrations.batch.job import BatchJob, ChunkReport, JobReport
    from xrt.integrations.batch.tables import Chunk

TASKS_PER_SLOT = 2
"""Tasks to submit per task that can run at once, so that no CPU waits for its next task to arrive."""
REMAINING_SHARE = 2
"""Each new task gets 1 / (REMAINING_SHARE * workers) of the remaining chunks."""
MAX_CHUNKS_PER_TASK = 8
"""Maximum chunks per task. If a machine is lost, its tasks are computed again; progress is reported after each task."""
QUEUED_PER_ONGOING = 2
"""Requests that each of Ray's proxies queues per request that a replica processes. Further requests get status 503."""
Columns: TypeAlias = "dict[str, np.ndarray[Any, Any]]"


def import_ray() -> Any:
    """Import Ray; raises OptionError with the pip command if Ray is missing."""
    try:
        import ray
    except ImportError as error:
        raise OptionError(f"xrt.ray needs Ray, which cannot be imported ({error}): pip install 'xrt-engine[ray]'") from error
    return ray


def count_granted_threads() -> int | None:
    """Count the CPUs that Ray assigned to this actor or task, at least 1, for its thread budget; None in other processes.

    Ray itself does not set CPU affinity: it limits only thread pools that read ``OMP_NUM_THREADS``.
    """
    ray = sys.modules.get("ray")  # actors and tasks have imported Ray; other processes must not import it here
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # the driver, which may use the whole machine
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 0)))


class Predictor:
    """A class for `ray.data.Dataset.map_batches`: loads a bundle or an ONNX file once, and adds the model's outputs to batches.

    ``model`` is a path that exists on every machine of the cluster. The thread budget is Ray's ``num_cpus`` unless ``threads`` is
    set. ``columns`` maps inputs to columns if their names differ, and ``outputs`` lists the outputs or maps them to columns.
    ``keep`` lists the columns to pass on, by default all columns that fill no input. ``batch`` limits the rows per call. Rows may
    have different shapes along dynamic axes. With ``on_error="column"`` rows that fail get a reason in the column ``error``.
    ``engine`` and ``options`` are as in `xrt.load` or XRTModule.

    Raises OptionError for an invalid option; a call raises InputError or EngineError that names the row.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        engine: Any = (),
        threads: int | None = None,
        columns: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        granted = count_granted_threads() if threads is None else threads
        self.module = open_model(model, engine=engine, threads=granted, **options)
        self._rows = RowModel(self.module, columns=columns, outputs=outputs, keep=keep, batch=batch, on_error=on_error)

    def __call__(self, batch: Columns) -> Columns:
        """Add the outputs as columns to a batch in Ray Data's format "numpy"."""
        if not isinstance(batch, dict):
            raise OptionError(
                f"Predictor takes batches of batch_format='numpy', which is the default; got {type(batch).__name__}"
            )
        return self._rows(batch)

    @staticmethod
    def batch(model: str | os.PathLike[str], *, engine: Any = ()) -> int:
        """Choose the ``batch_size`` of `map_batches`: the one that the model declares or was tuned for, else a default.

        Loads the model without compiling it.
        """
        with open_model(model, engine=engine) as module:
            return choose_batch(module)


def predict(batch: Columns, *, model: str, **options: Any) -> Columns:
    """Add the model's outputs to a batch: a function for `ray.data.Dataset.map_batches` with the ``options`` of `Predictor`.

    The model is loaded once per process and reused by later tasks until its file changes. If a machine is lost, its tasks run on
    other machines, even if the job uses all CPUs; an actor of `Predictor` would need a free CPU to restart.
    """
    threads = count_granted_threads()
    # A process of Ray serves several jobs, whose options, CPUs and versions of the file may differ.
    key = f"{model!r} {stamp_model(model)} {options!r} {threads}"
    return load_once(key, lambda: Predictor(model, **{"threads": threads, **options}))(batch)  # type: ignore[no-any-return]


_LOADED: dict[str, Any] = {}
"""The models of this process by the key of `load_once`, oldest first."""


def load_once(key: str, load: Callable[[], Any]) -> Any:
    """Load a model, or return the model loaded earlier with this key, which must name everything that the model depends on.

    The cache has at most two models: the new one and the previous one.
    """
    model = _LOADED.get(key)
    if model is None:
        for old_key in list(_LOADED)[:-1]:
            _LOADED.pop(old_key, None)  # another thread may have removed it
        model = _LOADED[key] = load()
    return model


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
    default as many as the cluster has CPUs for. ``address`` is passed to `ray.init` unless Ray is connected already. Raises
    BatchJobError if the cluster cannot be reached or is lost, and the errors of `xrt.integrations.batch.run_job`.
    """
    from xrt.integrations.batch.job import claim_folder  # needs pyarrow, unlike the rest of this module

    ray = import_ray()
    with claim_folder(folder, job, rows) as (path, missing, report):
        if not missing:
            return report
        must_connect = not ray.is_initialized()
        if must_connect:
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise BatchJobError(f"there is no cluster of Ray at {address!r}: {error}; start one: ray start --head") from error
        try:
            return _run(ray, job, missing, path, report, workers, num_cpus, progress)
        finally:
            if must_connect:  # a connection of the caller stays open
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
    """Submit tasks for the ``missing`` chunks, a few more tasks than can run at once, and add their results to ``report``.

    A task costs Ray about 30 ms of CPU time, so it gets several chunks, which are consecutive to read a row
    group once. Tasks get smaller towards the end, since the slowest task determines the total time: guided self-scheduling
    (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987). If a machine is lost, its tasks are repeated.
    """
    task = ray.remote(num_cpus=num_cpus, max_retries=-1)(_run_in_task)
    submitted = 0
    running: set[Any] = set()
    try:
        while True:
            # Machines may join or leave during the job.
            slots = max(1, int(ray.cluster_resources().get("CPU", 1)) // num_cpus)
            limit = workers or TASKS_PER_SLOT * slots
            while len(running) < limit and submitted < len(missing):
                count = count_next_chunks(len(missing) - submitted, min(slots, limit))
                running.add(task.remote(job, folder, missing[submitted : submitted + count]))
                submitted += count
            if not running:
                return report
            completed, _ = ray.wait(list(running))  # waits for one task
            for reference in completed:
                running.discard(reference)
                for chunk_report in _get_reports(ray, reference):
                    report = report.add(chunk_report)
                    progress(report)
    finally:  # after an error or Ctrl-C, the cluster must not go on with the job
        for reference in running:
            ray.cancel(reference, force=True)


def count_next_chunks(remaining: int, workers: int) -> int:
    """Choose how many of the ``remaining`` chunks the next task gets, if ``workers`` tasks can run at once."""
    return min(MAX_CHUNKS_PER_TASK, math.ceil(remaining / (REMAINING_SHARE * workers)))


def _get_reports(ray: Any, reference: Any) -> list[ChunkReport]:
    """Get the reports of a task that has ended. Raises the task's XRTError, or BatchJobError for any other failure."""
    try:
        return ray.get(reference)  # type: ignore[no-any-return]  # untyped
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, XRTError):
            raise error.cause from None  # without Ray's wrapper and its traceback
        raise BatchJobError(f"a part of the job failed: {error}") from error
    except ray.exceptions.RayError as error:
        raise BatchJobError(f"the cluster lost a part of the job: {error}; run the same command to continue") from error


def _run_in_task(job: BatchJob, folder: str, chunks: Sequence[Chunk]) -> list[ChunkReport]:
    from xrt.integrations.batch.job import run_chunk

    threads = count_granted_threads()
    model = load_once(f"{job!r} {stamp_model(job.model)} {threads}", lambda: job.open_model(threads))
    return [run_chunk(job, model, folder, chunk) for chunk in chunks]


def deployment(
    model: Any,
    *,
    name: str = "xrt",
    num_cpus: float = 1,
    engine: Any = None,
    sessions: bool = False,
    max_ongoing_requests: int | None = None,
    max_queued_requests: int | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application for `serve.run` that serves models with the Open Inference Protocol.

    ``model`` and ``engine`` are as in `xrt.serve.app`; paths must exist on every machine of the cluster. ``options`` are other
    options of `xrt.serve.app` (``batch``, ``max_wait``, ``instances``, ...) and of `serve.deployment` (``num_replicas``,
    ``autoscaling_config``, ...). Each instance has an equal share of ``num_cpus`` as its thread budget.

    ``sessions`` routes all requests with the same ``x-session-id`` header to one replica, as models with state require. It also
    sets ``explicit_sessions``: routes change when replicas come and go, and a request must not silently start an empty state. A
    replica processes ``max_ongoing_requests`` at a time. If ``max_queued_requests`` are waiting, further requests get status 503.

    A handle calls ``handle.infer.remote({"x": array}, model="name")``, which returns outputs by name. Raises OptionError for an
    option that neither function has.
    """
    import_ray()
    from ray import serve

    from xrt.serve.served_model import ServingOptions

    app_options = {key: value for key, value in options.items() if key in ServingOptions.names()}
    ray_options = {key: value for key, value in options.items() if key not in app_options}
    parameters = [name for name in inspect.signature(serve.deployment).parameters if not name.startswith("_")]
    for key in ray_options:
        if key not in parameters:
            hint = did_you_mean(key, [*parameters, *ServingOptions.names()])
            raise OptionError(f"{key!r} is neither an option of xrt.serve.app nor of ray.serve.deployment.{hint}")
    if sessions:
        app_options.setdefault("explicit_sessions", True)
    app_options.setdefault("model_control", False)  # a control request would reach only one replica
    serving = ServingOptions.make(app_options)  # report invalid options before a replica starts
    ongoing = max_ongoing_requests or serving.max_queue
    queued = QUEUED_PER_ONGOING * ongoing if max_queued_requests is None else max_queued_requests
    if sessions:
        from ray.serve.config import RequestRouterConfig
        from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

        # When replicas come and go, consistent hashing moves few sessions to another one.
        ray_options.setdefault("request_router_config", RequestRouterConfig(request_router_class=ConsistentHashRouter))
    server = serve.deployment(
        serve.ingress(None)(ModelReplica),  # None: each replica builds its application
        name=name,
        max_ongoing_requests=ongoing,
        max_queued_requests=queued,
        ray_actor_options={"num_cpus": num_cpus, **(ray_actor_options or {})},
        **ray_options,
    )
    return server.bind(_make_absolute(model), engine, app_options)


def _make_absolute(model: Any) -> Any:
    """Make paths absolute, since a replica has another working directory."""
    if isinstance(model, Mapping):
        return {name: _make_absolute(item) for name, item in model.items()}
    if isinstance(model, list | tuple):
        return [_make_absolute(item) for item in model]
    return str(Path(model).absolute())


class ModelReplica:
    """A replica of the application. It enters service only if all models have compiled and passed their self-tests."""

    async def __init__(self, model: Any, engine: Any, options: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        from ray import serve
        from ray.serve._private.constants import SERVE_SESSION_ID

        from xrt.serve import app

        # Instances run at the same time, so they share the CPUs.
        granted = count_granted_threads() or 1
        instances = options.get("instances") or 1
        self._application = app(
            model,
            engine=engine,
            threads=max(1, granted // instances),
            replica=serve.get_replica_context().replica_id.unique_id,
            session_header=str(SERVE_SESSION_ID),
            **{**options, "instances": instances},
        )
        await self._application.start()
        await self.check_health()  # otherwise the replica would enter service

    def __serve_build_asgi_app__(self) -> Any:
        """Return the ASGI application of this replica; called by Ray Serve."""
        return self._application

    async def check_health(self) -> None:
        """Raise RuntimeError if a model is not in service; Ray then replaces the replica."""
        if reason := self._application.explain_not_ready():
            raise RuntimeError(f"the replica is not ready: {reason}")

    async def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        model: str = "",
        version: str | None = None,
        session: str = "",
        session_start: bool | None = None,
        session_end: bool = False,
        outputs: Any = (),
    ) -> dict[str, Any]:
        """Compute outputs by name from inputs by name; ``model`` may be omitted if there is only one.

        ``session``, ``session_start`` and ``session_end`` are as in a request. To route by session, call
        ``handle.options(session_id=...)`` first.
        """
        from xrt.serve.protocol import InferRequest

        served = self._application.models.find(model or next(iter(self._application.models)).name, version)
        session_fields = {"session_id": session or None, "session_start": session_start, "session_end": session_end or None}
        parameters = {name: value for name, value in session_fields.items() if value is not None}
        request = InferRequest(dict(inputs), outputs=dict.fromkeys(outputs, True), parameters=parameters)
        response = await served.infer(request)
        return dict(response.outputs)

    async def count_threads(self) -> dict[str, int]:
        """Return the thread budget of each model's module by the model's name."""
        return {served.name: served.module.threads for served in self._application.models}
