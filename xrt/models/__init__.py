"""Models for tests and benchmarks: onnx's light models with random weights, models written in code, and sample inputs.

Everything is deterministic for a seed; nothing is downloaded.
"""

from xrt.models.light import fill_random_weights, light_models, load_light
from xrt.models.registry import check_sizes, list_model_sizes, load, names
from xrt.operators.sample_inputs import sample_inputs

__all__ = [
    "check_sizes",
    "fill_random_weights",
    "light_models",
    "list_model_sizes",
    "load",
    "load_light",
    "names",
    "sample_inputs",
]
