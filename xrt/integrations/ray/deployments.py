"""A Ray Serve deployment that runs the application of `xrt.serve` in each replica, with the CPUs that Ray assigns.

Ray starts, scales, routes to and replaces replicas. A replica whose models fail their self-tests never enters service.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xrt.errors import OptionError
from xrt.integrations.ray.predictor import count_granted_threads, import_ray

WAITING = 2
"""Requests queued in each proxy per ongoing request of a replica, before Ray answers 503."""


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

    ``model`` and ``engine`` are as in `xrt.serve.app`; paths must exist on every machine of the cluster. ``options`` are the
    other options of `xrt.serve.app` (``batch``, ``max_wait``, ``instances``, ...) and those of `serve.deployment`
    (``num_replicas``, ``autoscaling_config``, ...). Each instance has an equal share of ``num_cpus`` as its thread budget.

    ``sessions`` routes all requests with the same ``x-session-id`` header to one replica, as models with state require, and sets
    ``explicit_sessions``: routes change when replicas come and go, and a request must not silently start an empty state. A
    replica processes ``max_ongoing_requests``; beyond ``max_queued_requests`` waiting requests get status 503.

    A handle calls ``handle.infer.remote({"x": array}, model="name")``, which returns outputs by name. Raises OptionError for an
    option that neither function has.
    """
    import_ray()
    from ray import serve

    from xrt.serve.served_model import ServingOptions

    of_app = {key: value for key, value in options.items() if key in ServingOptions.names()}
    of_ray = {key: value for key, value in options.items() if key not in of_app}
    _check_names(of_ray, serve.deployment)
    if sessions:
        of_app.setdefault("explicit_sessions", True)
    of_app.setdefault("model_control", False)  # a control request would reach only one replica
    serving = ServingOptions.make(of_app)  # report invalid options before a replica starts
    ongoing = max_ongoing_requests or serving.max_queue
    queued = WAITING * ongoing if max_queued_requests is None else max_queued_requests
    if sessions:
        from ray.serve.config import RequestRouterConfig
        from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

        # Consistent hashing moves few sessions when replicas come and go.
        of_ray.setdefault("request_router_config", RequestRouterConfig(request_router_class=ConsistentHashRouter))
    server = serve.deployment(
        serve.ingress(None)(ModelReplica),
        name=name,
        max_ongoing_requests=ongoing,
        max_queued_requests=queued,
        ray_actor_options={"num_cpus": num_cpus, **(ray_actor_options or {})},
        **of_ray,
    )
    return server.bind(_make_absolute(model), engine, of_app)


def _check_names(options: Mapping[str, Any], function: Any) -> None:
    import inspect

    from xrt.errors import did_you_mean
    from xrt.serve.served_model import ServingOptions

    parameters = [name for name in inspect.signature(function).parameters if not name.startswith("_")]
    for name in options:
        if name not in parameters:
            hint = did_you_mean(name, [*parameters, *ServingOptions.names()])
            raise OptionError(f"{name!r} is no option of xrt.serve.app and none of ray.serve.deployment.{hint}")


def _make_absolute(model: Any) -> Any:
    """Make paths absolute: a replica has another working directory."""
    if isinstance(model, Mapping):
        return {name: _make_absolute(item) for name, item in model.items()}
    if isinstance(model, list | tuple):
        return [_make_absolute(item) for item in model]
    return str(Path(model).absolute())


class ModelReplica:
    """A replica: the application with compiled and tested models."""

    async def __init__(self, model: Any, engine: Any, options: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        from ray import serve
        from ray.serve._private.constants import SERVE_SESSION_ID

        from xrt.serve import app

        granted, instances = count_granted_threads() or 1, options.get("instances") or 1
        self._application = app(
            model,
            engine=engine,
            threads=max(1, granted // instances),
            replica=serve.get_replica_context().replica_id.unique_id,
            session_header=str(SERVE_SESSION_ID),
            **{**options, "instances": instances},
        )
        await self._application.start()
        self._check()

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    async def check_health(self) -> None:
        """Raise RuntimeError if a model is not in service; Ray then replaces the replica."""
        self._check()

    def _check(self) -> None:
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

        ``session``, ``session_start`` and ``session_end`` are as in a request. A handle does not route by session; use
        ``handle.options(session_id=...)``.
        """
        from xrt.serve.protocol import InferRequest

        served = self._application.models.find(model or next(iter(self._application.models)).name, version)
        session_fields = {"session_id": session or None, "session_start": session_start, "session_end": session_end or None}
        parameters = {name: value for name, value in session_fields.items() if value is not None}
        request = InferRequest(dict(inputs), outputs=dict.fromkeys(outputs, True), parameters=parameters)
        response = await served.infer(request)
        return dict(response.outputs)

    async def count_threads(self) -> dict[str, int]:
        """The thread budget of each model's module."""
        return {served.name: served.module.threads for served in self._application.models}
