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
from xrt.serve.protocol import JSON_SIZE_HEADER, InferRequest, InferResponse, RequestRefusal, Status
from xrt.serve.repository import Repository
from xrt.serve.served_model import ServingOptions
from xrt.serve.triton_repository import make_config

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")
Headers: TypeAlias = list[tuple[bytes, bytes]]
HttpResponse: TypeAlias = tuple[Headers, list[Any]]
"""The headers of a response, and its body in parts."""

EXTENSIONS = ["binary_tensor_data", "sequence", "model_repository", "model_configuration", "statistics"]
"""Supported protocol extensions, by Triton's names."""
THREAD_CONVERSION_BYTES = 1 << 18
"""Requests and responses of this size or more are converted in a thread, so that the event loop stays responsive."""
MAX_CONTROL_BYTES = 1 << 20
"""Maximum size of the body of a request that lists, loads or unloads models."""
_JSON_HEADERS: Headers = [(b"content-type", b"application/json")]
_BINARY_TYPE = (b"content-type", b"application/octet-stream")

_MODEL_PATH = "v2/models/([^/]*)(?:/versions/([^/]*))?"
_ROUTES = {
    "ModelInfer": f"{_MODEL_PATH}/infer",
    "ModelReady": f"{_MODEL_PATH}/ready",
    "ModelMetadata": _MODEL_PATH,
    "ModelConfig": f"{_MODEL_PATH}/config",
    "ModelStatistics": f"{_MODEL_PATH}/stats",
    "ModelList": "v2/models",
    "ServerMetadata": "v2",
    "ServerLive": "v2/health/live",
    "ServerReady": "v2/health/ready",
    "RepositoryIndex": "v2/repository/index",
    "RepositoryModelLoad": "v2/repository/models/([^/]*)/load",
    "RepositoryModelUnload": "v2/repository/models/([^/]*)/unload",
    "Metrics": "metrics",
}
"""Regular expression for the path of each operation; its groups are the model and the version. An operation has the name of the
gRPC method; Metrics and ModelList exist over HTTP only."""
_PATTERNS = {operation: re.compile(route) for operation, route in _ROUTES.items()}
_BODY_FIELDS = {"ModelConfig": "config", "RepositoryIndex": "models"}
"""Operations whose response has one field over gRPC. Over HTTP, the body is the value of this field."""


class Application:
    """An ASGI application that serves models with the Open Inference Protocol v2; `xrt.serve.app` is this class.

    ``models`` is an XRTModule, the path of a bundle or an ONNX file, a list of paths, or a mapping from names to these or to
    mappings from versions to these. Paths are opened immediately, with ``engine``, ``threads`` and ``isolate`` as in `xrt.load`
    and XRTModule. ``options`` are those of `ServingOptions`; defaults come from the module's serving configuration.

    The models are compiled and tested when the server starts, or at the first request if the ASGI server does not send lifespan
    events. They are ready afterwards.

    A request names a session with the parameter ``session_id`` or the header ``session_header``, by which a proxy can route all
    calls of a session to one replica. Responses have the header ``xrt-replica`` with the name ``replica``, unless it is empty.

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
        session_header: str = "xrt-session",
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

    def start(self) -> asyncio.Task[None]:
        """Start to prepare the models, see `Repository.start`."""
        return self.models.start()

    def explain_not_ready(self) -> str:
        if self._is_draining:
            return "the server is shutting down"
        return "; ".join(f"model {model.name!r}: {model.why_not_ready}" for model in self.models if model.why_not_ready)

    def begin_drain(self) -> None:
        """Report not ready from now on, so that load balancers stop routing here; requests that arrive are still served."""
        self._is_draining = True

    async def close(self) -> None:
        """Finish accepted requests, then close all models that were opened here."""
        self.begin_drain()
        await self.models.close()
        self._converter.shutdown(wait=False)

    async def handle(self, operation: str, name: str, version: str, request: Any) -> dict[str, Any]:
        """Perform an operation other than Metrics and ModelInfer; return the fields of its response. Raises RequestRefusal.

        ``name`` and ``version`` are empty if the client sent none. ``request`` is a ControlRequest or a gRPC message: its field
        ``ready`` is read for RepositoryIndex, and ``parameters`` for RepositoryModelLoad.
        """
        match operation:
            case "ServerLive":
                return {"live": True}
            case "ServerReady":
                return {"live": True, **_describe_readiness(self.explain_not_ready())}
            case "ServerMetadata":
                return {"name": "xrt", "version": __version__, "extensions": EXTENSIONS, "models": self.models.list_names()}
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
                await self.models.load(name)
            case "RepositoryModelUnload":
                await self.models.unload(name)
        return {}

    async def infer(
        self,
        name: str,
        version: str,
        session: str,
        size: int,
        decode: Callable[[], InferRequest],
        encode: Callable[[InferRequest, InferResponse], T],
    ) -> T:
        """Run an inference request and return the encoded response; raises RequestRefusal.

        ``decode`` decodes the request of ``size`` bytes, and ``encode`` encodes the response for HTTP or gRPC. ``session`` is the
        name of a session from a header, or empty.
        """
        with self.models.find(name, version).admit():
            request = await self.run_if_large(size, decode)
            # Find the model again: it may have been reloaded while the request was decoded.
            response = await self.models.find(name, version).infer(request, session)
            response_size = sum(array.nbytes for array in response.outputs.values())
            return await self.run_if_large(response_size, encode, request, response)

    async def run_if_large(self, size: int, call: Callable[..., T], *args: Any) -> T:
        """Call ``call(*args)``, which converts ``size`` bytes; run it in a thread if they are `THREAD_CONVERSION_BYTES` or more.

        There is only one thread: large conversions run one at a time, so that they do not compete for the GIL and for memory.
        """
        if size < THREAD_CONVERSION_BYTES:
            return call(*args)
        return await asyncio.get_running_loop().run_in_executor(self._converter, partial(call, *args))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection: one HTTP request, or the lifespan of the server."""
        if scope["type"] == "http":
            await self._handle_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
        else:  # close websockets, which are not supported
            await send({"type": "websocket.close", "code": 1000})

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to an HTTP request and log it. If handling fails, the response describes the error."""
        self.start()  # in each request, because not every ASGI server sends lifespan events
        client = (scope.get("client") or ("",))[0]
        request = f"{scope['method']} {scope['path']}"
        status = Status.OK
        # Another application may have mounted this one under the prefix `root_path`.
        path = scope["path"].removeprefix(scope.get("root_path", "")).removeprefix("/").removesuffix("/")
        operation, name, version = self._parse_path(path)
        try:
            with time_request(partial(self.log.note_request, "http", operation, client, request)):
                if not operation:
                    hint = "" if path.split("/")[0] == "v2" else "; the protocol's begin with /v2"
                    raise RequestRefusal(f"there is no path {'/' + path[:200]!r}{hint}", Status.NOT_FOUND)
                headers, parts = await self._perform(operation, name, version, scope, receive)
        except Exception as error:  # noqa: BLE001  # no client gets a traceback
            refusal = protocol.convert_exception(error, request)
            status = refusal.status
            headers, parts = _make_error_response(refusal)
        # HEAD gets the same headers, and the ASGI server omits the body.
        length = str(sum(map(len, parts))).encode()
        headers = [*headers, *self._headers, (b"content-length", length)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": parts[0] if len(parts) == 1 else b"".join(parts)})

    async def _perform(self, operation: str, name: str, version: str, scope: Scope, receive: Receive) -> HttpResponse:
        """Perform an operation; return the response with status 200. Raises RequestRefusal for any other status."""
        if operation == "ModelInfer":
            return await self._handle_infer(name, version, scope, receive)
        is_control = operation.startswith("Repository")
        _check_method(scope, *(("POST",) if is_control else ("GET", "HEAD")))
        if operation == "Metrics":
            return [(b"content-type", CONTENT_TYPE.encode())], [self.metrics.write()]
        request = None
        if is_control:
            body = await self._read_body(receive, dict(scope["headers"]), MAX_CONTROL_BYTES, lambda size: None)
            request = protocol.decode_control(body)
        document = await self.handle(operation, name, version, request)
        if document.get("ready") is False:  # the protocol requires a status 4xx if not ready
            reason = document.pop("error")
            raise RequestRefusal(reason, **document)
        content = document[_BODY_FIELDS[operation]] if operation in _BODY_FIELDS else document
        return _JSON_HEADERS, [protocol.encode_document(content)]

    def _parse_path(self, path: str) -> tuple[str, str, str]:
        """Return the operation, the model and the version of a path. Each is an empty string if the path does not name it."""
        # This is Triton's path for the statistics of all models, unless there is a model named "stats".
        if path == "v2/models/stats" and "stats" not in self.models.list_names():
            return "ModelStatistics", "", ""
        for operation, pattern in _PATTERNS.items():
            if match := pattern.fullmatch(path):
                # The expression has 0 to 2 groups.
                name, version = (*match.groups(""), "", "")[:2]
                return operation, name, version
        return "", "", ""

    async def _handle_infer(self, name: str, version: str, scope: Scope, receive: Receive) -> HttpResponse:
        model = self.models.find(name, version)
        limit = self.options.max_request_bytes
        with time_request(partial(model.metrics.note_request, "http")):
            _check_method(scope, "POST")
            headers = dict(scope["headers"])
            with model.receive() as count:
                body = await self._read_body(receive, headers, limit, count)
                session = headers.get(self.session_header.encode(), b"").decode("latin-1")
                decode = partial(protocol.decode_request, body, headers.get(JSON_SIZE_HEADER), limit)
                json_size, parts = await self.infer(name, version, session, len(body), decode, protocol.encode_response)
        return (_JSON_HEADERS if json_size is None else [_BINARY_TYPE, (JSON_SIZE_HEADER, str(json_size).encode())]), parts

    async def _read_body(self, receive: Receive, headers: dict[bytes, bytes], limit: int, count: Callable[[int], None]) -> bytes:
        """Read the body of a request; call ``count`` with the size of each part that arrives.

        Raises RequestRefusal as soon as the body exceeds ``limit`` bytes, when `ServingOptions.body_timeout` has passed, or if
        ``count`` raises it.
        """
        if (encoding := headers.get(b"content-encoding", b"identity")) not in (b"identity", b""):
            raise RequestRefusal(
                f"content-encoding {encoding.decode('latin-1')[:200]!r} is not supported; send the body as it is"
            )
        # Reject a body by its declared size before reading anything. An invalid size, or one of 20 digits, counts as too large.
        declared = headers.get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() and len(declared) < 20 else limit + 1
        parts: list[bytes] = []
        received = 0
        has_more = True
        seconds = self.options.body_timeout
        try:
            async with asyncio.timeout(seconds):
                while has_more and max(size, received) <= limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestRefusal("the client disconnected")
                    parts.append(message.get("body", b""))
                    count(len(parts[-1]))
                    received += len(parts[-1])
                    has_more = message.get("more_body", False)
        except TimeoutError:
            raise RequestRefusal(f"the body did not arrive within {seconds:g} s", Status.TIMEOUT) from None
        if max(size, received) > limit:
            raise RequestRefusal(f"the body is larger than {limit} bytes, the limit for a request", Status.TOO_LARGE)
        return parts[0] if len(parts) == 1 else b"".join(parts)


app = Application


def _check_method(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise RequestRefusal(f"{scope['method']} is not supported for this path; use {methods[0]}", Status.WRONG_METHOD)


def _describe_readiness(reason: str) -> dict[str, Any]:
    return {"ready": False, "error": reason} if reason else {"ready": True}


def _make_error_response(refusal: RequestRefusal) -> HttpResponse:
    headers = list(_JSON_HEADERS)
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(refusal.retry_after).encode()))
    # Close the connection, because the unread part of the body would be parsed as its next request.
    if refusal.status in (Status.TIMEOUT, Status.TOO_LARGE):
        headers.append((b"connection", b"close"))
    return headers, [protocol.encode_document({**refusal.fields, "error": str(refusal)})]


KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection stays open.

Common proxies close it after 60 s. If the server closed first, a proxy could send a request on the closing connection, and its
client would get an error.
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    host: str
    http: int
    grpc: int | None = None
    """None if the models are not served over gRPC."""


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

    For port 0 the system chooses a free port. ``on_start`` is called with the addresses as soon as the server listens.
    ``on_ready`` is called once the models are prepared; its argument is the reason why the server is not ready, or empty. After a
    second signal the server finishes only the running calls of models, and drops all other requests. Raises OptionError if
    uvicorn is missing or a port cannot be used.
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
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(drain)),
        server_header=False,
    )
    server = uvicorn.Server(config)
    # `_serve` handles the signals instead of uvicorn, because they also concern gRPC.
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]

    async def report(bound_grpc_port: int | None) -> None:
        while not server.started:  # uvicorn has no callback for its start
            await asyncio.sleep(0.01)
        on_start(Addresses(host, listener.getsockname()[1], bound_grpc_port))
        await application.start()
        on_ready(application.explain_not_ready())

    with closing(_listen(host, port)) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(application, server, listener, host, grpc_port, drain, report))


def _listen(host: str, port: int) -> socket.socket:
    """Bind a socket, which the caller closes; raises OptionError if the address cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # create_server sets SO_REUSEADDR: a restarted server does not have to wait until old connections have timed out.
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
    """Run uvicorn's ``server``, and a gRPC server unless ``grpc_port`` is None, until a signal ends them, see `run_server`."""
    grpc_server: Any = None
    tasks: set[asyncio.Future[None]] = set()  # the event loop has only weak references to tasks

    def start_task(work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def end() -> None:
        application.begin_drain()
        server.force_exit = server.should_exit  # False at the first signal, True at the second
        server.should_exit = True
        if grpc_server is not None:
            start_task(grpc_server.stop(0 if server.force_exit else drain))

    def reload() -> None:
        start_task(application.models.reload())

    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        for signal_number, handle in ((signal.SIGINT, end), (signal.SIGTERM, end), (signal.SIGHUP, reload)):
            loop.add_signal_handler(signal_number, handle)
            stack.callback(loop.remove_signal_handler, signal_number)
        bound_grpc_port = None
        if grpc_port is not None:
            from xrt.serve.grpc_service import start_grpc

            grpc_server, bound_grpc_port = await start_grpc(application, host, grpc_port)
        start_task(report(bound_grpc_port))
        try:
            await server.serve(sockets=[listener])
        finally:
            if grpc_server is not None:
                await grpc_server.stop(0 if server.force_exit else drain)
