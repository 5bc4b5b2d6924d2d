import my_kernels
import numpy as np
import pytest

from xrt import DType, Function, Node, Value, XRTModule
from xrt.engines import create
from xrt.graph import TensorType, read_attributes
from xrt.testing.suite import EngineSuite


class TestMyKernels(EngineSuite):
    """All that XRT asks of an engine; what toy passes, this one passes."""

    engine = "my_kernels"
    passes_at_least = 1860


def function(*nodes: Node, shape: tuple[int, ...] = (4, 5)) -> Function:
    type_ = TensorType(DType.FLOAT32, shape)
    inner = {node.outputs[0]: type_ for node in nodes[:-1]}  # nothing infers the types of a foreign operator: declare them
    return Function((Value("x", type_),), (Value("y", type_),), nodes, types=inner, opsets={"": 18, "my.domain": 1})


def test_a_new_operator_runs_here_and_is_declined_elsewhere() -> None:
    swish = function(Node("Swish", ("x",), ("y",), domain="my.domain", attributes=read_attributes({"beta": 2.0})))
    x = np.linspace(-3, 3, 20, dtype="float32").reshape(4, 5)
    module = XRTModule(swish, engine=["ort", "my_kernels"], strict=True)
    np.testing.assert_allclose(module(x), x / (1 + np.exp(-2 * x)), rtol=1e-6)
    assert [launch.engine for launch in module.plan.launches] == ["my_kernels"]
    assert create("toy").why_not(swish.nodes[0], swish) is not None


def test_new_and_known_operators_meet_in_one_model() -> None:
    both = function(Node("Swish", ("x",), ("h",), domain="my.domain"), Node("Relu", ("h",), ("y",)))
    module = XRTModule(both, engine=["ort", "my_kernels"], strict=True)
    x = np.array([[-1, 2]], "float32").repeat(4, 0)[:, [0, 1, 0, 1, 0]]
    np.testing.assert_allclose(module(x), np.maximum(x / (1 + np.exp(-x)), 0), rtol=1e-6)
    assert [launch.engine for launch in module.plan.launches] == ["my_kernels", "ort"]


@pytest.mark.parametrize(("axis", "quick"), [(-1, True), (1, True), (0, False)])
def test_the_predicate_chooses_the_softmax(axis: int, quick: bool) -> None:
    softmax = function(Node("Softmax", ("x",), ("y",), attributes=read_attributes({"axis": axis})))
    kernel = my_kernels.ops.find(softmax.nodes[0], softmax)
    assert not isinstance(kernel, str)
    assert (kernel.code is my_kernels.quick_softmax) == quick
    x = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    mine, toys = (XRTModule(softmax, engine=name, strict=True)(x) for name in ("my_kernels", "toy"))
    np.testing.assert_allclose(mine, toys, rtol=1e-6)


def test_the_table_of_toy_is_as_it_was() -> None:
    toy = create("toy")
    assert ("my.domain", "Swish") not in toy.kernels
    assert all(kernel.code is not my_kernels.quick_softmax for kernel in toy.kernels)
