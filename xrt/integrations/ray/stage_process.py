"""The processes of a pipeline's stages: what each one runs, how they start, and which of them has ended.

Every wait ends. Each process reads the model from a path that its machine has, and touches the weights of its stage alone:
they are mapped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from xrt.errors import EngineError, StageLost, XRTError
from xrt.integrations.batch.model import open_model
from xrt.integrations.ray.grant import count_granted_threads, import_ray
from xrt.module.stages import StageProgram, compile_stage, defer_weight_checks
from xrt.partition.stages import cut_plan
from xrt.runtime import available_cores

__all__ = [
    "StageFailure",
    "StageProcess",
    "StageSource",
    "describe_process",
    "end_stages",
    "find_lost_stages",
    "load_stages",
    "name_stages",
    "start_stages",
]


@dataclass(frozen=True, slots=True)
class StageProcess:
    """Where a stage runs."""

    threads: int
    pid: int
    """The number of the process on its machine."""
    machine: str
    """The address of the machine, which several nodes of Ray may share."""
    node: str
    """The identity of Ray's node."""
    cores: int
    """The cores of the machine that the process may use."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """What a stage sends in place of values."""

    error: Exception


@dataclass(frozen=True, slots=True)
class StageSource:
    """What a process makes its stage of."""

    path: str
    engine: Any
    ends: tuple[int, ...]
    """Where each stage of the plan ends (`cut_plan`)."""
    sizes: Mapping[str, int]


def describe_process(threads: int) -> StageProcess:
    """Return where this process runs, as one that computes with so many threads."""
    ray = import_ray()
    node = ray.get_runtime_context().get_node_id()
    return StageProcess(threads, os.getpid(), ray.util.get_node_ip_address(), node, available_cores())


class StageActor:
    """One stage in a process of its own, which holds nothing until `load`: so a process that cannot start is no slow model."""

    def __init__(self, source: StageSource, place: int) -> None:
        self._source, self._place = source, place
        self._program: StageProgram | None = None

    def answer(self) -> None:
        """Return, once what was asked before is done."""

    def load(self) -> StageProcess | StageFailure:
        """Open the model and compile the stage."""
        try:
            source = self._source
            module = open_model(source.path, engine=source.engine, threads=count_granted_threads())
            defer_weight_checks(module)
            self._program = compile_stage(module, cut_plan(module.plan, source.ends, source.sizes)[self._place])
            return describe_process(module.threads)
        except Exception as error:  # noqa: BLE001  # the caller of the pipeline raises it
            return StageFailure(_make_portable(error))

    def run_pieces(self, shapes: Sequence[tuple[tuple[int, ...], int]], *pieces: Any) -> list[Any] | StageFailure:
        """Return what `run` does for values of those shapes, each of which comes in so many pieces of one dim."""
        left = iter(pieces)
        return self.run([np.concatenate([*islice(left, count)]).reshape(shape) for shape, count in shapes])

    def run(self, values: Sequence[Any] | StageFailure) -> list[Any] | StageFailure:
        """Return what the stage sends; a failure of this stage or an earlier one is a value like others.

        Between machines an exception does not arrive through a compiled graph of Ray 2.60, and its reader waits for ever.
        """
        if isinstance(values, StageFailure):
            return values
        try:
            if self._program is None:
                raise EngineError("a stage was run before its model was loaded; report this with `xrt doctor`")
            return self._program(values)
        except Exception as error:  # noqa: BLE001  # the caller of the pipeline raises it
            return StageFailure(_make_portable(error))


def _make_portable(error: Exception) -> Exception:
    """Return an error of the same class, where that is XRT's and takes a text alone, or one with its text."""
    try:
        return type(error)(str(error)) if isinstance(error, XRTError) else RuntimeError(f"{type(error).__name__}: {error}")
    except TypeError:  # its class needs more
        return EngineError(str(error))


def start_stages(source: StageSource, options: Mapping[int, Mapping[str, Any]], timeout: float) -> dict[int, Any]:
    """Return an actor for each stage of ``options``, which are those of Ray.

    Raises StageLost where Ray starts no process in ``timeout`` seconds, or one ends; then all of them are ended.
    """
    ray = import_ray()
    kind = ray.remote(StageActor)
    actors = {place: kind.options(**one).remote(source, place) for place, one in options.items()}
    asked = "; ".join(sorted({_show_request(one) for one in options.values()}))
    late = (
        f"Ray has started no process for it in {timeout:g} s; each stage asks for {asked}, and the cluster has "
        f"{_show_free(ray)} free: add nodes, ask for less (num_cpus, memory, actor_options), or wait longer (timeout)"
    )
    try:
        _gather({place: actor.answer.remote() for place, actor in actors.items()}, len(source.ends), timeout, late)
    except BaseException:
        end_stages(actors.values())
        raise
    return actors


def load_stages(actors: Mapping[int, Any], count: int, timeout: float) -> dict[int, StageProcess]:
    """Let the actors read and compile their stages, all at the same time, and return where they run.

    Raises what a stage raises, and StageLost where one has ended or is not done in ``timeout`` seconds.
    """
    late = f"it has not loaded its part of the model in {timeout:g} s; wait longer (timeout)"
    found = _gather({place: actor.load.remote() for place, actor in actors.items()}, count, timeout, late)
    for loaded in found.values():
        if isinstance(loaded, StageFailure):
            raise loaded.error
    return found


def end_stages(actors: Any) -> None:
    """End the processes, without waiting."""
    ray = import_ray()
    for actor in actors:
        ray.kill(actor)


def find_lost_stages(actors: Mapping[int, Any], seconds: float, *, any_lost: bool = False) -> tuple[list[int], list[int]]:
    """Return the stages whose process has ended, and those that live and have not answered in that time: they still compute.

    With ``any_lost`` the first that has ended ends the wait.
    """
    ray = import_ray()
    asked = {actor.answer.remote(): place for place, actor in actors.items()}
    lost: list[int] = []
    until = time.monotonic() + seconds
    while asked and not (any_lost and lost):
        done, _ = ray.wait(list(asked), num_returns=1, timeout=max(0.0, until - time.monotonic()))
        if not done:
            break
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)  # what else is known
        for reference in done:
            place = asked.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayError:
                lost.append(place)
    return sorted(lost), sorted(asked.values())


def name_stages(places: Sequence[int], count: int) -> str:
    """Return ``stage 2 of 4``, or ``stages 2, 3 of 4``."""
    return f"stage{'s' if len(places) > 1 else ''} {', '.join(str(place + 1) for place in sorted(places))} of {count}"


def _gather(references: Mapping[int, Any], count: int, timeout: float, late: str) -> dict[int, Any]:
    """Return the result of each stage; raise StageLost at the first that has ended, or for those that are late."""
    ray = import_ray()
    places = {reference: place for place, reference in references.items()}
    found: dict[int, Any] = {}
    until = time.monotonic() + timeout
    while len(found) < len(places):
        left = [reference for reference, place in places.items() if place not in found]
        done, _ = ray.wait(left, num_returns=1, timeout=max(0.0, until - time.monotonic()))
        if not done:
            missing = [places[reference] for reference in left]
            raise StageLost(f"{name_stages(missing, count)} cannot be used: {late}", tuple(missing))
        for reference in done:
            place = places[reference]
            try:
                found[place] = ray.get(reference)
            except ray.exceptions.RayError as error:
                text = f"{name_stages([place], count)} ended before it was ready ({type(error).__name__}); see the log of Ray"
                raise StageLost(text, (place,)) from error
    return found


def _show_request(options: Mapping[str, Any]) -> str:
    asked = {"CPU": options.get("num_cpus"), "memory": options.get("memory"), **options.get("resources", {})}
    return ", ".join(f"{name} {amount:g}" for name, amount in asked.items() if amount)


def _show_free(ray: Any) -> str:
    free = ray.available_resources()
    shown = {name: free.get(name, 0.0) for name in ("CPU", "memory")}
    return ", ".join(f"{name} {amount:g}" for name, amount in shown.items())
