"""A training run that is killed while an engine computes a part of a step: FOLDER, and at which run of the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import xrt
from xrt import ops, training
from xrt.testing.fault_injection import FaultyEngine

STEPS = 10
DRAW = np.random.default_rng(3)
X, LABELS = DRAW.standard_normal((STEPS, 6, 4)).astype("float32"), DRAW.integers(0, 3, (STEPS, 6))


class Layers(xrt.Graph):
    """Two layers with a Dropout between them."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self.w1, self.w2 = (draw.standard_normal(shape).astype("float32") for shape in ((4, 5), (5, 3)))

    def build(self, x: Any) -> Any:
        return {"scores": ops.Dropout(ops.Tanh(x @ self.w1), np.float32(0.3), True) @ self.w2}


def make_module(nth: int = 1 << 30) -> training.TrainModule:
    """Return the module before its first step; one of its engines kills the process at that run."""
    engines = [FaultyEngine(how="kill", nth=nth, takes="Tanh|MatMul"), "toy"]
    return training.TrainModule(
        Layers().trace(X[0]), engines, loss=training.CrossEntropy(), optimizer=training.Adam(), learning_rate=0.05, seed=11
    )


def run(trained: training.TrainModule, steps: int, checkpoint: Path | None = None) -> list[float]:
    """Make the steps up to that number, and a checkpoint after every second; return the losses."""
    losses = []
    while (completed := trained.steps) < steps:
        losses.append(float(trained(X[completed], LABELS[completed])[0]))
        if checkpoint is not None and completed % 2:
            trained.save(checkpoint)
    return losses


if __name__ == "__main__":
    folder, nth = Path(sys.argv[1]), int(sys.argv[2])
    run(make_module(nth), STEPS, folder / "checkpoint")
