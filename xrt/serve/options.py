"""How models are served: batches, instances, and the bounds on what requests may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from xrt.errors import OptionError

__all__ = ["ServingOptions"]

_LEAST = {"instances": 1, "max_queue": 1, "max_request_bytes": 1, "max_sessions": 0}


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Options of one served model; None where the module's own serving configuration decides, if it has one."""

    batch: int | Sequence[int] | None = None
    """Rows that requests are joined to, at most. A list gives the sizes that are run: as many requests as make one of them; a
    request of another size is run with its rows repeated up to the next."""
    max_wait: float | None = None
    """Seconds that a request waits for others to fill its batch. 0: it is joined with what is queued when an instance is free."""
    instances: int | None = None
    """Calls that run at once. Those of a model that is a path have modules of their own where its budget is more than one
    thread. Default: 1."""
    max_queue: int = 128
    """Requests that wait; one more is refused with status 503."""
    max_request_bytes: int = 64 << 20
    """Bytes of a request's body, and elements of one of its tensors."""
    body_timeout: float = 30.0
    """Seconds in which a request's body must arrive; a later one is refused with status 408. `xrt.serve.run_server` waits as long
    for the headers, and for a client to read its answer."""
    max_sessions: int = 256
    """Sessions that a model keeps at once."""
    session_idle: float = 300.0
    """Seconds after which an unused session is forgotten."""
    explicit_sessions: bool = False
    """Whether a session begins with ``session_start`` alone; a request of another one is refused with status 404. It is for
    several replicas, where a request may come to one that does not have its session."""

    model_control: bool = True
    """Whether requests may load models again and unload them, as clients of Triton do."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise OptionError(f"{name} must be an integer of at least {least}; got {value!r}")
        for name in ("explicit_sessions", "model_control"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is True or False; got {getattr(self, name)!r}")
        for name in ("max_wait", "body_timeout", "session_idle"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise OptionError(f"{name} is a number of seconds from 0 on; got {value!r}")
        given = self.batch if isinstance(self.batch, list | tuple) else [self.batch]
        if self.batch is not None and (not given or any(type(size) is not int or size < 1 for size in given)):
            raise OptionError(f"batch is a number of rows from 1 on, or a list of such; got {self.batch!r}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of batches in order; empty where requests are not joined."""
        given = {*self.batch} if isinstance(self.batch, Sequence) else {self.batch or 1}
        return tuple(sorted(given)) if max(given) > 1 else ()

    @property
    def rounds_up(self) -> bool:
        """Whether a batch has one of the sizes, not any number of rows below the largest."""
        return isinstance(self.batch, Sequence)

    def complete(self, tuned: Any) -> ServingOptions:
        """Return these options with those of a module's serving configuration where they are None."""
        if tuned is None:
            return self
        sizes = tuple(getattr(tuned, "sizes", ()) or ())
        batch = list(sizes) if sizes else getattr(tuned, "batch", None)
        found: dict[str, Any] = {
            "batch": batch,
            "instances": getattr(tuned, "instances", None),
        }
        return replace(self, **{name: value for name, value in found.items() if getattr(self, name) is None})

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the options."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> ServingOptions:
        """Return the options of that mapping; raises OptionError for an unknown name."""
        if unknown := [name for name in given if name not in cls.names()]:
            raise OptionError(f"xrt.serve has no option {unknown[0]!r}; it has: {', '.join(cls.names())}")
        return cls(**given)
