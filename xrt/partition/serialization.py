"""A Plan as bytes and back: what a later process needs in order to compile it, reasons included."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from xrt.errors import BundleError, XRTError
from xrt.formats.protobuf import read_plan, write_plan
from xrt.graph import Function, Node
from xrt.partition.options import read_options
from xrt.partition.plan import Plan, Reason, launch_node


def to_bytes(plan: Plan) -> bytes:
    """Serialize a Plan as a message of ``proto/xrt.proto``; equal Plans give equal bytes.

    Includes all constants. Raises BundleError above 2 GB, and ModelError for a region that ONNX cannot express.
    """
    return write_plan(to_message(plan))


def to_message(plan: Plan) -> dict[str, Any]:
    """Convert a Plan to the values of its message."""
    # Bodies are stored once, as launches, not as attributes of the launch nodes.
    bare = tuple(replace(node, attributes=()) for node in plan.function.nodes)
    return {
        "function": plan.function.replace(nodes=bare),
        "launches": [{"name": x.name, "engine": x.engine, "nodes": x.nodes, "function": x.function} for x in plan.launches],
        "engines": plan.engines,
        "reasons": [asdict(reason) for reason in plan.reasons],
        "options": asdict(plan.options),
        "implicit": plan.implicit,
        "device": "" if plan.device == "cpu" else plan.device,
    }


def from_bytes(data: bytes) -> Plan:
    """Deserialize a Plan written by `to_bytes`.

    Raises BundleError if the data is corrupt or not a Plan.
    """
    return from_message(read_plan(data))


def from_message(values: dict[str, Any]) -> Plan:
    """Convert the values of a message to a Plan; raises BundleError as `from_bytes` does."""
    try:
        return _plan(values)
    except XRTError as error:
        raise BundleError(f"the Plan is damaged: {error}") from error


def _plan(values: dict[str, Any]) -> Plan:
    options = values["options"]
    if options is None or values["function"] is None:
        raise BundleError("it has no model or no options")
    frame, launches = values["function"], {launch["name"]: launch for launch in values["launches"]}
    return Plan(
        function=frame.replace(nodes=tuple(_with_launch(node, launches, frame) for node in frame.nodes)),
        engines=values["engines"],
        reasons=tuple(Reason(**reason) for reason in values["reasons"]),
        options=read_options(options),
        implicit=values["implicit"],
        device=values["device"] or "cpu",
    )


def _with_launch(node: Node, known: dict[str, dict[str, Any]], frame: Function) -> Node:
    """Restore the attributes of a launch node."""
    launch = known.get(node.name)
    if launch is None or launch["function"] is None:
        raise BundleError(f"it has {len(frame.nodes)} launch nodes and no launch for {node.name!r}")
    engine, body, nodes = launch["engine"], launch["function"], launch["nodes"]
    return launch_node(node.name, engine, body, nodes, device=node.device, control=node.control)
