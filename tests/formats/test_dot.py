"""A Function as DOT."""

from __future__ import annotations

import numpy as np

from xrt.formats.dump import to_dot
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.models import load_light

F2 = TensorType(DType.FLOAT32, (2,))


def body(name: str, *nodes: Node, output: str) -> Function:
    return Function((), (Value(output, F2),), nodes, opsets={"": 20}, name=name)


def sample() -> Function:
    """A value read twice, a constant, a captured value, a control edge, and names that need quoting."""
    branch = body("then", Node("Neg", ("t",), ("u",)), output="u")
    other = body("else", Node("Abs", ("t",), ("v",)), output="v")
    nodes = (
        Node("Mul", ("x", "x"), ("t",), name='a "quoted" \\ name'),
        Node("Add", ("t", "w"), ("s",), name="add", control=('a "quoted" \\ name',)),
        Node("If", ("c",), ("y",), read_attributes({"then_branch": branch, "else_branch": other}), name="if"),
    )
    inputs = (Value("x", F2), Value("c", TensorType(DType.BOOL, ())))
    constants = {"w": Constant(np.ones(2, np.float32))}
    return Function(inputs, (Value("y", F2), Value("s"), Value("y", F2)), nodes, constants, {"": 20}, name="sample")


DOT = r"""digraph {
  label="sample"; labelloc=t
  node [shape=box, fontname=Helvetica]; edge [fontname=Helvetica, fontsize=10]
  input0 [shape=ellipse, label="x\nfloat32[2]"]
  input1 [shape=ellipse, label="c\nbool[]"]
  output2 [shape=ellipse, label="y\nfloat32[2]"]
  output3 [shape=ellipse, label="s"]
  node0 [label="Mul\na \"quoted\" \\ name"]
  node1 [label="If\nif\nelse_branch=else (1 nodes)\nthen_branch=then (1 nodes)"]
  node2 [label="Add\nadd\nw: float32[2]"]
  input0 -> node0 [label="x\nfloat32[2]"]
  input0 -> node0 [label="x\nfloat32[2]"]
  input1 -> node1 [label="c\nbool[]"]
  node0 -> node1 [label="t", style=dashed]
  node0 -> node2 [label="t"]
  node0 -> node2 [label="", style=dotted]
  node1 -> output2 [label="y\nfloat32[2]"]
  node2 -> output3 [label="s"]
  node1 -> output2 [label="y\nfloat32[2]"]
}
"""


def test_the_picture() -> None:
    assert to_dot(sample()) == DOT


def test_every_edge_of_a_real_model_is_drawn_between_things_that_are_drawn() -> None:
    lines = [line.strip() for line in to_dot(load_light("squeezenet")).splitlines()]
    drawn = {line.split(" ", 1)[0] for line in lines if "[" in line and "->" not in line}
    ends = {end for line in lines if "->" in line for end in line.split(" [")[0].split(" -> ")}
    assert ends == drawn - {"node"}


def test_a_long_attribute_is_cut_short() -> None:
    node = Node("Constant", (), ("y",), read_attributes({"value_ints": list(range(100))}))
    shown = next(
        line for line in to_dot(Function((), (Value("y"),), (node,), opsets={"": 20})).splitlines() if "value_ints" in line
    )
    assert "0, 1, 2" in shown
    assert "…" in shown
    assert "99" not in shown
