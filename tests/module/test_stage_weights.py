"""A process that runs one stage of a bundle reads the weights of that stage, and compares their checksums all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import xrt
from xrt.errors import BundleError
from xrt.formats.bundle import BundleFile
from xrt.graph import Constant, DType, Function, TensorType
from xrt.module import XRTModule
from xrt.module.stages import compile_stage, defer_weight_checks
from xrt.partition import Stage

WIDTH = 512  # weights of 1 MB, so that the file is mapped


class Products(xrt.Graph):
    """Products with four weights, of which the last one may be the first one turned."""

    def __init__(self, *, is_tied: bool) -> None:
        rng = np.random.default_rng(0)
        self._weights = [rng.integers(-1, 2, (WIDTH, WIDTH)).astype("float32") for _ in range(4)]
        self._is_tied = is_tied

    def build(self, x: xrt.Value) -> xrt.Value:
        for weight in self._weights[: 3 if self._is_tied else 4]:
            x = xrt.ops.MatMul(x, weight)
        return xrt.ops.MatMul(x, xrt.ops.Transpose(self._weights[0], perm=[1, 0])) if self._is_tied else x

    def trace_rows(self) -> Function:
        return self.trace(x=TensorType(DType.FLOAT32, ("n", WIDTH)))


def save(path: Path, *, is_tied: bool = False) -> list[str]:
    """Write a bundle, and return the sections of its weights in the order of their products."""
    function = Products(is_tied=is_tied).trace_rows()
    with XRTModule(function, "toy", cache=None) as module:
        module.save(path)
    digests = {name: constant.digest.hex() for name, constant in function.constants.items()}
    return [
        f"weight:{digests[node.inputs[1]]}" for node in function.nodes if node.op_type == "MatMul" and node.inputs[1] in digests
    ]


def damage(path: Path, section: str) -> None:
    """Change a byte of a section in place."""
    place = BundleFile(path)._container.sections[section].offset + 5
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def open_stages(path: Path) -> tuple[XRTModule, tuple[Stage, ...]]:
    module = xrt.load(path)
    defer_weight_checks(module)
    return module, module.plan.stages(4)


def test_a_damaged_weight_is_found_by_the_stage_that_has_it(tmp_path):
    sections = save(tmp_path / "model.xrt")
    damage(tmp_path / "model.xrt", sections[2])
    module, stages = open_stages(tmp_path / "model.xrt")
    with module:
        x = np.ones((2, WIDTH), "float32")
        for place in (0, 1, 3):
            with compile_stage(module, stages[place]) as program:
                assert [value.shape for value in program([x])] == [(2, WIDTH)]
        with pytest.raises(BundleError) as caught:
            compile_stage(module, stages[2])
        text = f"cannot load {str(tmp_path / 'model.xrt')!r}: the checksum of its section {sections[2]!r} differs"
        assert str(caught.value) == text


def test_without_stages_a_damaged_weight_is_found_as_before(tmp_path):
    sections = save(tmp_path / "model.xrt")
    damage(tmp_path / "model.xrt", sections[2])
    with xrt.load(tmp_path / "model.xrt") as module, pytest.raises(BundleError):
        assert module.plan


def test_a_constant_that_may_be_computed_from_any_weight(tmp_path):
    """It is in memory of its own, so nothing tells what was read for it: then every weight is checked."""
    sections = save(tmp_path / "model.xrt")
    damage(tmp_path / "model.xrt", sections[2])
    module, stages = open_stages(tmp_path / "model.xrt")
    with module:
        file = module._bundle
        assert file is not None
        sound = next(iter(stages[0].plan.launches[0].function.constants.values()))
        axes = Constant(np.array([0, 1]))
        file.check_weights([sound, axes], {Constant(np.array([0, 1]))})
        for computed in (Constant(sound.array.T.copy()), Constant(np.array([0, 2]))):
            with pytest.raises(BundleError):
                file.check_weights([sound, computed], {axes})


@pytest.mark.slow
def test_stages_of_a_bundle_equal_the_whole(tmp_path):
    for is_tied in (False, True):
        path = tmp_path / f"{is_tied}.xrt"
        save(path, is_tied=is_tied)
        x = np.ones((2, WIDTH), "float32")
        with xrt.load(path) as whole:
            expected = whole(x)
        module, stages = open_stages(path)
        values = [x]
        with module:
            for stage in stages:
                with compile_stage(module, stage) as program:
                    values = program(values)
        np.testing.assert_array_equal(values[0], expected)
