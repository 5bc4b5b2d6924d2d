"""A deployment of Ray Serve: in each replica the application of `xrt.serve`, with the threads that Ray grants.

Ray starts, counts, routes to and replaces replicas. A replica that does not pass its models' self-tests is never in service.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xrt.errors import OptionError
from xrt.integrations.ray.predictor import count_granted_threads, import_ray

__all__ = ["deployment"]

USUAL_QUEUE = 128
"""Requests that wait in a replica, as `xrt.serve` has it."""
WAITING = 2
"""Requests that wait in each proxy for each one that a replica takes, before Ray answers with status 503."""


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
    """Return an application for `serve.run`, which serves models by the Open Inference Protocol at its route.

    ``model`` and ``engine`` are those of `xrt.serve.app`: paths that every machine of the cluster has. Its other options
    (``batch``, ``max_wait``, ``instances``, ...) are among ``options``; the rest of them are those of `serve.deployment`:
    ``num_replicas``, ``autoscaling_config``, ... The thread budget of each instance is its part of ``num_cpus``. ``sessions``
    routes all requests with one header ``x-session-id`` to one replica, as models with state need it, and sets the option
    ``explicit_sessions``: routes change where replicas come and go, and no request then gets an empty state. A replica takes
    ``max_ongoing_requests``; more than ``max_queued_requests`` that wait for a replica are answered with status 503.

    A handle calls ``handle.infer.remote({"x": array}, model="name")``, which returns the outputs by name.
    Raises OptionError for an option that neither has.
    """
    import_ray()
    from ray import serve

    from xrt.serve.served_model import ServingOptions

    of_app = {key: value for key, value in options.items() if key in ServingOptions.names()}
    of_ray = {key: value for key, value in options.items() if key not in of_app}
    _check_names(of_ray, serve.deployment)
    if sessions:
        of_app.setdefault("explicit_sessions", True)
    of_app.setdefault("model_control", False)  # a request reaches one replica alone
    ServingOptions.make(of_app)  # a mistake is known before a replica starts
    ongoing = max_ongoing_requests or of_app.get("max_queue", USUAL_QUEUE)
    queued = WAITING * ongoing if max_queued_requests is None else max_queued_requests
    if sessions:
        from ray.serve.config import RequestRouterConfig
        from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

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


def _check_names(options: Mapping[str, Any], taken: Any) -> None:
    import inspect

    from xrt.errors import did_you_mean
    from xrt.serve.served_model import ServingOptions

    parameters = [name for name in inspect.signature(taken).parameters if not name.startswith("_")]
    for name in options:
        if name not in parameters:
            hint = did_you_mean(name, [*parameters, *ServingOptions.names()])
            raise OptionError(f"{name!r} is no option of xrt.serve.app and none of ray.serve.deployment.{hint}")


def _make_absolute(model: Any) -> Any:
    """Return paths as a replica finds them, which has another current directory."""
    if isinstance(model, Mapping):
        return {name: _make_absolute(one) for name, one in model.items()}
    if isinstance(model, list | tuple):
        return [_make_absolute(one) for one in model]
    return str(Path(model).absolute())


class ModelReplica:
    """A replica: the application, after its models are compiled and tested."""

    async def __init__(self, model: Any, engine: Any, options: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        from ray import serve

        from xrt.serve import app

        granted, instances = count_granted_threads() or 1, options.get("instances") or 1
        self._application = app(
            model,
            engine=engine,
            threads=max(1, granted // instances),
            replica=serve.get_replica_context().replica_id.unique_id,
            session_header=_find_session_header(),
            **{**options, "instances": instances},
        )
        await self._application.start()
        self._check()

    def __serve_build_asgi_app__(self) -> Any:
        return self._application

    async def check_health(self) -> None:
        """Raise where a model is not in service; Ray then replaces the replica."""
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
        """Return the outputs by name for inputs by name; the only model needs no name.

        ``session``, ``session_start`` and ``session_end`` are those of a request. A handle does not route by sessions: let
        ``handle.options(session_id=...)`` do that.
        """
        from xrt.serve.protocol import InferRequest

        served = self._application.models.find(model or next(iter(self._application.models)).name, version)
        about = {"session_id": session or None, "session_start": session_start, "session_end": session_end or None}
        parameters = {name: value for name, value in about.items() if value is not None}
        request = InferRequest(dict(inputs), outputs=dict.fromkeys(outputs, True), parameters=parameters)
        response = await served.infer(request)
        return dict(response.outputs)

    async def count_threads(self) -> dict[str, int]:
        """Return the thread budget of each model's module."""
        return {served.name: served.module.threads for served in self._application.models}


def _find_session_header() -> str:
    from ray.serve._private.constants import SERVE_SESSION_ID

    return str(SERVE_SESSION_ID)
