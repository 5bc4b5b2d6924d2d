"""Sessions by name: limited in number and idle time, with one call at a time."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from xrt.serve.protocol import BUSY, CONFLICT, GONE, MALFORMED, UNKNOWN, RequestRefusal

__all__ = ["SessionRequest", "SessionTable", "read_session"]

_MAX_NAME = 256
_REMEMBERED = 100_000
"""Number of expired sessions that are remembered to answer 410, at about 100 bytes each. Older names start a new state."""
_LONGEST_REASON = 200
"""In characters."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session parameters of a request."""

    name: str
    start: bool | None = None
    """True: start a new state. False: the session must exist. None: create it if missing, unless sessions are explicit."""
    end: bool = False
    """Drop the session after this call."""


def read_session(parameters: Mapping[str, Any], header: str = "") -> SessionRequest | None:
    """Read the session of a request from its parameters or a header; None if it names none.

    ``session_id``, ``session_start`` and ``session_end`` are XRT's names; ``sequence_id``, ``sequence_start`` and
    ``sequence_end`` are Triton's. Raises RequestRefusal.
    """
    kind = "session" if "session_id" in parameters or "sequence_id" not in parameters else "sequence"
    name = parameters.get(f"{kind}_id", header or None)
    if name is None and f"{kind}_id" in parameters:
        raise RequestRefusal(f"parameter '{kind}_id' is null; give a text of at most {_MAX_NAME} characters, or leave it out")
    if name is None and (alone := next((flag for flag in ("session_start", "session_end") if flag in parameters), None)):
        raise RequestRefusal(f"parameter {alone!r} is about a session, and the request names none; give 'session_id'")
    if name is None or (kind == "sequence" and name in (0, "")):  # Triton's clients send 0 or "" for no sequence
        return None
    if isinstance(name, bool) or not isinstance(name, str | int) or not 0 < len(str(name)) <= _MAX_NAME:
        raise RequestRefusal(f"parameter '{kind}_id' is a text of at most {_MAX_NAME} characters, or a number")
    if header and str(name) != header:
        raise RequestRefusal(f"parameter '{kind}_id' and the header name two sessions; a request belongs to one")
    flags = {flag: parameters.get(f"{kind}_{flag}") for flag in ("start", "end")}
    for flag, value in flags.items():
        if value is not None and not isinstance(value, bool):
            raise RequestRefusal(f"parameter '{kind}_{flag}' is true or false")
    return SessionRequest(str(name), flags["start"], bool(flags["end"]))


@dataclass(slots=True, eq=False)
class _Entry:
    """A session and its usage."""

    session: Any
    used: float
    is_busy: bool = False


@dataclass
class SessionTable:
    """The sessions of a model. Used from the event loop only."""

    make: Callable[[], Any]
    most: int
    idle: float
    explicit: bool = False
    """Whether only ``session_start`` creates a session."""
    clock: Callable[[], float] = time.monotonic
    _entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    """Least recently used first."""
    _forgotten: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """Hash of the name to the reason why the session is gone."""
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._expired = f"it was not used for {self.idle:g} s"  # one string shared by all entries

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def enter(self, request: SessionRequest) -> Iterator[Any]:
        """Use the session for one call; raises RequestRefusal if it is busy or gone, or if there are too many."""
        entry = self._find(request)
        entry.is_busy = True
        try:
            yield entry.session
        except BaseException as error:
            if not (isinstance(error, RequestRefusal) and error.status == MALFORMED):
                self.forget(request.name, f"a call of it failed: {error}")  # its state may be partially updated
            raise
        finally:
            entry.is_busy, entry.used = False, self.clock()
            if request.end:
                self._entries.pop(request.name, None)
            self._watch()

    def _find(self, request: SessionRequest) -> _Entry:
        self.sweep()
        entry = self._entries.get(request.name)
        if entry is not None and entry.is_busy:
            raise RequestRefusal(f"a call of session {request.name!r} is under way; a session makes one call at a time", CONFLICT)
        if entry is None or request.start:
            self._check_new(request, is_known=entry is not None)
            entry = self._entries[request.name] = _Entry(self.make(), self.clock())
            self._forgotten.pop(hash(request.name), None)
        self._entries.move_to_end(request.name)
        return entry

    def _check_new(self, request: SessionRequest, *, is_known: bool) -> None:
        if not request.start and (why := self._forgotten.get(hash(request.name))) is not None:
            raise RequestRefusal(f"session {request.name!r} is gone: {why}; begin again with session_start", GONE)
        if request.start is False or (self.explicit and not request.start):
            raise RequestRefusal(f"there is no session {request.name!r}; begin it with session_start", UNKNOWN)
        if not is_known and len(self._entries) >= self.most:
            raise RequestRefusal(
                f"{self.most} sessions are in use, and there are no more; end one, or try again", BUSY, retry_after=1
            )

    def sweep(self) -> None:
        """Expire sessions that have been idle for too long."""
        limit = self.clock() - self.idle
        for name, entry in list(self._entries.items()):
            # Entries are ordered by use, so all later ones are fresh.
            if entry.used > limit and not entry.is_busy:
                break
            if not entry.is_busy:
                self.forget(name, self._expired)

    def forget(self, name: str, why: str) -> None:
        """Remove a session; later requests for it get the reason."""
        self._entries.pop(name, None)
        # The hash suffices for a message and bounds the memory per name.
        self._forgotten[hash(name)] = why[:_LONGEST_REASON]
        while len(self._forgotten) > _REMEMBERED:
            self._forgotten.popitem(last=False)

    def inherit(self, old: SessionTable, why: str) -> None:
        """Mark the sessions of the replaced table as gone."""
        self._forgotten = old._forgotten
        for name in list(old._entries):
            self.forget(name, why)

    def _watch(self) -> None:
        """Expire idle sessions on a timer, not only on the next request."""
        if self._timer is None and self._entries:
            self._timer = asyncio.get_running_loop().call_later(self.idle, self._look)

    def _look(self) -> None:
        self._timer = None
        self.sweep()
        self._watch()

    def close(self) -> None:
        """Drop all sessions."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._entries.clear()
