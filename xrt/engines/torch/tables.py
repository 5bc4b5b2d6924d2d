"""Tables of the torch engine: operators by the element types that they support, and known issues of Inductor."""

from __future__ import annotations

from xrt.engines.toolkit.known_issues import KnownIssue, always
from xrt.operators import is_training

MOVING_OPS = frozenset(
    {
        *("Constant", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Transpose", "Concat", "Split"),
        *("Slice", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "Where"),
        *("Compress", "ScatterElements", "ScatterND", "Scatter", "TensorScatter", "Pad", "OneHot"),
    }
)
"""Operators that only move elements, so they support every type that tensors can represent."""
CONVERTING_OPS = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
"""Operators that convert from and to types that PyTorch does not compute in."""
CONTROL_OPS = frozenset(
    {
        *("If", "Loop", "Scan", "SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "ConcatFromSequence", "SplitToSequence", "SequenceMap"),
        *("Optional", "OptionalHasElement", "OptionalGetElement", "Shape", "Size", "ConstantOfShape"),
    }
)
"""Operators that do not compute with the elements of their inputs, so they support every type."""
UINT64_OPS = frozenset(
    {
        *("Add", "Sub", "Mul", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Sum", "BitCast"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"),
    }
)
"""Operators that support uint64: they compute the same bits as for int64, or their kernels flip the sign bit before comparing."""

_NO_RANDOM_NUMBERS = "mode=inductor does not support random numbers, because its C++ code has no generator"
INDUCTOR_ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),
        always,
        _NO_RANDOM_NUMBERS,
        ("test_bernoulli_seed",),
    ),
    KnownIssue(
        ("DFT", "STFT"),
        always,
        "mode=inductor does not support Fourier transforms, because its C++ code has no complex numbers",
        ("test_dft", "test_stft"),
    ),
    KnownIssue(
        ("Det",), always, "mode=inductor does not support Det, because its C++ code has no such operator", ("test_det_2d",)
    ),
    KnownIssue(("Dropout",), is_training, _NO_RANDOM_NUMBERS, ("test_training_dropout_default",)),
)
"""Operators with a kernel that Inductor does not compile."""
