"""Try one engine on many models, in one process: ``python -m benchmarks.zoo.trial ENGINE NAME...`` prints JSON lines."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import xrt
from benchmarks.output import open_session
from benchmarks.zoo.model import FOLDER, Case, load_case
from xrt.measure.statistics import compute_round_ratio, take_turns
from xrt.measure.timing import measure_call, time_call

BUDGET = 5.0
ROUNDS = 21
TURN, SAMPLE, PAUSE = 0.01, 1e-4, 0.05
"""Seconds of a turn, of one sample in it, and of the rest before it."""


def try_model(case: Case, engine: str) -> dict[str, Any]:
    """Run a model on an engine; return the verdict, the number of nodes on the reference engine, and times."""
    expected = case.expected
    if not expected:
        session = open_session(case.path)
        expected = [session.run(None, dict(call)) for call in case.calls]
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options = {"budget": BUDGET} if engine == "auto" else {}
            module = xrt.XRTModule(case.path, engine=engine, **options)
            results, seconds = [], []
            for call in case.calls:
                result, took = time_call(partial(module, **call))
                results.append(as_tuple(result))
                seconds.append(took)
    except xrt.XRTError as error:
        return {"verdict": "declined", "reason": " ".join(str(error).split())[:300]}
    except Exception as error:  # noqa: BLE001  # anything but an error of XRT's is a defect, and the run goes on
        return {"verdict": "error", "reason": f"{type(error).__name__}: {error}"[:300]}
    outcome: dict[str, Any] = {"seconds": time.perf_counter() - start, "calls": seconds}
    faults = [
        fault
        for actual, expected_output in zip(results, expected, strict=True)
        for fault in compare(actual, expected_output, case.tolerance)
    ]
    outcome |= {"verdict": "wrong" if faults else "right", "reason": "; ".join(faults[:3])}
    return (
        outcome | count_nodes(module, engine) | describe_measurement(module, caught, engine) | compare_speed(module, case, engine)
    )


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def count_nodes(module: xrt.XRTModule, engine: str) -> dict[str, Any]:
    """Count the nodes of the plan and those that fell back to the reference engine; also return the reasons."""
    launches = module.plan.launches
    on_toy = [launch for launch in launches if launch.engine.startswith("toy")] if engine not in ("toy", "auto") else []
    names = {name for launch in on_toy for name in launch.nodes}
    reasons = sorted({f"{reason.op}: {reason.text}" for reason in module.plan.reasons if reason.node in names})
    return {
        "nodes": sum(len(launch.nodes) for launch in launches),
        "regions": len(launches),
        "on_toy": sum(len(launch.nodes) for launch in on_toy),
        "reasons": [reason[:200] for reason in reasons[:6]],
    }


def describe_measurement(module: xrt.XRTModule, caught: Sequence[Any], engine: str) -> dict[str, Any]:
    """Return whether placement by measurement measured anything."""
    if engine != "auto":
        return {}
    unmeasured = [str(warning.message)[:200] for warning in caught if issubclass(warning.category, xrt.errors.PlacementWarning)]
    return {"measured": not unmeasured, "warning": " ".join(unmeasured), "plan": sorted(module.plan.used_engines)}


def compare_speed(module: xrt.XRTModule, case: Case, engine: str) -> dict[str, Any]:
    """Return the time of a call over a session's own.

    They take turns. A turn has many short samples and counts as its smallest, so that other processes do not matter;
    the ratio is the median over the turns.
    """
    if engine != "ort":
        return {}
    session, call = open_session(case.path), dict(case.calls[0])
    alone = partial(session.run, None, call)
    candidates = {"ours": partial(module, **call), "alone": alone}
    for candidate in candidates.values():
        candidate()
    seconds = min(measure_call(alone) for _ in range(20))
    calls_per_sample = max(1, int(SAMPLE / seconds))
    samples = max(3, int(TURN / (seconds * calls_per_sample)))
    times = take_turns(
        {name: partial(measure_shortest_sample, candidate, calls_per_sample, samples) for name, candidate in candidates.items()},
        ROUNDS,
    )
    return {"alone": seconds, "ratio": compute_round_ratio(times["ours"], times["alone"]).median}


def measure_shortest_sample(call: Any, calls_per_sample: int, samples: int) -> float:
    """Measure seconds per call; return the smallest sample. First wait until idle threads of other libraries stop spinning."""
    time.sleep(PAUSE)
    return min(measure_call(call, calls_per_sample) for _ in range(samples))


def compare(results: Sequence[Any], expected: Sequence[Any], tolerance: float) -> list[str]:
    """Explain the differences from the expected outputs, a sentence for each output."""
    if len(results) != len(expected):
        return [f"{len(results)} outputs for {len(expected)}"]
    return [
        f"output {n}: {fault}"
        for n, pair in enumerate(zip(results, expected, strict=True))
        if (fault := find_difference(*pair, tolerance))
    ]


def find_difference(actual: Any, expected_output: Any, tolerance: float) -> str:
    actual, expected_output = as_array(actual), as_array(expected_output)
    if actual.shape != expected_output.shape:
        return f"shape {actual.shape} for {expected_output.shape}"
    if expected_output.dtype.kind not in "fV" and actual.dtype.kind not in "fV":
        return "" if np.array_equal(actual.astype(expected_output.dtype), expected_output) else "other integers or texts"
    actual, expected_output = actual.astype("float64"), expected_output.astype("float64")
    if not np.array_equal(np.isnan(actual), np.isnan(expected_output)):
        return "NaN at other places"
    finite = np.isfinite(expected_output)
    if not np.array_equal(actual[~finite & ~np.isnan(expected_output)], expected_output[~finite & ~np.isnan(expected_output)]):
        return "infinities at other places"
    scale = max(float(np.abs(expected_output[finite]).max(initial=0)), 1e-6)
    difference = float(np.abs(actual[finite] - expected_output[finite]).max(initial=0)) / scale
    return "" if difference <= tolerance else f"differs by {difference:.2g} of the largest value"


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return the value as an array; of a list of dicts, the values by key."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.array([[row[key] for key in sorted(row)] for row in value])
    return np.asarray(value)


def main(engine: str, names: Sequence[str]) -> None:
    """Try each model and print the outcome."""
    for name in names:
        print(json.dumps({"begin": name}), flush=True)
        print(json.dumps({"model": name, **try_model(load_case(FOLDER / name), engine)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
