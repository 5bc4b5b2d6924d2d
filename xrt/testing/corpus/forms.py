"""Forms of a graph: who reads what, what is an output, what is left out, what waits for what."""

from __future__ import annotations

import numpy as np

from xrt.graph import OptionalType
from xrt.testing.corpus.entry import CorpusEntry, f32, graph, i64, node, sequence, tensor

__all__ = ["ENTRIES"]

X = f32([-1, 2, -3])

ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "lrn_of_an_even_size",
        "an LRN over two channels sums a channel and the next one, not the one before it too",
        graph({"x": "float32[1,3,1]"}, {"y": "float32[1,3,1]"}, node("LRN", "x", "y", size=2, alpha=2.0, beta=1.0, bias=1.0)),
        (f32(1, 2, 3).reshape(1, 3, 1),),
        (f32(1 / 6, 2 / 14, 3 / 10).reshape(1, 3, 1),),
    ),
    CorpusEntry(
        "same_value_twice",
        "the ancestor lost an edge where one operator reads the same value in two places",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Relu", "x", "r"), node("Mul", "r r", "y")),
        (X,),
        (f32(0, 4, 0),),
    ),
    CorpusEntry(
        "input_twice_across_a_cut",
        "a region that reads one value in two places gets it once, and both places must see it",
        graph(
            {"x": "float32[3]"},
            {"y": "float32[3]"},
            node("Neg", "x", "n"),
            node("Concat", "n x n", "c", axis=0),
            node("Slice", "c k0 k3", "y"),
            constants={"k0": i64([0]), "k3": i64([3])},
        ),
        (X,),
        (-X,),
    ),
    CorpusEntry(
        "engines_alternate",
        "the ancestor gave the regions of two engines the same name",
        graph(
            {"x": "float32[3]"},
            {"y": "float32[3]"},
            node("Relu", "x", "a"),
            node("Neg", "a", "b"),
            node("Abs", "b", "c"),
            node("Tanh", "c", "d"),
            node("Relu", "d", "y"),
        ),
        (X,),
        (f32(0, np.tanh(2), 0),),
    ),
    CorpusEntry(
        "two_branches_and_a_join",
        "merging a branch with the join around the other branch makes a cycle between regions",
        graph(
            {"x": "float32[3]"},
            {"y": "float32[3]"},
            node("Relu", "x", "a"),
            node("Neg", "a", "left"),
            node("Tanh", "a", "right"),
            node("Abs", "left", "left2"),
            node("Add", "left2 right", "y"),
        ),
        (X,),
        (f32(0, 2 + np.tanh(2), 0),),
    ),
    CorpusEntry(
        "control_edge_closes_a_cycle",
        "the ancestor's test for cycles did not see that one node waits for another without a value between them",
        graph(
            {"x": "float32[3]"},
            {"y": "float32[3]", "z": "float32[3]"},
            node("Relu", "x", "a", name="first"),
            node("Tanh", "x", "z", name="between", control=("first",)),
            node("Neg", "a", "y", name="last", control=("between",)),
        ),
        (X,),
        (f32(-0.0, -2, -0.0), np.tanh(X)),
    ),
    CorpusEntry(
        "update_in_place",
        "the ancestor lost an update in place where another engine made the new value",
        graph(
            {"state": "float32[3]", "x": "float32[3]"},
            {"new": "float32[3]", "y": "float32[3]"},
            node("Add", "state x", "new"),
            node("Mul", "state x", "y"),
            aliases=(("state", "new"),),
        ),
        (f32(1, 1, 1), X),
        (f32(0, 3, -2), X),
    ),
    CorpusEntry(
        "input_is_output",
        "a value that passes through untouched",
        graph({"x": "float32[3]"}, {"x": "float32[3]", "y": "float32[3]"}, node("Neg", "x", "y")),
        (X,),
        (X, -X),
    ),
    CorpusEntry(
        "constant_is_output",
        "an output that no node computes",
        graph({"x": "float32[3]"}, {"c": "float32[2]", "y": "float32[3]"}, node("Neg", "x", "y"), constants={"c": f32(1, 2)}),
        (X,),
        (f32(1, 2), -X),
    ),
    CorpusEntry(
        "output_twice",
        "one value stands at two places of the outputs",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y")).replace(
            outputs=graph({}, {"y": "float32[3]"}, node("Neg", "x", "y")).outputs * 2
        ),
        (X,),
        (-X, -X),
    ),
    CorpusEntry("no_nodes", "an input straight to an output", graph({"x": "float32[3]"}, {"x": "float32[3]"}), (X,), (X,)),
    CorpusEntry(
        "no_inputs",
        "everything is computed from constants",
        graph({}, {"y": "float32[3]"}, node("Neg", "c", "y"), constants={"c": X}),
        (),
        (-X,),
    ),
    CorpusEntry(
        "unused_input",
        "an input that nothing reads keeps its place",
        graph({"unused": "int64[2]", "x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y")),
        (i64(7, 7), X),
        (-X,),
    ),
    CorpusEntry(
        "dead_node",
        "a node that no output needs, which must not bring an input back",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y"), node("Tanh", "y", "nobody")),
        (X,),
        (-X,),
    ),
    CorpusEntry(
        "inner_value_is_output",
        "a value is an output and is read as well",
        graph({"x": "float32[3]"}, {"a": "float32[3]", "y": "float32[3]"}, node("Neg", "x", "a"), node("Relu", "a", "y")),
        (X,),
        (-X, f32(1, 0, 3)),
    ),
    CorpusEntry(
        "middle_input_left_out",
        "an optional input left out in the middle; the one after it must keep its place",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Clip", "x - high", "y"), constants={"high": f32(0.5)}),
        (X,),
        (f32(-1, 0.5, -3),),
    ),
    CorpusEntry(
        "second_output_left_out",
        "an optional output that nobody wants",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Dropout", "x", "y")),
        (X,),
        (X,),
    ),
    CorpusEntry(
        "names_that_mislead",
        "names with slashes, colons, spaces and letters beyond ASCII, and one that looks like a region's",
        graph(
            {"in/put:0": "float32[3]", "xrt_toy_0": "float32[3]"},
            {"größe": "float32[3]"},
            node("Neg", "in/put:0", "a.b/c:1", name="xrt_toy_1"),
            node("Add", "a.b/c:1 xrt_toy_0", "größe", name="node with spaces"),
        ),
        (X, f32(1, 1, 1)),
        (1 - X,),
    ),
    CorpusEntry(
        "one_node_many_readers",
        "one value crosses to several regions, and must not be freed after the first",
        graph(
            {"x": "float32[3]"},
            {"a": "float32[3]", "b": "float32[3]", "c": "float32[3]"},
            node("Neg", "x", "n"),
            node("Relu", "n", "a"),
            node("Abs", "n", "b"),
            node("Add", "n b", "c"),
        ),
        (X,),
        (f32(1, 0, 3), f32(1, 2, 3), f32(2, 0, 6)),
    ),
    CorpusEntry(
        "constant_shared_by_two",
        "a constant that two regions read is held once, and neither may write to it",
        graph(
            {"x": "float32[3]"},
            {"y": "float32[3]"},
            node("Add", "x c", "a"),
            node("Tanh", "a", "t"),
            node("Mul", "t c", "y"),
            constants={"c": f32(1, 2, 3)},
        ),
        (X,),
        (np.tanh(X + f32(1, 2, 3)) * f32(1, 2, 3),),
    ),
    CorpusEntry(
        "sequence_crosses",
        "a list of tensors goes from one node to another",
        graph(
            {"x": "float32[4]", "at": "int64[]"},
            {"y": "float32[2]"},
            node("SplitToSequence", "x two", "s", axis=0),
            node("SequenceAt", "s at", "y"),
            constants={"two": i64(2)},
        ),
        (f32(1, 2, 3, 4), i64(-1)),
        (f32(3, 4),),
    ),
    CorpusEntry(
        "sequence_input",
        "a list of tensors of different lengths as an input",
        graph({"s": sequence("float32[?]")}, {"y": "float32[?]"}, node("ConcatFromSequence", "s", "y", axis=0)),
        ([f32(1, 2), f32([3])],),
        (f32(1, 2, 3),),
    ),
    CorpusEntry(
        "optional_absent",
        "an optional that holds nothing is None",
        graph({"o": OptionalType(tensor("float32[3]"))}, {"y": "bool[]"}, node("OptionalHasElement", "o", "y")),
        (None,),
        (np.array(False),),
    ),
    CorpusEntry(
        "strings",
        "text goes through unharmed, empty and beyond ASCII",
        graph(
            {"s": "string[3]"},
            {"y": "string[3]", "same": "bool[3]"},
            node("Identity", "s", "y"),
            node("Equal", "s y", "same"),
            opset=19,
        ),
        (np.array(["", "a", "größe"], object),),
        (np.array(["", "a", "größe"], object), np.array([True, True, True])),
    ),
)
