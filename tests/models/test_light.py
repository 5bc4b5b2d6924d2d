"""The light models: nine, with weights that a seed decides and that keep every layer near unit size."""

from __future__ import annotations

import numpy as np
import pytest

from xrt.engines import CompileContext, create
from xrt.errors import ModelError
from xrt.graph import Constant, Function, Node, TensorType, Value
from xrt.graph.types import DType
from xrt.models import fill_random_weights, light_models, load_light, sample_inputs

NINE = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
QUICK = ("squeezenet", "shufflenet")


def test_there_are_nine() -> None:
    assert light_models() == NINE


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_seed_decides_the_weights(name: str) -> None:
    assert load_light(name).fingerprint == load_light(name).fingerprint
    assert load_light(name).fingerprint != load_light(name, seed=1).fingerprint


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ModelError) as caught:
        load_light("resnet5")
    assert str(caught.value) == f"there is no light model 'resnet5'. Did you mean 'resnet50'? There are: {', '.join(NINE)}"


def layers(function: Function) -> Function:
    """Return the Function with every inner value an output."""
    return function.replace(outputs=tuple(Value(node.outputs[0]) for node in function.nodes))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NINE)
def test_every_layer_stays_near_unit_size_and_the_output_says_something(name: str) -> None:
    function = load_light(name)
    assert not [node.op for node in function.nodes if node.op_type == "ConstantOfShape"]
    executable = create("ort").compile(layers(function), CompileContext())
    executable.prepare()
    inputs = [list(sample_inputs(function, seed).values()) for seed in (0, 1)]
    values, others = ([np.asarray(v) for v in executable.run(given)] for given in inputs)
    executable.close()
    sizes = [float(np.sqrt(np.mean(v**2))) for v, node in zip(values, function.nodes, strict=True) if node.op_type in WEIGHTED]
    assert 0.1 < min(sizes) <= max(sizes) < 10
    assert values[-1].max() < 10
    assert np.ptp(values[-1]) > 1e-3
    assert np.abs(values[-1] - others[-1]).max() > 1e-5  # the output depends on the input


WEIGHTED = ("Conv", "Gemm", "BatchNormalization", "Relu", "Sum")


def constant(*shape: int) -> Constant:
    return Constant(np.zeros(shape, np.float32))


def test_scalars_and_what_no_weighted_operator_reads_stay() -> None:
    x = Value("x", TensorType(DType.FLOAT32, (2, 3)))
    nodes = (
        Node("Gemm", ("x", "w", "b"), ("y",)),
        Node("Mul", ("y", "scale"), ("z",)),
        Node("Concat", ("z", "rest"), ("out",)),
    )
    constants = {"w": constant(3, 4), "b": constant(4), "scale": constant(), "rest": constant(2, 4)}
    drawn = fill_random_weights(Function((x,), (Value("out"),), nodes, constants, {"": 20})).constants
    assert drawn["w"].array.any()
    assert drawn["b"].array.any()
    assert not drawn["scale"].array.any()
    assert not drawn["rest"].array.any()
