"""Quantization: rewrite a Function with QuantizeLinear and DequantizeLinear around matrix products and convolutions.

Engines may fuse these patterns into integer kernels. Ranges of activations come from a calibration table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.passes.quantize.balancing import (
        find_channel_factors as find_channel_factors,
        list_balanced_values as list_balanced_values,
        scale_channels as scale_channels,
    )
    from xrt.passes.quantize.candidates import (
        QuantizationOptions as QuantizationOptions,
        list_calibrated_values as list_calibrated_values,
        why_not_quantized as why_not_quantized,
    )
    from xrt.passes.quantize.packed import (
        pack_weights as pack_weights,
        quantize_dynamically as quantize_dynamically,
        quantize_weights as quantize_weights,
    )
    from xrt.passes.quantize.static import (
        fold_batch_normalization as fold_batch_normalization,
        fuse_biases as fuse_biases,
        quantize as quantize,
    )

__all__, __getattr__, __dir__ = load_lazily(__name__)
