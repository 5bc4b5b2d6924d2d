"""What torch is known to fail among the node tests of ``onnx``, with the reason and a link."""

from xrt.testing.ledgers import KnownFailure

__all__ = ["GAPS"]

GAPS: tuple[KnownFailure, ...] = ()
