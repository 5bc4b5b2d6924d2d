from pathlib import Path

import my_native_kernels
import numpy as np
import pytest

from xrt import DType, Function, Node, Value, XRTModule
from xrt.engines import native
from xrt.errors import CompileRefused
from xrt.graph import Constant, TensorType, read_attributes

LIBRARY = Path(my_native_kernels.__file__).with_name("libmy_native_kernels.so")
X = np.linspace(-3, 3, 5000, dtype="float32").reshape(50, 100)
ENGINES = [my_native_kernels.MyNativeKernels(), f"toy{{libraries={LIBRARY}}}"]


def function(*nodes: Node, **constants: np.ndarray) -> Function:
    type_ = TensorType(DType.FLOAT32, X.shape)
    held = {name: Constant(array) for name, array in constants.items()}
    return Function((Value("x", type_),), (Value("y", type_),), nodes, held, {"": 18, "my.domain": 1})


def swish(beta: float) -> Node:
    return Node("Swish", ("x",), ("a",), domain="my.domain", attributes=read_attributes({"beta": beta}))


@pytest.mark.parametrize("engine", ENGINES, ids=["own engine", "toy with the library"])
def test_both_kernels_run_as_one_native_call(engine: object) -> None:
    model = function(swish(2.0), Node("CumSum", ("a", "axis"), ("y",)), axis=np.array(-1))
    module = XRTModule(model, engine=engine, strict=True)
    np.testing.assert_allclose(module(X), np.cumsum(X / (1 + np.exp(-2 * X)), axis=1), rtol=1e-4, atol=1e-5)


def test_one_kernel_alone() -> None:
    kernel = native.load(LIBRARY).kernel("my_swish")
    (y,) = native.run_kernel(kernel, X, attributes={"beta": 0.5}, threads=2)
    np.testing.assert_allclose(y, X / (1 + np.exp(-0.5 * X)), rtol=1e-6)


def test_what_a_kernel_does_not_serve_is_reported() -> None:
    kernel = native.load(LIBRARY).kernel("my_cumsum")
    with pytest.raises(CompileRefused, match="my_cumsum: it runs along the last axis"):
        native.run_kernel(kernel, X, np.array(0), constants=[1], opset=14)


def test_toys_own_kernel_has_the_rest() -> None:
    model = function(Node("CumSum", ("x", "axis"), ("y",)), axis=np.array(0))
    np.testing.assert_allclose(XRTModule(model, engine=ENGINES[0])(X), np.cumsum(X, axis=0), rtol=1e-4, atol=1e-4)
