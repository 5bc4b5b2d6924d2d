"""What of ort's sessions is worth saving, and a compile whose work serves the save too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.cache import CompileCache, open_disk_tier
from xrt.engines import CompileContext
from xrt.engines.ort import Ort, engine as ort_engine
from xrt.engines.ort.engine import WORTH_LAYING_OUT, WORTH_SAVING
from xrt.engines.ort.executable import OrtExecutable
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def chain(length: int, constant: int = 4) -> Function:
    """Return a sum with a constant of so many elements, and Tanh after Tanh."""
    value = TensorType(DType.FLOAT32, (3, 4))
    nodes = [Node("Slice", ("c", "zero", "four"), ("part",)), Node("Add", ("x", "part"), ("v1",))]
    nodes += [Node("Tanh", (f"v{n}",), (f"v{n + 1}",)) for n in range(1, length - 1)]
    constants = {"c": np.arange(constant, dtype=np.float32), "zero": np.array([0]), "four": np.array([4])}
    held = {name: Constant(array) for name, array in constants.items()}
    return Function((Value("x", value),), (Value(f"v{length - 1}", value),), tuple(nodes), held, {"": 17})


def compiled(function: Function, context: CompileContext) -> OrtExecutable:
    executable = Ort().compile(function, context)
    assert isinstance(executable, OrtExecutable)
    return executable


def test_a_small_model_is_not_worth_saving() -> None:
    assert not Ort().is_worth_saving(chain(WORTH_SAVING - 1))
    assert Ort().is_worth_saving(chain(WORTH_SAVING))
    assert Ort().is_worth_saving(chain(4, constant=WORTH_LAYING_OUT // 4))


@pytest.mark.parametrize(("length", "writes"), [(4, 0), (WORTH_SAVING, 1)])
def test_the_disk_cache_keeps_what_is_worth_saving(length: int, writes: int, tmp_path: Path) -> None:
    for starts in (1, 2):
        cache = CompileCache(disk=open_disk_tier(directory=tmp_path))
        with xrt.XRTModule(chain(length), engine="ort", strict=True, cache=cache, fold_constants=False) as module:
            module(X)
        told = cache.statistics.disk
        assert (told.writes, told.hits) == ((writes, 0) if starts == 1 else (0, writes))


def test_what_is_kept_is_optimized_once_and_computes_the_same(tmp_path: Path) -> None:
    function, context = chain(WORTH_SAVING), CompileContext(threads=1)
    kept = compiled(function, replace(context, is_kept=True))
    data = Ort().save(kept, replace(context, workdir=tmp_path))
    assert kept.saved is data
    assert not list(tmp_path.iterdir()), "the work of the compile is what is saved"
    (expected,) = compiled(function, context).run([X])
    for executable in (kept, Ort().load(memoryview(bytes(data)), function, context)):
        np.testing.assert_array_equal(executable.run([X])[0], expected)


def test_where_it_cannot_be_optimized_beforehand_the_model_itself_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> memoryview:
        raise RuntimeError("no such model")

    monkeypatch.setattr(ort_engine, "optimize_model", fail)
    executable = compiled(chain(WORTH_SAVING), CompileContext(threads=1, is_kept=True))
    assert executable.saved is None
    assert executable.run([X])[0].shape == X.shape
