"""What Inductor computes wrongly, or cannot compile though it traces it: declined, each row with its evidence."""

from __future__ import annotations

from xrt.engines.toolkit.known_issues import KnownIssue, always, match_known_issue
from xrt.graph import Function, Node, is_training

__all__ = ["GAPS", "find_known_issue"]


def find_known_issue(node: Node, function: Function) -> str | None:
    """Return the reason of the first gap that the node falls under; None when it falls under none."""
    return match_known_issue(GAPS, node, function)


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
