"""A Plan as bytes: it comes back equal, equal Plans give equal bytes, and damage is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xrt.engines import create
from xrt.errors import BundleError
from xrt.formats.protobuf import read_plan, write_plan
from xrt.graph import DType, Function, Node, TensorType, Value, read_attributes
from xrt.models import load_light
from xrt.partition import ClusteringOptions, Plan, partition

F2 = TensorType(DType.FLOAT32, (2,))


def sample() -> Function:
    """Control edges, a device, a body that captures, and an alias."""
    branch = Function((), (Value("u", F2),), (Node("Neg", ("t",), ("u",)),), opsets={"": 20})
    other = Function((), (Value("v", F2),), (Node("Abs", ("t",), ("v",)),), opsets={"": 20})
    nodes = (
        Node("Mul", ("x", "x"), ("t",), name="first", device="cpu"),
        Node("Add", ("t", "x"), ("s",), name="second", control=("first",)),
        Node("If", ("c",), ("y",), read_attributes({"then_branch": branch, "else_branch": other}), name="third"),
    )
    inputs = (Value("x", F2), Value("c", TensorType(DType.BOOL, ())))
    return Function(inputs, (Value("y", F2), Value("s", F2)), nodes, {}, {"": 20}, aliases=(("x", "s"),), metadata={"k": "v"})


def plans() -> list[Plan]:
    toy, ort = create("toy"), create("ort{config.session.intra_op.allow_spinning=0}")
    options = ClusteringOptions(maximum_nodes=4, pins=("Conv=ort", "name:n1*!=toy"))
    return [
        partition(sample(), [toy]),
        partition(sample(), [ort, toy], ClusteringOptions(maximum_nodes=1, pins=("Mul|If=toy",)), implicit="toy"),
        partition(load_light("squeezenet"), [create("ort"), toy], options),
    ]


PLANS = plans()


@pytest.mark.parametrize("plan", PLANS, ids=["one", "two", "squeezenet"])
def test_a_plan_comes_back_equal(plan: Plan) -> None:
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert again.to_bytes() == plan.to_bytes()


def message(plan: Plan) -> dict[str, object]:
    return read_plan(plan.to_bytes())


def test_bytes_that_are_no_plan_are_refused() -> None:
    with pytest.raises(BundleError, match=r"^these 7 bytes are not a serialised Plan: "):
        Plan.from_bytes(b"\xffjunk!!")


def test_a_launch_that_is_lost_is_reported() -> None:
    data = write_plan({**message(PLANS[1]), "launches": ()})
    with pytest.raises(BundleError) as caught:
        Plan.from_bytes(data)
    assert str(caught.value) == f"the Plan is damaged: it has {len(PLANS[1].launches)} launch nodes and no launch for 'xrt_toy_0'"


def test_an_option_that_cannot_be_is_reported() -> None:
    options = {"minimum_nodes": 5, "maximum_nodes": 2, "pins": ()}
    data = write_plan({**message(replace(PLANS[0])), "options": options})
    with pytest.raises(BundleError, match=r"^the Plan is damaged: minimum_nodes=5 is more than maximum_nodes=2"):
        Plan.from_bytes(data)
