"""A request that is not served: one class for both transports, with the status of each."""

from __future__ import annotations

__all__ = [
    "BUSY",
    "CONFLICT",
    "FAILED",
    "GONE",
    "LATE",
    "MALFORMED",
    "OK",
    "TOO_LARGE",
    "UNKNOWN",
    "WRONG_METHOD",
    "RequestRefusal",
]

OK = 200
MALFORMED, UNKNOWN, WRONG_METHOD, LATE, CONFLICT, GONE, TOO_LARGE = 400, 404, 405, 408, 409, 410, 413
FAILED, BUSY = 500, 503

_GRPC = {
    MALFORMED: "INVALID_ARGUMENT",
    UNKNOWN: "NOT_FOUND",
    WRONG_METHOD: "UNIMPLEMENTED",
    LATE: "DEADLINE_EXCEEDED",
    CONFLICT: "ABORTED",
    GONE: "FAILED_PRECONDITION",
    TOO_LARGE: "RESOURCE_EXHAUSTED",
    FAILED: "INTERNAL",
    BUSY: "UNAVAILABLE",
}


_LONGEST = 2000
"""Characters of a message: a client's names are repeated in it."""


class RequestRefusal(Exception):
    """Why a request gets no result, as its client reads it."""

    def __init__(self, message: str, status: int = MALFORMED, *, retry_after: int | None = None) -> None:
        super().__init__(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}...")
        self.status = status
        """The status of HTTP."""
        self.retry_after = retry_after
        """Seconds after which the client may try again."""

    @property
    def code(self) -> str:
        """The name of gRPC's status."""
        return _GRPC[self.status]
