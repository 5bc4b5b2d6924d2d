"""Tables of the torch engine: operators by the element types that they support, and known issues of Inductor."""

from __future__ import annotations

from xrt.engines.toolkit.known_issues import KnownIssue, always
from xrt.operators import is_training

MOVING = frozenset(
    {
        *("Constant", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Transpose", "Concat", "Split"),
        *("Slice", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu", "Where"),
        *("Compress", "ScatterElements", "ScatterND", "Scatter", "TensorScatter", "Pad", "OneHot"),
    }
)
"""Operators that only move elements, and so support every representable type."""
CONVERTING = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
"""Operators that convert types that PyTorch does not compute in."""
CONTROL = frozenset(
    {
        *("If", "Loop", "Scan", "SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "ConcatFromSequence", "SplitToSequence", "SequenceMap"),
        *("Optional", "OptionalHasElement", "OptionalGetElement", "Shape", "Size", "ConstantOfShape"),
    }
)
"""Operators that do not compute with the values of their inputs."""
IN_UINT64 = frozenset(
    {
        *("Add", "Sub", "Mul", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Sum", "BitCast"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"),
    }
)
"""Operators that compute the same bits for uint64 as for int64, or have kernels that flip the sign bit."""

_DRAWS = "mode=inductor does not draw random numbers: its C++ has no form for a generator"
GAPS: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),
        always,
        _DRAWS,
        ("test_bernoulli_seed",),
    ),
    KnownIssue(
        ("DFT", "STFT"),
        always,
        "mode=inductor does not take Fourier transforms: its C++ has no form for complex numbers",
        ("test_dft", "test_stft"),
    ),
    KnownIssue(("Det",), always, "mode=inductor does not take Det: its C++ has no form for it", ("test_det_2d",)),
    KnownIssue(("Dropout",), is_training, _DRAWS, ("test_training_dropout_default",)),
)
"""Operators with a kernel that Inductor does not compile."""
