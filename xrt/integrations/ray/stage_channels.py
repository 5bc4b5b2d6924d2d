"""How values go from stage to stage: by calls of actors, or by a compiled graph of Ray.

Both have the same methods. `ActorCalls` sends references to objects in Ray's store, and a process that waits sleeps.
`CompiledGraph` writes into memory that the next process polls: a message costs a fraction of a call, and each thread that
polls takes a core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from xrt.errors import OptionError, did_you_mean
from xrt.integrations.ray.grant import import_ray
from xrt.integrations.ray.stage_process import StageProcess

__all__ = ["ActorCalls", "ChannelKind", "CompiledGraph", "StageChannel", "choose_channel", "inline_results"]

ChannelKind: TypeAlias = Literal["auto", "calls", "graph"]

PIECE = 90_000
"""Bytes of an argument that Ray sends with the call, and not through its store."""
INPUT = 1 << 20
"""Bytes of the inputs that are sent in such pieces."""
BETWEEN = 4 << 20
"""Bytes of a value between stages up to which to pass it through the caller is cheaper than through the store."""
RESULT = 64 << 20
"""Bytes of results up to which the last stage sends them with its answer."""
FRAME = 1 << 20
"""Bytes of a message of a compiled graph beyond its values."""


class StageChannel(Protocol):
    """A way through all stages, for one thread at a time."""

    kind: str
    keeps_actors: bool
    """Whether the actors can be used when it is closed."""

    def send(self, values: list[Any]) -> Any:
        """Send values to the first stage, and return a reference to what the last one will send."""

    def receive(self, reference: Any) -> Any:
        """Wait for a result; raises GetTimeoutError or RayChannelTimeoutError where it takes too long."""

    def drop(self, references: Sequence[Any]) -> None:
        """Give up results that are not awaited any more."""

    def close(self) -> None:
        """Release what belongs to the channel."""


class ActorCalls:
    """One call of each actor for each part; the arguments are references.

    Small values are in the messages, and pass the caller: those to the first stage up to `INPUT` bytes, in pieces, since Ray
    puts every argument over 100 kB into its object store; the others as `inline_results` says. Larger ones go through the
    store, from node to node; processes of a node share them there without a copy. Between nodes the store costs some 5 ms of
    processor time for 0.1 MB as for 1 MB, a message 0.5 to 2. A node of Ray 2.60 that sends and receives through its store
    at the same time took up to a second for each value, so the results of the last stage avoid it.
    """

    kind, keeps_actors = "calls", True

    def __init__(self, actors: Sequence[Any], timeout: float) -> None:
        self._actors, self._timeout = tuple(actors), timeout

    def send(self, values: list[Any]) -> Any:
        first, *others = self._actors
        if sum(value.nbytes for value in values) <= INPUT:
            pieces = [np.array_split(value.reshape(-1), max(1, -(-value.nbytes // PIECE))) for value in values]
            shapes = [(value.shape, len(some)) for value, some in zip(values, pieces, strict=True)]
            reference = first.run_pieces.remote(shapes, *chain(*pieces))
        else:
            reference = first.run.remote(values)
        for actor in others:
            reference = actor.run.remote(reference)
        return reference

    def receive(self, reference: Any) -> Any:
        return import_ray().get(reference, timeout=self._timeout)

    def drop(self, references: Sequence[Any]) -> None:
        """Forget them: stages compute what was sent, and Ray frees it."""

    def close(self) -> None:
        """Do nothing: calls hold nothing."""


def inline_results(options: Mapping[str, Any], *, is_last: bool) -> dict[str, Any]:
    """Return the options of an actor of Ray with the size up to which its results are in its answers."""
    limit = RESULT if is_last else BETWEEN
    sizes = {"RAY_max_direct_call_object_size": str(limit), "RAY_task_rpc_inlined_bytes_limit": str(4 * limit)}
    environment = options.get("runtime_env") or {}
    return {**options, "runtime_env": {**environment, "env_vars": {**sizes, **(environment.get("env_vars") or {})}}}


class CompiledGraph:
    """A compiled graph of Ray through the actors, whose messages have at most ``largest`` bytes of values."""

    kind, keeps_actors = "graph", False

    def __init__(self, actors: Sequence[Any], timeout: float, largest: int, limit: int) -> None:
        from ray.dag import InputNode

        with InputNode() as values:
            for actor in actors:
                values = actor.run.bind(values)  # noqa: PLW2901  # a chain
        self._timeout = timeout
        self._graph = values.experimental_compile(
            _submit_timeout=timeout,
            _buffer_size_bytes=FRAME + 2 * largest,
            _max_inflight_executions=limit,
            _max_buffered_results=limit,
        )

    def send(self, values: list[Any]) -> Any:
        return self._graph.execute(values)

    def receive(self, reference: Any) -> Any:
        return reference.get(timeout=self._timeout)

    def drop(self, references: Sequence[Any]) -> None:
        """Take them, so that the next part finds the graph empty; none is awaited once one has failed."""
        with suppress(Exception):
            for reference in references:
                reference.get(timeout=self._timeout)

    def close(self) -> None:
        """End the graph and its actors: an actor of a graph that broke may never return from it."""
        if self._graph is not None:
            self._graph.teardown(kill_actors=True)
            self._graph = None  # it keeps the processors of its actors as long as it exists


def choose_channel(kind: ChannelKind, caller: StageProcess, stages: Sequence[StageProcess]) -> str:
    """Return ``"calls"`` or ``"graph"``; for ``"auto"`` a graph where each machine has a core for all that polls and computes.

    In a graph of Ray 2.60 a process polls for its next message without a pause, and so does a second thread wherever the reader
    is on another node. Ray runs actors at a nice value of 15 and the caller at its own: on few cores the two threads of the
    caller alone leave the stages a few percent of the time.
    """
    if kind not in ("auto", "calls", "graph"):
        raise OptionError(
            f"channel must be 'auto', 'calls' or 'graph'; got {kind!r}.{did_you_mean(kind, ('auto', 'calls', 'graph'))}"
        )
    if kind != "auto":
        return kind
    busy = Counter({caller.machine: caller.threads})
    for stage in stages:
        busy[stage.machine] += stage.threads
    for sender, reader in pairwise((caller, *stages, caller)):
        busy[sender.machine] += sender.node != reader.node
    cores = {process.machine: process.cores for process in (caller, *stages)}
    return "graph" if all(count <= cores[machine] for machine, count in busy.items()) else "calls"
