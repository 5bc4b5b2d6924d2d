"""The Open Inference Protocol over HTTP as an ASGI application, and the server that runs it with uvicorn.

It uses no web framework: the protocol has few paths, and a framework's router alone costs a tenth of a small request's time.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from xrt import __version__
from xrt.errors import OptionError
from xrt.serve import protocol
from xrt.serve.metrics import CONTENT_TYPE, Metrics, RequestLog, time_request
from xrt.serve.protocol import BINARY, InferRequest, InferResponse, RequestRefusal, Status
from xrt.serve.repository import Repository
from xrt.serve.served_model import ServingOptions
from xrt.serve.triton_repository import make_config

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
Headers: TypeAlias = list[tuple[bytes, bytes]]
Answer: TypeAlias = tuple[Headers, list[Any]]
"""The headers of a response, and its body in parts, which are joined when it is sent."""

SERVER = "xrt"
SESSION_HEADER = "xrt-session"
EXTENSIONS = ["binary_tensor_data", "sequence", "model_repository", "model_configuration", "statistics"]
"""Supported protocol extensions, by Triton's names."""
LARGE = 1 << 18
"""Requests and responses from this many bytes are converted in a thread, so that the event loop stays responsive."""
CONTROL_BYTES = 1 << 20
"""Maximum body of a request that loads or unloads a model."""
_JSON: Headers = [(b"content-type", b"application/json")]
_BINARY = (b"content-type", b"application/octet-stream")

_MODEL = "v2/models/([^/]*)(?:/versions/([^/]*))?"
_ROUTES = {
    "ModelInfer": f"{_MODEL}/infer",
    "ModelReady": f"{_MODEL}/ready",
    "ModelMetadata": _MODEL,
    "ModelConfig": f"{_MODEL}/config",
    "ModelStatistics": f"{_MODEL}/stats",
    "ModelList": "v2/models",
    "ServerMetadata": "v2",
    "ServerLive": "v2/health/live",
    "ServerReady": "v2/health/ready",
    "RepositoryIndex": "v2/repository/index",
    "RepositoryModelLoad": "v2/repository/models/([^/]*)/load",
    "RepositoryModelUnload": "v2/repository/models/([^/]*)/unload",
    "Metrics": "metrics",
}
"""The path of each operation, with a model and its version. The names are those of gRPC's methods; Metrics and ModelList exist
over HTTP alone."""
_PATTERNS = {operation: re.compile(route) for operation, route in _ROUTES.items()}
_BODIES = {"ModelConfig": "config", "RepositoryIndex": "models"}
"""Operations whose body over HTTP is one field of the response. Over gRPC all responses are messages with fields."""


class Application:
    """An ASGI application that serves models with the Open Inference Protocol v2; `xrt.serve.app` is this class.

    ``models`` is an XRTModule, the path of a bundle or an ONNX file, a list of paths, or a mapping from names to these or to
    mappings from versions to these. Paths are opened immediately, with ``engine``, ``threads`` and ``isolate`` as in `xrt.load`
    and XRTModule. ``options`` are those of `ServingOptions`; defaults come from the module's serving configuration.

    Models are compiled and tested when the server starts (ASGI's lifespan, else the first request) and are ready afterwards.

    A request names a session with the parameter ``session_id`` or the header ``session_header``, so that a proxy can route all
    calls of a session to one replica. With ``replica``, each response has that name in the header ``xrt-replica``.

    Raises OptionError for an unknown option or an invalid value, and errors from opening a model.
    """

    def __init__(
        self,
        models: Any,
        *,
        engine: Any = None,
        threads: int | None = None,
        isolate: Any = None,
        replica: str = "",
        session_header: str = SESSION_HEADER,
        **options: Any,
    ) -> None:
        self.options = ServingOptions.make(options)
        if not session_header or not session_header.replace("-", "").replace("_", "").isalnum():
            raise OptionError(f"session_header is the name of a header; got {session_header!r}")
        self.metrics = Metrics()
        self.log = RequestLog(self.metrics)
        module_options = {"engine": engine, "threads": threads, "isolate": isolate}
        module_options = {name: value for name, value in module_options.items() if value is not None}
        self.models = Repository(models, self.options, self.metrics, module_options)
        self.session_header = session_header.lower()
        self._converter = ThreadPoolExecutor(1, thread_name_prefix="xrt-serve-convert")
        self._headers: Headers = [(b"xrt-replica", replica.encode("ascii", "replace"))] if replica else []
        self._is_draining = False

    # ------------------------------------------------------------------ life

    def start(self) -> asyncio.Task[None]:
        """Start preparing the models, once; the task is done when each is in service or has a reason why not."""
        return self.models.start()

    async def load(self, name: str) -> None:
        """Load a model's files again and serve them; raises RequestRefusal if the model is unknown or the files are damaged."""
        await self.models.load(name)

    async def reload(self) -> None:
        """Load the files of all models again; a model whose files fail to load stays in service as it was."""
        await self.models.reload()

    def explain_not_ready(self) -> str:
        """Explain why the server is not ready; empty if it is."""
        if self._is_draining:
            return "the server is ending"
        return "; ".join(f"model {model.name!r}: {model.why_not_ready}" for model in self.models if model.why_not_ready)

    def begin_drain(self) -> None:
        """Report not ready from now on, so that load balancers stop routing here; requests that arrive are still served."""
        self._is_draining = True

    async def close(self) -> None:
        """Finish accepted requests, then close all models that were opened here."""
        self.begin_drain()
        await self.models.close()
        self._converter.shutdown(wait=False)

    # ------------------------------------------------------------------ both protocols

    async def answer(self, operation: str, name: str, version: str, request: Any) -> dict[str, Any]:
        """Answer an operation other than Metrics and ModelInfer with the fields of its response; raises RequestRefusal.

        ``name`` and ``version`` of a model are empty if the client gave none. ``request`` is a ControlRequest or gRPC's message:
        only the flag ``ready`` of RepositoryIndex and the ``parameters`` of RepositoryModelLoad are read.
        """
        match operation:
            case "ServerLive":
                return {"live": True}
            case "ServerReady":
                return {"live": True, **_describe_readiness(self.explain_not_ready())}
            case "ServerMetadata":
                return {"name": SERVER, "version": __version__, "extensions": EXTENSIONS, "models": self.models.list_names()}
            case "ModelList":
                return {"models": self.models.list_names()}
            case "ModelMetadata":
                return self.models.find(name, version).describe(self.models.list_versions(name))
            case "ModelReady":
                return {"name": name, **_describe_readiness(self.models.find_entry(name, version).why_not_ready)}
            case "ModelConfig":
                return {"config": make_config(self.models.find(name, version))}
            case "ModelStatistics":
                return {"model_stats": [model.metrics.describe_statistics() for model in self.models.select(name, version)]}
            case "RepositoryIndex":
                return {"models": self.models.list_index(ready=request.ready)}
            case "RepositoryModelLoad":
                protocol.check_no_files(request.parameters)
                await self.load(name)
            case "RepositoryModelUnload":
                await self.models.unload(name)
        return {}

    async def infer(
        self,
        name: str,
        version: str,
        session: str,
        size: int,
        read: Callable[[], InferRequest],
        write: Callable[[InferRequest, InferResponse], T],
    ) -> T:
        """Answer a request for inference with the result of ``write``; raises RequestRefusal.

        ``read`` parses the request, which has ``size`` bytes; ``write`` encodes the response. ``session`` is the name of a
        session in a header, or empty.
        """
        with self.models.find(name, version).admit():
            request = await self.run_if_large(size, read)
            response = await self.models.find(name, version).infer(request, session)  # it may have been reloaded meanwhile
            size = sum(array.nbytes for array in response.outputs.values())
            return await self.run_if_large(size, write, request, response)

    async def run_if_large(self, size: int, call: Callable[..., T], *args: Any) -> T:
        """Run a conversion of ``size`` bytes, in a thread if that is `LARGE` or more.

        There is one such thread, so that conversions compete with the event loop for the GIL, not with each other, and one of
        them at a time needs memory.
        """
        if size < LARGE:
            return call(*args)
        return await asyncio.get_running_loop().run_in_executor(self._converter, partial(call, *args))

    # ------------------------------------------------------------------ ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] == "http":
            await self._handle_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
        else:  # a websocket, which is not served
            await send({"type": "websocket.close", "code": 1000})

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response to a request, and log it; errors become responses."""
        self.start()  # again in each request: not every ASGI server has the lifespan events
        client, request, status = (scope.get("client") or ("",))[0], f"{scope['method']} {scope['path']}", Status.OK
        # The application may be mounted under a prefix by another one.
        path = scope["path"].removeprefix(scope.get("root_path", "")).removeprefix("/").removesuffix("/")
        operation, name, version = self._parse_path(path)
        try:
            with time_request(partial(self.log.note_request, "http", operation, client, request)):
                if not operation:
                    hint = "" if path.split("/")[0] == "v2" else "; the protocol's begin with /v2"
                    raise RequestRefusal(f"there is no path {'/' + path[:200]!r}{hint}", Status.UNKNOWN)
                headers, parts = await self._respond(operation, name, version, scope, receive)
        except Exception as error:  # noqa: BLE001  # no client gets a traceback
            refusal = protocol.make_refusal(error, request)
            status, (headers, parts) = refusal.status, _write_refusal(refusal)
        # Also for HEAD, whose response has the length of the body; the ASGI server leaves the body out.
        length = str(sum(map(len, parts))).encode()
        headers = [*headers, *self._headers, (b"content-length", length)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": parts[0] if len(parts) == 1 else b"".join(parts)})

    async def _respond(self, operation: str, name: str, version: str, scope: Scope, receive: Receive) -> Answer:
        """The response with status 200; raises RequestRefusal for any other status."""
        if operation == "ModelInfer":
            return await self._infer(name, version, scope, receive)
        is_control = operation.startswith("Repository")
        _check_method(scope, *(("POST",) if is_control else ("GET", "HEAD")))
        if operation == "Metrics":
            return [(b"content-type", CONTENT_TYPE.encode())], [self.metrics.write()]
        request = None
        if is_control:
            body = await self._read_body(receive, dict(scope["headers"]), CONTROL_BYTES, lambda size: None)
            request = protocol.decode_control(body)
        document = await self.answer(operation, name, version, request)
        if document.get("ready") is False:  # the protocol requires a status 4xx
            raise RequestRefusal(document.pop("error"), **document)
        return _JSON, [protocol.encode_document(document[_BODIES[operation]] if operation in _BODIES else document)]

    def _parse_path(self, path: str) -> tuple[str, str, str]:
        """The operation, model and version of a path; empty for an unknown path."""
        # Triton's path for the statistics of all models; a model of that name has precedence.
        if path == "v2/models/stats" and "stats" not in self.models.list_names():
            return "ModelStatistics", "", ""
        for operation, pattern in _PATTERNS.items():
            if match := pattern.fullmatch(path):
                name, version, *_ = *match.groups(""), "", ""
                return operation, name, version
        return "", "", ""

    # ------------------------------------------------------------------ bodies

    async def _infer(self, name: str, version: str, scope: Scope, receive: Receive) -> Answer:
        """Read the body, run the model and encode the response, as JSON or as JSON followed by binary tensors."""
        model, limit = self.models.find(name, version), self.options.max_request_bytes
        with time_request(partial(model.metrics.note_request, "http")):
            _check_method(scope, "POST")
            headers = dict(scope["headers"])
            with model.receive() as count:
                body = await self._read_body(receive, headers, limit, count)
                session = headers.get(self.session_header.encode(), b"").decode("latin-1")
                read = partial(protocol.read_request, body, headers.get(BINARY), limit)
                length, parts = await self.infer(name, version, session, len(body), read, protocol.write_response)
        return (_JSON if length is None else [_BINARY, (BINARY, str(length).encode())]), parts

    async def _read_body(self, receive: Receive, headers: dict[bytes, bytes], limit: int, count: Callable[[int], None]) -> bytes:
        """Read the body, and call ``count`` with the size of each part.

        Raises RequestRefusal as soon as the body exceeds ``limit`` bytes, when `ServingOptions.body_timeout` has passed, or if
        ``count`` does.
        """
        if (encoding := headers.get(b"content-encoding", b"identity")) not in (b"identity", b""):
            raise RequestRefusal(
                f"content-encoding {encoding.decode('latin-1')[:200]!r} is not supported; send the body as it is"
            )
        # Reject by the announced size before reading anything. An invalid size, or one of 20 digits, counts as too large.
        announced = headers.get(b"content-length", b"0")
        size = int(announced) if announced.isdigit() and len(announced) < 20 else limit + 1
        parts: list[bytes] = []
        received, more, seconds = 0, True, self.options.body_timeout
        try:
            async with asyncio.timeout(seconds):
                while more and max(size, received) <= limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestRefusal("the client went away")
                    parts.append(message.get("body", b""))
                    count(len(parts[-1]))
                    received, more = received + len(parts[-1]), message.get("more_body", False)
        except TimeoutError:
            raise RequestRefusal(f"the body did not arrive within {seconds:g} s", Status.LATE) from None
        if max(size, received) > limit:
            text = f"the body is larger than {limit} bytes, which is the most that a request may have"
            raise RequestRefusal(text, Status.TOO_LARGE)
        return parts[0] if len(parts) == 1 else b"".join(parts)


app = Application


def _check_method(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise RequestRefusal(f"{scope['method']} is not a method of this path; {methods[0]} is", Status.WRONG_METHOD)


def _describe_readiness(reason: str) -> dict[str, Any]:
    return {"ready": False, "error": reason} if reason else {"ready": True}


def _write_refusal(refusal: RequestRefusal) -> Answer:
    headers = list(_JSON)
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    # The unread rest of the body would be parsed as the next request of the connection.
    if refusal.status in (Status.LATE, Status.TOO_LARGE):
        headers.append((b"connection", b"close"))
    return headers, [protocol.encode_document({**refusal.facts, "error": str(refusal)})]


# ---------------------------------------------------------------------- the server

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open.

Longer than the 60 s of common proxies, so that the proxy closes first: it could otherwise send a request on a connection that the
server is closing, and its client would get an error.
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens."""

    host: str
    http: int
    """HTTP port."""
    grpc: int | None = None
    """gRPC port; None if not served."""


def run_server(
    application: Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grpc_port: int | None = None,
    drain: float = 30.0,
    on_start: Callable[[Addresses], None] = lambda addresses: None,
    on_ready: Callable[[str], None] = lambda reason: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish accepted requests within ``drain`` seconds. SIGHUP reloads the models.

    Port 0 chooses a free port. ``on_start`` is called with the addresses; ``on_ready``, once the models are prepared, with the
    reason why the server is not ready, usually empty. A second signal drops the requests under way, and only running calls are
    waited for. Raises OptionError if uvicorn is missing or a port cannot be used.
    """
    try:
        import uvicorn
        import uvloop
    except ModuleNotFoundError as error:
        raise OptionError(
            f"a server needs the package {error.name}, which is missing: pip install 'xrt-engine[serve]'"
        ) from error
    config = uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,  # keep the logging that the operator configured
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(drain)),
        server_header=False,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # signals concern both transports

    async def report(grpc_bound: int | None) -> None:
        while not server.started:  # uvicorn has no callback for its start
            await asyncio.sleep(0.01)
        on_start(Addresses(host, listener.getsockname()[1], grpc_bound))
        await application.start()
        on_ready(application.explain_not_ready())

    with closing(_listen(host, port)) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(application, server, listener, host, grpc_port, drain, report))


def _listen(host: str, port: int) -> socket.socket:
    """Bind a socket, which the caller closes; raises OptionError if the address cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # It sets SO_REUSEADDR: a restarted server must not wait until connections of the previous one have timed out.
        return socket.create_server(
            address, family=family, dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        )
    except (OSError, OverflowError) as error:
        reason = str(error).partition(" (while")[0]  # create_server repeats the address
        raise OptionError(f"cannot listen on {host}, port {port}: {reason}; choose another host or port") from error


async def _serve(
    application: Application,
    server: Any,
    listener: socket.socket,
    host: str,
    grpc_port: int | None,
    drain: float,
    report: Callable[[int | None], Awaitable[None]],
) -> None:
    """Run uvicorn's server and, with ``grpc_port``, the gRPC server until a signal; `run_server` describes the signals."""
    grpc_server: Any = None
    tasks: set[asyncio.Future[None]] = set()  # the loop keeps weak references only

    def start(work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def end() -> None:
        application.begin_drain()
        server.force_exit = server.should_exit  # already True at the second signal
        server.should_exit = True
        if grpc_server is not None:
            start(grpc_server.stop(0 if server.force_exit else drain))

    def reload() -> None:
        start(application.reload())

    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        for number, handle in ((signal.SIGINT, end), (signal.SIGTERM, end), (signal.SIGHUP, reload)):
            loop.add_signal_handler(number, handle)
            stack.callback(loop.remove_signal_handler, number)
        grpc_bound = None
        if grpc_port is not None:
            from xrt.serve.grpc_service import start_grpc

            grpc_server, grpc_bound = await start_grpc(application, host, grpc_port)
        start(report(grpc_bound))
        try:
            await server.serve(sockets=[listener])
        finally:
            if grpc_server is not None:
                await grpc_server.stop(0 if server.force_exit else drain)
