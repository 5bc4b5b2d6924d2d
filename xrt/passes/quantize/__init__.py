"""Quantization: a Function and the ranges of its values go in, a Function with QuantizeLinear and DequantizeLinear comes out.

Products and convolutions read operands of bytes that are dequantized just before, so that an engine may compute in integers
and any engine computes the same numbers. Nothing is run here: the ranges are those of a calibration table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.passes.quantize.balancing import balance_channels as balance_channels
    from xrt.passes.quantize.balancing import find_channel_factors as find_channel_factors
    from xrt.passes.quantize.balancing import list_balanced_values as list_balanced_values
    from xrt.passes.quantize.balancing import scale_channels as scale_channels
    from xrt.passes.quantize.candidates import QuantizationOptions as QuantizationOptions
    from xrt.passes.quantize.candidates import list_calibrated_values as list_calibrated_values
    from xrt.passes.quantize.candidates import why_not_quantized as why_not_quantized
    from xrt.passes.quantize.packed import pack_weights as pack_weights
    from xrt.passes.quantize.packed import quantize_dynamically as quantize_dynamically
    from xrt.passes.quantize.packed import quantize_weights as quantize_weights
    from xrt.passes.quantize.static import fold_batch_normalization as fold_batch_normalization
    from xrt.passes.quantize.static import fuse_biases as fuse_biases
    from xrt.passes.quantize.static import quantize as quantize

_MODULES = {
    "QuantizationOptions": "xrt.passes.quantize.candidates",
    "balance_channels": "xrt.passes.quantize.balancing",
    "find_channel_factors": "xrt.passes.quantize.balancing",
    "fold_batch_normalization": "xrt.passes.quantize.static",
    "fuse_biases": "xrt.passes.quantize.static",
    "list_balanced_values": "xrt.passes.quantize.balancing",
    "list_calibrated_values": "xrt.passes.quantize.candidates",
    "pack_weights": "xrt.passes.quantize.packed",
    "quantize": "xrt.passes.quantize.static",
    "quantize_dynamically": "xrt.passes.quantize.packed",
    "quantize_weights": "xrt.passes.quantize.packed",
    "scale_channels": "xrt.passes.quantize.balancing",
    "why_not_quantized": "xrt.passes.quantize.candidates",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
