import numpy as np
import pytest
from my_engine import MyEngine

from xrt import DType, Function, Node, Value, XRTModule
from xrt.errors import RunFailed
from xrt.graph import TensorType
from xrt.testing.strategies import Form
from xrt.testing.suite import EngineSuite


class TestMyEngine(EngineSuite):
    """All that XRT asks of an engine, inherited."""

    engine = "my_engine"
    form = Form(families=("elementwise", "product"), dtypes=(DType.FLOAT32, DType.FLOAT64), control=False)
    passes_at_least = 42


def function() -> Function:
    type_ = TensorType(DType.FLOAT32, (2,))
    return Function((Value("x", type_),), (Value("y", type_),), (Node("Log", ("x",), ("y",)),), opsets={"": 18})


def test_its_own_option_reaches_numpy() -> None:
    x = np.zeros(2, "float32")
    assert np.isneginf(XRTModule(function(), engine=MyEngine(), strict=True)(x)).all()
    with pytest.raises(RunFailed, match="divide by zero"):
        XRTModule(function(), engine="my_engine{on_error=raise}", strict=True)(x)
