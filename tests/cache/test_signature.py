"""The signature law: change one ingredient and miss, change a name and hit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from xrt.cache import Signature, make_signature, signature
from xrt.engines import CompileContext, Executable, ExecutionOptions, GraphCompiler
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes


@dataclass(frozen=True)
class Fake(GraphCompiler):
    name: ClassVar[str] = "fake"
    level: int = 1
    release: ClassVar[str] = "1.0"

    def why_not(self, node: Node, function: Function) -> str | None:
        return None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        raise NotImplementedError

    def version(self) -> str:
        return self.release


class Newer(Fake):
    release: ClassVar[str] = "1.1"


def model(
    *, op: str = "Concat", axis: int = 0, opset: int = 20, weight: float = 1.0, size: int = 2, inner: str = "h"
) -> Function:
    return Function(
        inputs=(Value("x", TensorType(DType.FLOAT32, (size, 2))),),
        outputs=(Value("y"),),
        nodes=(
            Node("Relu", ("x",), (inner,)),
            Node(op, (inner, "w"), ("y",), read_attributes({"axis": axis})),
        ),
        constants={"w": Constant(np.full((2, 2), weight, "float32"))},
        opsets={"": opset},
    )


def made(function: Function | None = None, engine: GraphCompiler | None = None, **context: object) -> Signature:
    return make_signature(function or model(), engine or Fake(), replace(CompileContext(), **context))  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[], Signature]] = {
    "operator": lambda: made(model(op="Add")),
    "attribute": lambda: made(model(axis=1)),
    "constant": lambda: made(model(weight=2.0)),
    "sign of zero": lambda: made(model(weight=-0.0)),
    "opset": lambda: made(model(opset=19)),
    "shape": lambda: made(model(size=3)),
    "engine option": lambda: made(engine=Fake(level=2)),
    "version": lambda: made(engine=Newer()),
    "device": lambda: made(device="cuda"),
    "threads": lambda: made(threads=2),
    "precision": lambda: made(options=ExecutionOptions(precision="fp16")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_ingredient_changes_the_key(change: str) -> None:
    base = made(model(weight=0.0)) if change == "sign of zero" else made()
    changed = CHANGES[change]()
    assert changed.key != base.key
    assert changed.difference(base)


def test_the_machine_and_the_version_are_ingredients(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made()
    monkeypatch.setattr(signature, "__version__", "99")
    assert made().difference(before) == ("xrt",)
    monkeypatch.undo()
    monkeypatch.setattr(signature, "describe_machine", lambda: "another")
    assert made().difference(before) == ("machine",)


def test_renamed_inner_values_hit() -> None:
    assert made(model(inner="another_name")).key == made().key


def test_a_shared_class_name_in_another_module_misses() -> None:
    other = type("Fake", (Fake,), {"__module__": "elsewhere"})()
    assert made(engine=other).difference(made()) == ("engine", "code")
