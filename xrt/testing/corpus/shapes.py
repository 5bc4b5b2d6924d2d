"""Shapes: rank 0, zero elements, high ranks, and shapes known only at run time."""

from __future__ import annotations

import numpy as np

from xrt.graph import OptionalType
from xrt.testing.corpus.entry import CorpusEntry, f32, graph, i64, node, sequence, tensor

X = f32([[1, 2, 3], [4, 5, 6]])
EMPTY = np.zeros((0, 3), np.float32)
ROWS = np.arange(250, dtype=np.float32).reshape(5, 50)
_BLOCKS = np.arange(24, dtype=np.float32).reshape(1, 4, 2, 3)
ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "no_axes",
        "0-d in, 0-d out: an array, and no scalar",
        graph({"x": "float32[]"}, {"y": "float32[]"}, node("Neg", "x", "y")),
        (f32(2),),
        (f32(-2),),
    ),
    CorpusEntry(
        "sum_of_nothing",
        "the sum over an empty axis is zero, and the other axes stay; ONNX Runtime overlooks a negative axis here",
        graph(
            {"x": "float32[0,3]"},
            {"y": "float32[3]", "z": "float32[0]"},
            node("ReduceSum", "x a0", "y", keepdims=0),
            node("ReduceSum", "x a1", "z", keepdims=0),
            constants={"a0": i64([0]), "a1": i64([-1])},
        ),
        (EMPTY,),
        (np.zeros(3, np.float32), np.zeros(0, np.float32)),
    ),
    CorpusEntry(
        "flatten_nothing",
        "an empty tensor has no extent to work out from its size; the reference of onnx tries to",
        graph({"x": "float32[0,3]"}, {"y": "float32[0,3]"}, node("Flatten", "x", "y", axis=1)),
        (EMPTY,),
        (EMPTY,),
    ),
    CorpusEntry(
        "cut_off_more_than_there_is",
        "what is cut off beyond the tensor is not added at its other end; OpenVINO writes beyond its memory",
        graph(
            {"x": "float32[2,2]", "w": "float32[1,1,1,1]"},
            {"y": "float32[3,1]", "z": "float32[1,1,1,1]"},
            node("Pad", "x p", "y"),
            node("ConvTranspose", "w w", "z", pads=[2, 0, 0, 2], output_padding=[2, 2], strides=[3, 3]),
            constants={"p": i64([-3, 2, 4, -3])},
        ),
        (np.array([[1, 2], [3, 4]], np.float32), np.ones((1, 1, 1, 1), np.float32)),
        (np.zeros((3, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)),
    ),
    CorpusEntry(
        "cut_off_more_at_run_time",
        "the same with pads that only a call shows",
        graph({"x": "float32[2,2]", "p": "int64[4]"}, {"y": "float32[?,?]"}, node("Pad", "x p", "y")),
        (np.array([[1, 2], [3, 4]], np.float32), i64([-3, -1, 4, 1])),
        (np.array([[0, 0], [0, 0], [0, 0]], np.float32),),
    ),
    CorpusEntry(
        "convolved_no_images",
        "a batch may be empty: the number of channels is that of the weights, not what is left of the size",
        graph(
            {"x": "float32[0,4,5,5]", "w": "float32[6,2,3,3]", "v": "float32[6,2,3,3]"},
            {"y": "float32[0,6,3,3]", "z": "float32[0,4,5,5]"},
            node("Conv", "x w", "y", group=2),
            node("ConvTranspose", "y v", "z", group=2),
        ),
        (np.zeros((0, 4, 5, 5), np.float32), np.ones((6, 2, 3, 3), np.float32), np.ones((6, 2, 3, 3), np.float32)),
        (np.zeros((0, 6, 3, 3), np.float32), np.zeros((0, 4, 5, 5), np.float32)),
    ),
    CorpusEntry(
        "convolution_over_one_element",
        "a sum of one element writes its zero before it reads: its result must not take the place of what it sums",
        graph(
            {"x": "float32[2,2,4]", "w": "float32[2,1,1]"},
            {"y": "float32[2,2,4]"},
            node("Neg", "x", "t"),
            node("Conv", "t w", "y", group=2),
        ),
        (np.arange(16, dtype=np.float32).reshape(2, 2, 4), f32([[[2]], [[3]]])),
        (-np.arange(16, dtype=np.float32).reshape(2, 2, 4) * f32([[2], [3]]),),
    ),
    CorpusEntry(
        "six_axes",
        "more axes than most kernels are written for",
        graph(
            {"x": "float32[1,2,1,3,1,2]"},
            {"y": "float32[2,1,3,1,2,1]"},
            node("Transpose", "x", "t", perm=[5, 4, 3, 2, 1, 0]),
            node("Neg", "t", "y"),
        ),
        (np.arange(12, dtype=np.float32).reshape(1, 2, 1, 3, 1, 2),),
        (-np.arange(12, dtype=np.float32).reshape(1, 2, 1, 3, 1, 2).transpose(5, 4, 3, 2, 1, 0),),
    ),
    CorpusEntry(
        "named_extent",
        "an extent known only at run time; the second input must have the same",
        graph({"x": "float32[N,3]", "y": "float32[N,3]"}, {"z": "float32[N,3]"}, node("Add", "x y", "z")),
        (X, X),
        (2 * X,),
    ),
    CorpusEntry(
        "shape_computed_at_run_time",
        "the shape is a value: what comes out depends on what goes in, not on its type",
        graph(
            {"x": "float32[N,3]"},
            {"y": "float32[?,?]"},
            node("Shape", "x", "s"),
            node("Gather", "s k", "r"),
            node("Reshape", "x r", "y"),
            constants={"k": i64([1, 0])},
        ),
        (X,),
        (X.reshape(3, 2),),
    ),
    CorpusEntry(
        "shape_depends_on_values",
        "how many there are is known only once they are computed",
        graph({"x": "float32[4]"}, {"y": "int64[1,?]"}, node("NonZero", "x", "y")),
        (f32(0, 1, 0, 2),),
        (i64([[1, 3]]),),
    ),
    CorpusEntry(
        "slice_backwards",
        "a negative step, and ends beyond the tensor",
        graph(
            {"x": "float32[2,3]"},
            {"y": "float32[2,3]"},
            node("Slice", "x start stop axis step", "y"),
            constants={"start": i64([9]), "stop": i64([-9]), "axis": i64([-1]), "step": i64([-1])},
        ),
        (X,),
        (X[:, ::-1],),
    ),
    CorpusEntry(
        "negative_pad",
        "a negative pad cuts off",
        graph({"x": "float32[2,3]"}, {"y": "float32[2,3]"}, node("Pad", "x k", "y"), constants={"k": i64([0, -1, 0, 1])}),
        (X,),
        (f32([[2, 3, 0], [5, 6, 0]]),),
    ),
    CorpusEntry(
        "mirrored_edges",
        "an edge is mirrored, and not with the outermost element",
        graph(
            {"x": "float32[5,50]"},
            {"y": "float32[8,56]"},
            node("Pad", "x k", "y", mode="reflect"),
            constants={"k": i64([1, 3, 2, 3])},
        ),
        (ROWS,),
        (np.pad(ROWS, ((1, 2), (3, 3)), "reflect"),),
    ),
    CorpusEntry(
        "window_that_fits_once",
        "a strided window fits once, with elements behind it that no window reads",
        graph(
            {"x": "float32[1,1,4,4]"},
            {"y": "float32[1,1,1,1]"},
            node("Conv", "x w", "y", strides=[2, 2]),
            constants={"w": np.ones((1, 1, 3, 3), np.float32)},
        ),
        (ROWS[:1, :16].reshape(1, 1, 4, 4),),
        (f32([[[[45]]]]),),
    ),
    CorpusEntry(
        "split_behind_reshape",
        "the heads of attention: a loop that unfolds an index and has several results is compiled apart from the others",
        graph(
            {"x": "float32[6,4]"},
            {"a": "float32[1,2,3]", "b": "float32[1,2,3]", "c": "float32[1,2,3]", "d": "float32[1,2,3]"},
            node("Reshape", "x shape", "v"),
            node("Split", "v", "a b c d", axis=2, num_outputs=4),
            constants={"shape": i64([1, 2, 12])},
            opset=20,
        ),
        (np.arange(24, dtype=np.float32).reshape(6, 4),),
        tuple(np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)[:, :, k] for k in range(4)),
    ),
    CorpusEntry(
        "strided_input",
        "an input that is a view with strides of its own",
        graph({"x": "float32[3,2]"}, {"y": "float32[3,2]"}, node("Neg", "x", "y")),
        (X.T,),
        (-X.T,),
    ),
    CorpusEntry(
        "expanded_to_its_own_rank_0",
        "the shape of a number has no elements, and is computed when the model runs; a library ended the process",
        graph({"x": "float32[]"}, {"y": "float32[]"}, node("Shape", "x", "s"), node("Expand", "x s", "y")),
        (np.array(2, np.float32),),
        (np.array(2, np.float32),),
    ),
    CorpusEntry(
        "expanded_to_a_given_rank_0",
        "a shape without elements as an input of the model",
        graph({"x": "float32[]", "s": "int64[0]"}, {"y": "float32[]"}, node("Expand", "x s", "y")),
        (np.array(2, np.float32), np.zeros(0, np.int64)),
        (np.array(2, np.float32),),
    ),
    CorpusEntry(
        "reshaped_to_rank_0",
        "one element becomes a number, by a shape without elements that is computed",
        graph({"x": "float32[1]", "r": "float32[]"}, {"y": "float32[]"}, node("Shape", "r", "s"), node("Reshape", "x s", "y")),
        (f32([3]), np.array(2, np.float32)),
        (np.array(3, np.float32),),
    ),
    CorpusEntry(
        "unsqueezed_by_no_axes",
        "axes that are computed and are none",
        graph(
            {"x": "float32[2]", "r": "float32[]"},
            {"y": "float32[2]", "z": "float32[]"},
            node("Shape", "r", "s"),
            node("Unsqueeze", "x s", "y"),
            node("Tile", "r s", "z"),
        ),
        (f32(3, 4), np.array(2, np.float32)),
        (f32(3, 4), np.array(2, np.float32)),
    ),
    CorpusEntry(
        "depth_to_space_by_columns",
        "mode CRD where the number of channels behind it is not the size of a block",
        graph({"x": "float32[1,4,2,3]"}, {"y": "float32[1,1,4,6]"}, node("DepthToSpace", "x", "y", blocksize=2, mode="CRD")),
        (_BLOCKS,),
        (_BLOCKS.reshape(1, 1, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 1, 4, 6),),
    ),
    CorpusEntry(
        "space_to_depth_and_back",
        "blocks of two by three channels, in the mode that is the default",
        graph(
            {"x": "float32[1,2,2,6]"},
            {"y": "float32[1,8,1,3]", "z": "float32[1,2,2,6]"},
            node("SpaceToDepth", "x", "y", blocksize=2),
            node("DepthToSpace", "y", "z", blocksize=2),
        ),
        (_BLOCKS.reshape(1, 2, 2, 6),),
        (_BLOCKS.reshape(1, 2, 1, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 1, 3), _BLOCKS.reshape(1, 2, 2, 6)),
    ),
    CorpusEntry(
        "indices_of_several_planes",
        "the second result of MaxPool numbers the elements of the whole tensor",
        graph(
            {"x": "float32[2,2,2,2]"},
            {"y": "float32[2,2,1,1]", "i": "int64[2,2,1,1]"},
            node("MaxPool", "x", "y i", kernel_shape=[2, 2]),
        ),
        (np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2),),
        (f32([3, 7, 11, 15]).reshape(2, 2, 1, 1), i64([3, 7, 11, 15]).reshape(2, 2, 1, 1)),
    ),
    CorpusEntry(
        "indices_by_columns",
        "storage_order=1 numbers the elements column by column; a square with its maxima on a diagonal cannot tell",
        graph(
            {"x": "float32[1,1,2,6]"},
            {"y": "float32[1,1,1,3]", "i": "int64[1,1,1,3]"},
            node("MaxPool", "x", "y i", kernel_shape=[2, 2], strides=[2, 2], storage_order=1),
        ),
        (f32([[[[1, 9, 2, 3, 4, 5], [6, 7, 8, 0, 11, 10]]]]),),
        (f32([[[[9, 8, 11]]]]), i64([[[[2, 5, 9]]]])),
    ),
    CorpusEntry(
        "pools_without_a_window_in_the_padding",
        "below opset 22 onnx's inference counts a window that begins in the padding; no library does",
        graph(
            {"x": "float32[1,1,5,4]"},
            {"y": "float32[1,1,3,3]", "z": "float32[1,1,2,2]"},
            node("MaxPool", "x", "largest", kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
            node("Neg", "largest", "y"),
            node("AveragePool", "largest", "mean", kernel_shape=[2, 2], strides=[3, 2], ceil_mode=1),
            node("Identity", "mean", "padded"),
            node("Pad", "padded pads", "z"),
            constants={"pads": i64(0, 0, 0, 0, 0, 0, 1, 0)},
            opset=17,
        ),
        (np.arange(20, dtype=np.float32).reshape(1, 1, 5, 4),),
        (-f32([[[[0, 2, 3], [8, 10, 11], [16, 18, 19]]]]), f32([[[[5, 7], [0, 0]]]])),
    ),
    CorpusEntry(
        "pools_wider_than_their_input",
        "a window wider than the input has one place where ceil_mode rounds up; the mean is that of the elements it sees",
        graph(
            {"x": "float32[1,1,1,1]"},
            {"y": "float32[1,1,1,1]", "z": "float32[1,1,1,1]"},
            node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("AveragePool", "x", "z", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        ),
        (f32(3).reshape(1, 1, 1, 1),),
        (f32(3).reshape(1, 1, 1, 1), f32(3).reshape(1, 1, 1, 1)),
    ),
    CorpusEntry(
        "lengths_of_sequences",
        "sequences of 0, 2 and 3 steps: the last state of an empty one is 0, whatever it begins with; IREE ignores lengths",
        graph(
            {"x": "float32[3,3,1]", "lengths": "int32[3]", "h": "float32[1,3,1]"},
            {"y": "float32[3,1,3,1]", "last": "float32[1,3,1]"},
            node("RNN", "x one one - lengths h", "y last", hidden_size=1, activations=["Relu"]),
            constants={"one": np.ones((1, 1, 1), np.float32)},
        ),
        (np.arange(1, 10, dtype=np.float32).reshape(3, 3, 1), np.array([0, 2, 3], np.int32), f32(5, 6, 7).reshape(1, 3, 1)),
        (f32([[0, 8, 10], [0, 13, 16], [0, 0, 25]]).reshape(3, 1, 3, 1), f32(0, 13, 25).reshape(1, 3, 1)),
    ),
    CorpusEntry(
        "mean_of_windows_that_fit",
        "ceil_mode changes nothing where the windows fit; IREE gives the sum of each window",
        graph(
            {"x": "float32[1,1,4,6]"},
            {"y": "float32[1,1,2,3]"},
            node("AveragePool", "x", "y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=0),
        ),
        (np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6),),
        (f32([[[[3.5, 5.5, 7.5], [15.5, 17.5, 19.5]]]]),),
    ),
    CorpusEntry(
        "slopes_along_the_last_axis",
        "PRelu broadcasts as all operators do: from the last axis, though there are as many channels",
        graph({"x": "float32[1,2,1,2]", "s": "float32[2]"}, {"y": "float32[1,2,1,2]"}, node("PRelu", "x s", "y")),
        (-np.ones((1, 2, 1, 2), np.float32), f32(2, 3)),
        (f32([[[[-2, -3]], [[-2, -3]]]]),),
    ),
    CorpusEntry(
        "boxes_by_their_centers",
        "center_point_box of NonMaxSuppression, on boxes that overlap otherwise when they are read as corners",
        graph(
            {"b": "float32[1,3,4]", "s": "float32[1,1,3]"},
            {"y": "int64[n,3]"},
            node("NonMaxSuppression", "b s m t", "y", center_point_box=1),
            constants={"m": np.array(3), "t": f32(0.55)},
        ),
        (f32([[[1, 1, 2, 2], [1.5, 1, 2, 2], [5, 1, 2, 2]]]), f32([[[0.9, 0.8, 0.7]]])),
        (i64([[0, 0, 0], [0, 0, 2]]),),
    ),
    CorpusEntry(
        "scattered_unless_it_is_less",
        "reduction=max of ScatterElements keeps an element that is larger than its update",
        graph(
            {"x": "float32[3]", "u": "float32[3]"},
            {"y": "float32[3]"},
            node("ScatterElements", "x i u", "y", reduction="max"),
            constants={"i": i64([0, 1, 2])},
        ),
        (f32([5, 1, 3]), f32([4, 9, 0])),
        (f32([5, 9, 3]),),
    ),
    CorpusEntry(
        "regions_of_a_scaled_image",
        "spatial_scale of RoiAlign, on a plane where bilinear samples are exact",
        graph(
            {"x": "float32[1,1,8,8]", "r": "float32[1,4]"},
            {"y": "float32[1,1,2,2]"},
            node("RoiAlign", "x r i", "y", spatial_scale=0.5, output_height=2, output_width=2, sampling_ratio=2),
            constants={"i": i64([0])},
            opset=16,
        ),
        (np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8), f32([[2, 4, 10, 12]])),
        (f32([[[[21.5, 23.5], [37.5, 39.5]]]]),),
    ),
    CorpusEntry(
        "normalized_by_a_large_alpha",
        "alpha of LRN, which the default data of onnx cannot tell from another",
        graph({"x": "float32[1,3,1,2]"}, {"y": "float32[1,3,1,2]"}, node("LRN", "x", "y", size=3, alpha=0.6, beta=0.5, bias=1.0)),
        (f32([[[[1, 2]], [[3, -4]], [[0, 5]]]]),),
        (f32([[[[1, 2]], [[3, -4]], [[0, 5]]]]) / np.sqrt(1 + 0.2 * f32([[[[10, 20]], [[10, 45]], [[9, 41]]]])),),
    ),
)
INPUT = f32([-1, 2, -3])
FORMS: tuple[CorpusEntry, ...] = (
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
        (INPUT,),
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
        (INPUT,),
        (-INPUT,),
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
        (INPUT,),
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
        (INPUT,),
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
        (INPUT,),
        (f32(-0.0, -2, -0.0), np.tanh(INPUT)),
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
        (f32(1, 1, 1), INPUT),
        (f32(0, 3, -2), INPUT),
    ),
    CorpusEntry(
        "input_is_output",
        "a value that passes through untouched",
        graph({"x": "float32[3]"}, {"x": "float32[3]", "y": "float32[3]"}, node("Neg", "x", "y")),
        (INPUT,),
        (INPUT, -INPUT),
    ),
    CorpusEntry(
        "constant_is_output",
        "an output that no node computes",
        graph({"x": "float32[3]"}, {"c": "float32[2]", "y": "float32[3]"}, node("Neg", "x", "y"), constants={"c": f32(1, 2)}),
        (INPUT,),
        (f32(1, 2), -INPUT),
    ),
    CorpusEntry(
        "output_twice",
        "one value stands at two places of the outputs",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y")).replace(
            outputs=graph({}, {"y": "float32[3]"}, node("Neg", "x", "y")).outputs * 2
        ),
        (INPUT,),
        (-INPUT, -INPUT),
    ),
    CorpusEntry(
        "no_nodes", "an input straight to an output", graph({"x": "float32[3]"}, {"x": "float32[3]"}), (INPUT,), (INPUT,)
    ),
    CorpusEntry(
        "no_inputs",
        "everything is computed from constants",
        graph({}, {"y": "float32[3]"}, node("Neg", "c", "y"), constants={"c": INPUT}),
        (),
        (-INPUT,),
    ),
    CorpusEntry(
        "unused_input",
        "an input that nothing reads keeps its place",
        graph({"unused": "int64[2]", "x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y")),
        (i64(7, 7), INPUT),
        (-INPUT,),
    ),
    CorpusEntry(
        "dead_node",
        "a node that no output needs, which must not bring an input back",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y"), node("Tanh", "y", "nobody")),
        (INPUT,),
        (-INPUT,),
    ),
    CorpusEntry(
        "inner_value_is_output",
        "a value is an output and is read as well",
        graph({"x": "float32[3]"}, {"a": "float32[3]", "y": "float32[3]"}, node("Neg", "x", "a"), node("Relu", "a", "y")),
        (INPUT,),
        (-INPUT, f32(1, 0, 3)),
    ),
    CorpusEntry(
        "middle_input_left_out",
        "an optional input left out in the middle; the one after it must keep its place",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Clip", "x - high", "y"), constants={"high": f32(0.5)}),
        (INPUT,),
        (f32(-1, 0.5, -3),),
    ),
    CorpusEntry(
        "second_output_left_out",
        "an optional output that nobody wants",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Dropout", "x", "y")),
        (INPUT,),
        (INPUT,),
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
        (INPUT, f32(1, 1, 1)),
        (1 - INPUT,),
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
        (INPUT,),
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
        (INPUT,),
        (np.tanh(INPUT + f32(1, 2, 3)) * f32(1, 2, 3),),
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
_ROW = f32([[[[0, 1, 4, 9]]]])
_POSITIONS = f32([[[[-1, 0], [0, 0], [1, 0]]]])
"""Normalized sample positions. In units of elements of the row they are -0.5, 1.5 and 3.5."""


def _sample_entry(name: str, why: str, padding: str, *expected: float) -> CorpusEntry:
    """Make an entry whose expected values use the cubic weights at offset 0.5: -3/32, 19/32, 19/32 and -3/32."""
    sample = node("GridSample", "x grid", "y", mode="cubic", padding_mode=padding)
    inputs = {"x": "float32[1,1,1,4]", "grid": "float32[1,1,3,2]"}
    model = graph(inputs, {"y": "float32[1,1,1,3]"}, sample, opset=20)
    return CorpusEntry(name, why, model, (_ROW, _POSITIONS), (f32([[[list(expected)]]]),))


SAMPLED: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "nearest_of_two_as_near",
        "the fourth of seven elements lies between the two old ones; tvm took either, by the instructions of the processor",
        graph(
            {"x": "float32[1,1,1,2]"},
            {"y": "float32[1,1,1,7]"},
            node("Resize", "x - - sizes", "y", mode="nearest"),
            constants={"sizes": i64([1, 1, 1, 7])},
            opset=18,
        ),
        (f32([[[[1, 2]]]]),),
        (f32([[[[1, 1, 1, 1, 2, 2, 2]]]]),),
    ),
    _sample_entry(
        "grid_sample_cubic_border",
        "beyond the border each of the taps reads the border; the place itself stays, and with it the weights",
        "border",
        *(-0.09375, 2.125, 9.46875),
    ),
    _sample_entry(
        "grid_sample_cubic_reflection",
        "each tap beyond the border reads the element that it is reflected to",
        "reflection",
        *(-0.1875, 2.125, 9.9375),
    ),
    _sample_entry(
        "grid_sample_cubic_zeros",
        "each tap beyond the border reads zero",
        "zeros",
        *(-0.09375, 2.125, 4.96875),
    ),
    CorpusEntry(
        "short_time_fourier_of_rank_2",
        "TorchScript exports a signal without the last axis that the standard asks for; it is real",
        graph(
            {"x": "float32[1,4]"},
            {"y": "float32[1,2,2,2]"},
            node("STFT", "x step - length", "y", onesided=1),
            constants={"step": i64(2), "length": i64(2)},
            opset=17,
        ),
        (f32([[1, 2, 3, 5]]),),
        (f32([[[[3, 0], [-1, 0]], [[8, 0], [-2, 0]]]]),),
    ),
    CorpusEntry(
        "deformed_row",
        "an axis of one element has no distance between elements; halfway beyond it half of the element is left",
        graph(
            {"x": "float32[1,1,1,3]", "w": "float32[1,1,1,1]", "offset": "float32[1,2,1,3]"},
            {"y": "float32[1,1,1,3]"},
            node("DeformConv", "x w offset", "y", kernel_shape=[1, 1]),
            opset=19,
        ),
        (f32([[[[2, 4, 8]]]]), f32([[[[1]]]]), f32([[[[0, 0.5, 0]], [[0.5, 0, 0.25]]]])),
        (f32([[[[3, 2, 6]]]]),),
    ),
)
