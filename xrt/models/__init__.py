"""Graphs to try things on: the light models of the ``onnx`` package, models written by code, and inputs for any Function.

A name and a seed, or a Function, come in; a Function or its inputs come out, the same ones for the same seed. Nothing is
downloaded and nothing is run.
"""

from xrt.graph.sample_inputs import sample_inputs
from xrt.models.light import fill_random_weights, light_models, load_light
from xrt.models.registry import check_sizes, list_model_sizes, load, names

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
