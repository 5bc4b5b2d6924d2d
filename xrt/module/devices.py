"""Where a module and its engines run: what may be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xrt.errors import DeviceError, OptionError, did_you_mean
from xrt.graph import FrozenDict
from xrt.graph.device_names import normalize_device
from xrt.runtime import check_device, parse_device_kind

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition.device_map import DeviceMap
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

__all__ = ["check_engines_run", "check_isolated_on_device", "check_recorded", "parse_devices", "validate_devices"]


def validate_devices(value: Any) -> Mapping[str, str]:
    """Return devices by engine; raises OptionError for another form, DeviceError for an unknown device."""
    if value is None:
        return FrozenDict()
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"devices maps engines to devices, such as {{'ort': 'cuda', 'tvm': 'cpu'}}; got {value!r}")
    return FrozenDict({name: check_device(device) for name, device in value.items()})


def parse_devices(
    engines: Sequence[GraphCompiler], asked: Mapping[str, str], here: str, others: Sequence[str] = ()
) -> Mapping[str, str]:
    """Return by spec what was asked for each engine by name or spec, the spec's word before the name's.

    What was asked for ``others``, which might be in the list, is nothing; so is the device ``here``, where engines run anyway.
    Raises OptionError for an engine that is not in the
    list, DeviceError for one that does not run there.
    """
    known = sorted({word for engine in engines for word in (engine.name, engine.spec)})
    for name in asked:
        if name not in known and name.partition("{")[0] not in others:
            raise OptionError(
                f"devices names {name!r}, which is not in the list of engines: {', '.join(known)}.{did_you_mean(name, known)}"
            )
    found = {}
    for engine in engines:
        device = asked.get(engine.spec, asked.get(engine.name))
        if device is None:
            continue
        if parse_device_kind(device) not in engine.devices:
            raise DeviceError(f"devices asks for {engine.spec} on {device!r}, and it runs on {', '.join(engine.devices)}")
        if normalize_device(device) != normalize_device(here):
            found[engine.spec] = device
    return FrozenDict(found)


def check_engines_run(engines: Sequence[GraphCompiler], device: str, devices: Mapping[str, str]) -> None:
    """Raise DeviceError unless some engine of the list runs on the module's device, or has one of its own."""
    if not any(parse_device_kind(device) in engine.devices or engine.spec in devices for engine in engines):
        able = "; ".join(f"{engine.spec} runs on {', '.join(engine.devices)}" for engine in engines)
        raise DeviceError(f"device {device!r} was asked for, but no engine of the list runs on it: {able}")


def check_recorded(graph: bool, device: str) -> None:
    """Raise OptionError for calls that are to be recorded where nothing can be."""
    if graph and device == "cpu":
        raise OptionError("cuda_graph=True records the work of a device, and the module runs on cpu; pass device='cuda'")


def check_isolated_on_device(engine: IsolatedEngine, homes: DeviceMap, limits: WorkerLimits) -> None:
    """Raise OptionError for an engine in a process of its own that runs elsewhere than on the cpu, where that cannot be.

    Compiling there is no matter of devices; running is, for arrays in a device's memory belong to one process.
    """
    device = homes.of(engine.spec)
    if device == "cpu":
        return
    if engine.runs:
        raise OptionError(
            f"isolate= is for engines on the cpu: arrays on {device} do not cross to another process, where {engine.spec} would "
            f"run, since isolate_run=True asks for it or it cannot save what it compiles; take it out of isolate="
        )
    if limits.memory is not None:
        raise OptionError(
            f"memory_limit= bounds the address space of a process, and a driver of {device} takes more of it than there is memory"
            f"; take {engine.spec} out of isolate=, or leave memory_limit= out"
        )
