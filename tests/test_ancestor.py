"""Defects of the C++ ancestor, tested on modules of real engines. The corpus and the laws have the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from xrt.engines import CompileContext, Executable, GraphCompiler, OpTable, RunOptions
from xrt.graph import Function, Node
from xrt.testing.corpus import find_entry
from xrt.testing.corpus.entry import f32, graph, node
from xrt.testing.fault_injection import RecordingEngine
from xrt.testing.running import make_module


class Idle(Executable):
    """Runs nothing of use; the test asks only who was asked."""

    def run(self, inputs, options=RunOptions()):
        raise NotImplementedError


@dataclass(frozen=True)
class Inference(GraphCompiler):
    """An engine whose kernels serve the inference form of an operator only, and say no more than that."""

    name: ClassVar[str] = "inference"
    ops: ClassVar[OpTable] = OpTable("inference")

    def why_not(self, node: Node, function: Function) -> str | None:
        return self.ops.why_not(node, function)

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return Idle()


@Inference.ops("BatchNormalization", "Dropout")
def _kernel() -> None: ...


def test_a_training_node_stays_away_from_an_engine_without_training_kernels():
    """Whether a kernel may train was lost when an operator was copied into a region."""
    entry = find_entry("training_batch_normalization")
    engine = Inference()
    with make_module(entry.function, [engine, "toy"]) as module:
        results = module(*entry.make_inputs())
        [launch] = module.plan.launches
        [reason] = module.plan.reasons
    assert launch.engine == "toy"
    assert "training form of BatchNormalization" in reason.text
    assert entry.judge(list(results))
    copied = launch.function.nodes[0]
    assert "training form" in str(engine.why_not(copied, launch.function)), "the copy in the region tells it still"


@pytest.mark.parametrize(
    "engines", [["toy"], ["ort"], [RecordingEngine(takes="Add"), "toy"], [RecordingEngine(takes="Mul"), "toy"]], ids=str
)
def test_an_update_in_place_reaches_the_input(engines):
    """A region on an engine without in-place kernels computed the new value, and nobody wrote it back."""
    entry = find_entry("update_in_place")
    with make_module(entry.function, engines) as module:
        state, x = entry.make_inputs()
        new, y = module(state, x)
        assert entry.judge([new, y])
        np.testing.assert_array_equal(state, entry.expected[0])
        module(state, x)
        np.testing.assert_array_equal(state, entry.expected[0] + x)


@pytest.mark.parametrize(
    "engines", [["toy"], ["ort"], [RecordingEngine(takes="Add"), "toy"], [RecordingEngine(takes="Neg"), "toy"]], ids=str
)
def test_who_reads_the_old_value_reads_it_before_the_update(engines):
    """The other half of the same defect: a later region read what had been overwritten."""
    function = graph(
        {"state": "float32[3]"},
        {"new": "float32[3]", "old": "float32[3]", "state": "float32[3]"},
        node("Add", "state one", "new"),
        node("Tanh", "new", "later"),
        node("Neg", "state", "negative"),
        node("Add", "negative later", "old"),
        constants={"one": f32(1, 1, 1)},
        aliases=(("state", "new"),),
    )
    start = f32(1, 2, 3)
    with make_module(function, engines) as module:
        state = start.copy()
        new, old, before = module(state)
    np.testing.assert_array_equal(new, start + 1)
    np.testing.assert_allclose(old, np.tanh(start + 1) - start, rtol=1e-6)
    np.testing.assert_array_equal(before, start)
    np.testing.assert_array_equal(state, start + 1)
