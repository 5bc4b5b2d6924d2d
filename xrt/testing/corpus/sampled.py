"""Signals and images read at places between their elements, or in frames."""

from __future__ import annotations

from xrt.testing.corpus.entry import CorpusEntry, f32, graph, i64, node

__all__ = ["ENTRIES"]

_ROW = f32([[[[0, 1, 4, 9]]]])
_PLACES = f32([[[[-1, 0], [0, 0], [1, 0]]]])
"""As places among the elements of the row: -0.5, 1.5 and 3.5."""


def _sampled(name: str, why: str, padding: str, *expected: float) -> CorpusEntry:
    """Return an entry whose numbers follow from the four weights of a half: -3/32, 19/32, 19/32 and -3/32."""
    sample = node("GridSample", "x grid", "y", mode="cubic", padding_mode=padding)
    inputs = {"x": "float32[1,1,1,4]", "grid": "float32[1,1,3,2]"}
    model = graph(inputs, {"y": "float32[1,1,1,3]"}, sample, opset=20)
    return CorpusEntry(name, why, model, (_ROW, _PLACES), (f32([[[list(expected)]]]),))


ENTRIES: tuple[CorpusEntry, ...] = (
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
    _sampled(
        "grid_sample_cubic_border",
        "beyond the border each of the taps reads the border; the place itself stays, and with it the weights",
        "border",
        *(-0.09375, 2.125, 9.46875),
    ),
    _sampled(
        "grid_sample_cubic_reflection",
        "each tap beyond the border reads the element that it is reflected to",
        "reflection",
        *(-0.1875, 2.125, 9.9375),
    ),
    _sampled(
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
