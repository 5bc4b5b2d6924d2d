"""What openvino is known to fail among the node tests of ``onnx``, with the reason and a link."""

from xrt.testing.ledgers import Gap

__all__ = ["GAPS"]

GAPS: tuple[Gap, ...] = (
    Gap(
        "light_squeezenet",
        "never",
        "weights that are all one number make logits of 1e10, of which the last bit, a thousand, decides the softmax",
        "https://onnx.ai/onnx/operators/onnx__Softmax.html",
        everywhere=False,
    ),
)
