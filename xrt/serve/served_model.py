"""One served version of a model: its tensors, readiness, options and sessions, and the handling of a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from xrt.engines.contract.options import check_options, option
from xrt.errors import InputError, OptionError, RunFailed, XRTError, did_you_mean
from xrt.graph import Function, TensorType, Value
from xrt.module.tuning import count_modules
from xrt.runtime import inputs, to_host
from xrt.serve.metrics import Metrics, ModelMetrics
from xrt.serve.protocol import (
    DATATYPE_NAMES,
    DATATYPES,
    Array,
    InferRequest,
    InferResponse,
    RequestRefusal,
    Status,
    make_json_output_error,
)
from xrt.serve.scheduler import Limit, Scheduler, count_joinable_rows, explain_mixed_rows, why_not_batchable

if TYPE_CHECKING:
    from xrt.module.module import XRTModule


_log = logging.getLogger(__name__)
_ZIPMAP_HINT = """. skl2onnx writes tensors instead of maps with options={"zipmap": False}"""
STARTING = "it is being prepared"


class ServedModel:
    """One version of a model: its modules, its queue, and its sessions if it has state.

    All instances share ``module`` if it can run several calls at once. Otherwise ``open_again`` opens another module for each
    instance. If ``open_again`` is None, ``module`` belongs to the caller; otherwise `close` closes all modules. Use the object
    from the event loop only; calls of the model run in threads. Raises OptionError for a type that the protocol does not have,
    and for a batch size if the shapes do not allow batches.
    """

    def __init__(
        self,
        name: str,
        version: str,
        module: XRTModule,
        options: ServingOptions,
        metrics: Metrics,
        *,
        open_again: Callable[[], XRTModule] | None = None,
    ) -> None:
        self.name, self.version, self.module = name, version, module
        self._modules, self._open_again = [module], open_again
        self.stateful: Any = None
        """The declared state of the module; None if it has none. With state, each call is a step of a session."""
        with suppress(InputError):  # raised if the module declares no state
            self.stateful = module.stateful_functions.find_declared(module)
        self.inputs = self.stateful.other_inputs if self.stateful else module.inputs
        # Clients neither send nor receive the state.
        indices = self.stateful.returned if self.stateful else range(len(module.outputs))
        self.outputs = tuple(module.outputs[index] for index in indices)
        names = [value.name for value in self.outputs]
        if repeated := next((output for output in names if names.count(output) > 1), None):
            raise OptionError(
                f"output {repeated!r} of model {name!r} is listed twice, but the protocol requires unique names; rename one"
            )
        self._datatypes = {value.name: _name_datatype(name, value) for value in (*self.inputs, *self.outputs)}
        # If the model does not allow batches, batches that the operator requested are an error; batches from tuning are dropped.
        self._is_batch_requested = options.batch is not None
        options = options.complete(module.serving)
        reason = "it has state" if self.stateful else why_not_batchable(self.inputs, self.outputs)
        if options.sizes and reason:
            if self._is_batch_requested:
                raise OptionError(f"model {name!r} cannot join requests to a batch: {reason}; leave batch out")
            options = replace(options, batch=None)
        self.options, self._instances = options, options.instances or 1
        self.why_not_ready = STARTING
        """Why the model does not accept requests; empty if it is in service."""
        self.metrics = ModelMetrics(metrics, name, version)
        max_wait = options.max_wait or 0.0
        self._scheduler = Scheduler(
            self._instances, options.max_queue, self.metrics, sizes=options.sizes, rounds_up=options.rounds_up, max_wait=max_wait
        )
        self._free_modules: SimpleQueue[XRTModule] = SimpleQueue()
        """The module of each idle instance. A module that several instances share is in the queue several times."""
        self.sessions = SessionTable(module.new_session, options.max_sessions, options.session_idle, options.explicit_sessions)
        self._received_bytes = 0
        """Size of the bodies of all requests that are not answered yet."""
        self._request_limit = Limit("requests are under way, and no more are accepted")
        """Counts requests from the end of their body to the end of the response."""

    def show_metrics(self) -> None:
        """Make the gauges report this model; call it when the model goes into service."""
        self.metrics.show(
            queued_requests=lambda: self._scheduler.queued,
            running_calls=lambda: self._scheduler.running,
            sessions=lambda: len(self.sessions),
            model_ready=lambda: not self.why_not_ready,
            # There is no plan before the model is compiled.
            fallback_nodes=lambda: 0 if self.why_not_ready else len(self.module.plan.reasons),
        )

    def describe(self, versions: list[str]) -> dict[str, Any]:
        """Describe the model as the protocol's metadata. ``versions`` lists all served versions of the model."""
        inputs, outputs = (list(map(self.describe_tensor, values)) for values in (self.inputs, self.outputs))
        return {"name": self.name, "versions": versions, "platform": "xrt", "inputs": inputs, "outputs": outputs}

    def describe_tensor(self, value: Value) -> dict[str, Any]:
        """Describe an input or output as the protocol does. A dynamic dimension is -1, and an unknown rank the shape [-1]."""
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        dims = [-1] if shape is None else [dim if isinstance(dim, int) else -1 for dim in shape]
        return {"name": value.name, "datatype": self._datatypes[value.name], "shape": dims}

    async def prepare(self) -> None:
        """Compile and test the model, and put it in service. If this fails, set `why_not_ready` to the reason."""
        try:
            self.why_not_ready = await asyncio.to_thread(self._test_instances)
        except Exception as error:  # noqa: BLE001  # other models stay in service
            _log.exception("model %s, version %s, cannot be prepared", self.name, self.version)
            self.why_not_ready = f"it cannot be prepared: {error}"
        if self.why_not_ready:
            _log.error("model %s, version %s, is not in service: %s", self.name, self.version, self.why_not_ready)

    def _test_instances(self) -> str:
        """Open and test the modules of all instances; return why the model must not be in service, or an empty string."""
        reason = self._why_not_servable(self.module)
        # A session belongs to one module, so a model with state does not get further modules.
        if self._open_again is not None and not self.stateful:
            while not reason and len(self._modules) < count_modules(self.module, self._instances):
                self._modules.append(self._open_again())
                reason = self._why_not_servable(self._modules[-1])
        for instance in range(self._instances):
            self._free_modules.put(self._modules[instance % len(self._modules)])
        return reason

    def _why_not_servable(self, module: XRTModule) -> str:
        """Test and compile a module, and try its batches; return why this failed, or an empty string."""
        try:
            module.run_self_test()
        except XRTError as error:
            return f"its self-test failed: {error}"
        try:
            module.compile()
        except InputError:
            _log.info("model %s has dynamic shapes and is compiled for those of the first request", self.name)
        if self.options.sizes:
            call = partial(_call_module, module)
            # The nodes are only needed to choose valid strings.
            has_strings = "BYTES" in {self._datatypes[value.name] for value in self.inputs}
            function = module.source.get_declared_function() if has_strings else Function(self.inputs, ())
            reason = explain_mixed_rows(call, function, self.options.sizes, rounds_up=self.options.rounds_up)
            if not reason or self._is_batch_requested:
                return reason
            # The batches come from the tuning and are only an optimization: serve the model without them.
            _log.warning("model %s is served without the batches that it was tuned for: %s", self.name, reason)
            self.options = replace(self.options, batch=None)
        return ""

    @property
    def max_requests(self) -> int:
        """Maximum number of requests in memory: a full queue, and a batch in each instance."""
        return self.options.max_queue + self._instances * max(self.options.sizes, default=1)

    @contextmanager
    def receive(self) -> Iterator[Callable[[int], None]]:
        """Admit a request for the duration of the block, which reads its body and sends the response.

        The block must call the yielded function with the size of each part of the body that it has read. Raises RequestRefusal if
        the queue is full; the yielded function raises it if the bodies of all requests need too much memory. Only bytes are
        counted while a body arrives, not requests, so that slow clients cannot occupy the queue.
        """
        received = 0

        def count(size: int) -> None:
            nonlocal received
            received += size
            self._received_bytes += size
            if self._received_bytes > self.max_requests * self.options.max_request_bytes:
                raise RequestRefusal("too many bodies arrive at once, and no more are read; try again", Status.BUSY)

        self._scheduler.check_room()
        try:
            yield count
        finally:
            self._received_bytes -= received

    def admit(self) -> AbstractContextManager[None]:
        """Count a request with a complete body for the duration of the block; raises RequestRefusal if there are too many.

        The block runs the request and encodes its response. This limits the results in memory, too: a fast model may produce
        large outputs faster than they are encoded.
        """
        return self._request_limit.admit(self.max_requests)

    async def infer(self, request: InferRequest, session_name: str = "") -> InferResponse:
        """Run a request. Its parameters or a header (``session_name``) may name a session. Raises RequestRefusal."""
        if self.why_not_ready:
            raise RequestRefusal(f"model {self.name!r} is not in service: {self.why_not_ready}", Status.BUSY)
        self._check_outputs(request)
        session = read_session(request.parameters, session_name)
        if session is not None and not self.stateful:
            raise RequestRefusal(f"model {self.name!r} has no state, so a request cannot have a session")
        values = self._bind_inputs(request.inputs)
        with self.sessions.enter(session) if session else nullcontext() as entry:
            try:
                results = await self._submit(entry, values)
            except RequestRefusal:  # the queue is full
                raise
            except Exception as error:
                raise self._convert_error(error, values) from error
        outputs = dict(zip((value.name for value in self.outputs), results, strict=True))
        # A request without a list of outputs gets all outputs.
        requested = {name: outputs[name] for name in request.outputs or outputs}
        parameters = {"session_id": session.name} if session else {}
        return InferResponse(self.name, self.version, requested, self._datatypes, parameters)

    def _check_outputs(self, request: InferRequest) -> None:
        names = [value.name for value in self.outputs]
        for name, is_binary in request.outputs.items():
            if name not in names:
                raise RequestRefusal(f"model {self.name!r} has no output {name[:200]!r}; it has: {', '.join(names)}")
            if is_binary is False and not DATATYPES[self._datatypes[name]].has_json:
                raise make_json_output_error(name, self._datatypes[name])

    def _bind_inputs(self, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        """Order and check the inputs, since an input of a wrong type or shape would make a batch fail. Raises RequestRefusal."""
        try:
            values = inputs.bind(self.inputs, (), arrays)
            for value, array in zip(self.inputs, values, strict=True):
                declared = self._datatypes[value.name]
                if array.dtype != DATATYPES[declared].dtype.numpy:
                    names = (name for dtype, name in DATATYPE_NAMES.items() if dtype.numpy == array.dtype)
                    actual = next(names, str(array.dtype))
                    raise RequestRefusal(f"input {value.name!r} of model {self.name!r} is {declared}; the request has {actual}")
            inputs.check(self.inputs, values)
        except InputError as error:
            raise RequestRefusal(str(error)) from None
        return tuple(values)

    def _submit(self, entry: SessionEntry | None, values: tuple[Array, ...]) -> asyncio.Future[tuple[Array, ...]]:
        """Queue a call, as a step of the session ``entry`` if the model has state; raises RequestRefusal if the queue is full."""
        if self.stateful:
            step = partial(self._step, entry.session if entry else None)
            return self._scheduler.submit(step, values, on_start=entry.note_start if entry else None)
        if not self.options.sizes:
            return self._scheduler.submit(self._call, values)
        # Requests can be joined if all their dimensions but the first agree.
        rows = count_joinable_rows(values)
        key = tuple(array.shape[1:] for array in values) if rows else None
        return self._scheduler.submit(self._call, values, key, rows)

    def _call(self, *values: Array) -> tuple[Array, ...]:
        # This does not block for long, since the scheduler runs at most one call per instance.
        module = self._free_modules.get()
        try:
            return _call_module(module, *values)
        finally:
            self._free_modules.put(module)

    def _step(self, session: Any, *values: Array) -> tuple[Array, ...]:
        """Run a step of a session; None stands for a new session, which is dropped afterwards."""
        return _call_module(self.module.new_session() if session is None else session, *values)

    def _convert_error(self, error: Exception, values: tuple[Array, ...]) -> RequestRefusal:
        """Convert an error of a call to a response: with status 400 if the input ``values`` caused it, otherwise 500."""
        if isinstance(error, InputError) or (isinstance(error, RunFailed) and error.has_bad_index):
            return RequestRefusal(str(error))
        # A model may broadcast an input of one row, so different numbers of rows are an error only if the call has failed.
        if self.options.sizes and isinstance(error, RunFailed) and not count_joinable_rows(values):
            counts = [f"{value.name!r} has {len(array)} rows" for value, array in zip(self.inputs, values, strict=True)]
            return RequestRefusal(f"the inputs of model {self.name!r} have different numbers of rows: {', '.join(counts)}")
        # At level DEBUG, since the request log has the reason, and a traceback for each request would flood the log.
        _log.debug("a call of model %s failed", self.name, exc_info=error)
        return RequestRefusal(f"model {self.name!r} failed: {error}", Status.FAILED)

    async def close(self) -> None:
        """Finish the queued requests, then drop the sessions. Close the modules unless they belong to the caller."""
        await self._scheduler.drain()
        self.why_not_ready = "it is closed"
        self._scheduler.close()
        self.sessions.close()
        if self._open_again is not None:
            # In threads, because closing a module may wait for an engine's process and must not block the event loop.
            await asyncio.gather(*(asyncio.to_thread(module.close) for module in self._modules))


def _call_module(module: Callable[..., Any], *values: Array) -> tuple[Array, ...]:
    """Call a module or a session; return its outputs as a tuple of NumPy arrays."""
    results = module(*values)
    return () if results is None else tuple(map(to_host, results if isinstance(results, tuple) else (results,)))


def _name_datatype(model: str, value: Value) -> str:
    """Find the name of the protocol's datatype for a value; raises OptionError if there is none."""
    if value.type is None:
        raise OptionError(f"the type of {value.name!r} of model {model!r} is not known; call m.compile(*examples) first")
    datatype = DATATYPE_NAMES.get(value.type.dtype) if isinstance(value.type, TensorType) else None
    if datatype is None:
        raise OptionError(
            f"{value.name!r} of model {model!r} is {value.type}, which the Open Inference Protocol has no datatype for; "
            f"it has: {', '.join(DATATYPES)}{_ZIPMAP_HINT if 'map(' in str(value.type) else ''}"
        )
    return datatype


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Options of each served model. The serving configuration of a module replaces options that are None."""

    batch: int | Sequence[int] | None = None
    """Maximum rows of a batch, or a list of its sizes. With a list, requests are joined up to the largest size that they fill,
    and a single request of another size is padded to the next size by repeating its last row."""
    max_wait: float | None = option(None, at_least=0)
    """Time that a request waits for its batch to fill, in seconds. 0: join only requests that are queued already."""
    instances: int | None = option(None, at_least=1)
    """Calls of a model that run at once. If the model is a path and its thread budget exceeds one, each instance has its own
    module. Default: 1."""
    max_queue: int = option(128, at_least=1)
    """Requests that wait for a model; more get status 503."""
    max_request_bytes: int = option(64 << 20, at_least=1)
    """Size of a request's body, in bytes, and elements of a tensor, at most."""
    body_timeout: float = option(30.0, above=0)
    """Time for a request's body to arrive, in seconds; otherwise status 408."""
    max_sessions: int = option(256, at_least=0)
    """Sessions of a model at once."""
    session_idle: float = option(300.0, above=0)
    """Time after which an unused session expires, in seconds."""
    explicit_sessions: bool = False
    """Only ``session_start`` begins a session. Other requests with an unknown session get status 404. For several replicas,
    where a request may reach one that does not have its session."""
    model_control: bool = True
    """Requests may load and unload models, as Triton's clients do."""

    def __post_init__(self) -> None:
        check_options(self)
        sizes = self.batch if isinstance(self.batch, list | tuple) else [self.batch]
        if self.batch is not None and (not sizes or any(type(size) is not int or size < 1 for size in sizes)):
            raise OptionError(f"batch must be a positive number of rows or a list of such; got {self.batch!r}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Allowed batch sizes, sorted; empty if requests are not batched."""
        sizes = {*self.batch} if isinstance(self.batch, Sequence) else {self.batch or 1}
        return tuple(sorted(sizes)) if max(sizes) > 1 else ()

    @property
    def rounds_up(self) -> bool:
        """Whether a batch must have exactly one of the `sizes`. Otherwise it has any number of rows up to the largest."""
        return isinstance(self.batch, Sequence)

    def complete(self, serving: Any) -> ServingOptions:
        """Replace options that are None by those of ``serving``, the serving configuration of a module, or None."""
        if serving is None:
            return self
        batch = list(serving.sizes) or serving.batch
        return replace(self, batch=batch if self.batch is None else self.batch, instances=self.instances or serving.instances)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(entry.name for entry in fields(cls))

    @classmethod
    def make(cls, options: Mapping[str, Any]) -> ServingOptions:
        """Create the options from keywords; raises OptionError for an unknown name."""
        names = cls.names()
        for name in options:
            if name not in names:
                raise OptionError(f"xrt.serve has no option {name!r}.{did_you_mean(name, names)} It has: {', '.join(names)}")
        return cls(**options)


_MAX_NAME_CHARS = 256
_MAX_FORGOTTEN = 100_000
"""The number of ended sessions whose names are remembered, at about 100 bytes each. Requests for these get status 410. The name
of a session that ended earlier can be used again."""
_MAX_REASON_CHARS = 200
"""The stored reason why a session ended is cut to this length."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    name: str
    start: bool | None = None
    """True: start a new state. False: the session must exist. None: an unknown session is created, except with the option
    `ServingOptions.explicit_sessions`."""
    end: bool = False
    """Drop the session after this call."""


def read_session(parameters: Mapping[str, Any], header: str = "") -> SessionRequest | None:
    """Read the session of a request from its parameters and ``header``; return None if the request has no session.

    The parameters are ``session_id``, ``session_start`` and ``session_end``, or with Triton's names ``sequence_id``,
    ``sequence_start`` and ``sequence_end``. ``header`` is the session's name from a header, or empty. Raises RequestRefusal if a
    parameter is invalid or contradicts the header.
    """
    prefix = "session" if "session_id" in parameters or "sequence_id" not in parameters else "sequence"
    id_key, start_key, end_key = (f"{prefix}_{suffix}" for suffix in ("id", "start", "end"))
    name = parameters.get(id_key, header or None)
    if name is None and id_key in parameters:
        raise RequestRefusal(
            f"parameter {id_key!r} is null; give a string of at most {_MAX_NAME_CHARS} characters, or leave it out"
        )
    if name is None and (start_key in parameters or end_key in parameters):
        flag = start_key if start_key in parameters else end_key
        raise RequestRefusal(f"parameter {flag!r} is about a session, and the request names none; give 'session_id'")
    if name is None or (prefix == "sequence" and name in (0, "")):  # Triton's clients send 0 or "" for no sequence
        return None
    if isinstance(name, bool) or not isinstance(name, str | int) or not 0 < len(str(name)) <= _MAX_NAME_CHARS:
        raise RequestRefusal(f"parameter {id_key!r} must be a string of at most {_MAX_NAME_CHARS} characters, or a number")
    if header and str(name) != header:
        raise RequestRefusal(f"parameter {id_key!r} and the header name two sessions; a request belongs to one")
    for flag in (start_key, end_key):
        if not isinstance(parameters.get(flag), bool | None):
            raise RequestRefusal(f"parameter {flag!r} must be true or false")
    return SessionRequest(str(name), parameters.get(start_key), bool(parameters.get(end_key)))


@dataclass(slots=True, eq=False)
class SessionEntry:
    session: Any
    """The module's session, which has the state."""
    last_used: float = 0.0
    """Time of the last use, by the `clock` of the `SessionTable`."""
    has_started: bool = False
    """Whether the latest request for the session has left the queue, so that its call may have changed the state."""

    def note_start(self) -> None:
        """Record that the latest request for the session has left the queue."""
        self.has_started = True


@dataclass
class SessionTable:
    """The sessions of a model by name. Use it from the event loop only."""

    make: Callable[[], Any]
    """Creates a session of the module, with a new state."""
    max_sessions: int
    idle_seconds: float
    explicit: bool = False
    """Whether only ``session_start`` creates a session."""
    clock: Callable[[], float] = time.monotonic
    _entries: OrderedDict[str, SessionEntry] = field(default_factory=OrderedDict)
    """The sessions by name, least recently used first. A new session is added when its first call has succeeded."""
    _busy: set[str] = field(default_factory=set)
    """Names of the sessions with a request that is queued or running."""
    _forgotten: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """Why a session has ended, by the hash of its name, oldest first."""
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._expiry_reason = f"it was not used for {self.idle_seconds:g} s"  # `_forgotten` has up to 100,000 references to it

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def enter(self, request: SessionRequest) -> Iterator[SessionEntry]:
        """Reserve a session for the duration of the block, which calls the session once; yield its entry.

        The caller must call `note_start` of the entry when the call begins. If the block fails or is cancelled before that, no
        session changes. Raises RequestRefusal if the session is busy or has ended, or if there are too many sessions.
        """
        self.sweep()
        name = request.name
        if name in self._busy:
            raise RequestRefusal(f"a call of session {name!r} is under way; a session makes one call at a time", Status.CONFLICT)
        entry = self._entries.get(name)
        if entry is None or request.start:
            self._check_new(request)
            entry = SessionEntry(self.make())
        entry.has_started = False
        self._busy.add(name)
        try:
            yield entry
            self._entries[name] = entry
            self._forgotten.pop(hash(name), None)
            if request.end:
                del self._entries[name]
        except BaseException as error:
            if entry.has_started:
                self._note_failure(name, entry, error)
            raise
        finally:
            self._busy.discard(name)
            if name in self._entries:
                self._entries[name].last_used = self.clock()
                self._entries.move_to_end(name)  # the order that `sweep` relies on
            self._start_timer()

    def _note_failure(self, name: str, entry: SessionEntry, error: BaseException) -> None:
        """Forget a session whose call failed with ``error``, if its state may be partially updated."""
        if isinstance(error, asyncio.CancelledError):  # the call goes on in its thread and changes the state
            self.forget(name, "a call of it was cancelled while it ran")
        # After BAD_REQUEST the state is intact, because inputs are checked before it changes. If a step detects an invalid input
        # only after it has overwritten a part of the state, the session is `lost`.
        elif not (isinstance(error, RequestRefusal) and error.status == Status.BAD_REQUEST) or entry.session.lost:
            self.forget(name, f"a call of it failed: {error}")

    def _check_new(self, request: SessionRequest) -> None:
        """Raise RequestRefusal if the request must not start a new session, which may replace one of the same name."""
        if not request.start and (reason := self._forgotten.get(hash(request.name))) is not None:
            raise RequestRefusal(f"session {request.name!r} is gone: {reason}; begin again with session_start", Status.GONE)
        if request.start is False or (self.explicit and not request.start):
            raise RequestRefusal(f"there is no session {request.name!r}; begin it with session_start", Status.NOT_FOUND)
        if request.name not in self._entries and len(self._entries.keys() | self._busy) >= self.max_sessions:
            message = f"{self.max_sessions} sessions are in use, which is the limit; end one, or try again"
            raise RequestRefusal(message, Status.BUSY)

    def sweep(self) -> None:
        """Remove sessions that have been idle for too long."""
        oldest_use = self.clock() - self.idle_seconds
        for name, entry in list(self._entries.items()):
            # Entries are ordered by their last use, so the following ones have not expired.
            if entry.last_used > oldest_use:
                break
            if name not in self._busy:
                self.forget(name, self._expiry_reason)

    def forget(self, name: str, reason: str) -> None:
        """Remove a session. Later requests for it get status 410 with the reason, unless they start a new one."""
        self._entries.pop(name, None)
        # The hash is enough to find the reason, and it needs less memory than a long name.
        self._forgotten[hash(name)] = reason[:_MAX_REASON_CHARS]
        while len(self._forgotten) > _MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def forget_sessions_of(self, old: SessionTable, reason: str) -> None:
        """Forget the sessions of ``old``, the table of the replaced model: requests for them get status 410 with the reason."""
        self._forgotten = old._forgotten.copy()
        for name in (*old._entries, *old._busy):
            self.forget(name, reason)

    def _start_timer(self) -> None:
        """Start the timer unless it is running. It removes idle sessions even if no request follows."""
        if self._timer is None and self._entries:
            self._timer = asyncio.get_running_loop().call_later(self.idle_seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.sweep()
        self._start_timer()

    def close(self) -> None:
        """Drop all sessions and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._entries.clear()
