"""Ranges of the values of a model, and of the channels of those that can be balanced, over examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.calibration.grouping import group_by_bytes
from xrt.calibration.observer import Observer
from xrt.graph import hash_values
from xrt.passes.quantize import list_balanced_values, list_calibrated_values
from xrt.placement.quantized_form import OPTIONS
from xrt.precision.execution import run_once

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import Function
    from xrt.precision.examples import Examples
    from xrt.precision.execution import Workbench

__all__ = ["ObservedValues"]


@dataclass(eq=False)
class ObservedValues:
    """The values of a prepared model over the examples of calibration."""

    bench: Workbench
    prepared: Function
    examples: Examples
    tell: Callable[[str], object]
    channels: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The least and the greatest number of each channel of the values that can be balanced, once they were observed."""

    def measure_ranges(self) -> CalibrationTable:
        """Return the range of each value that is quantized; the channels are known then too."""
        names, keys = list_calibrated_values(self.prepared, OPTIONS), hash_values(self.prepared)
        observer = Observer()
        for values in self._run(list(dict.fromkeys([*names, *list_balanced_values(self.prepared)]))):
            observer.add({keys[name]: (name, np.asarray(values[name])) for name in names})
            self._add_channels(values)
        return observer.make_table()

    def measure_channels(self) -> dict[str, tuple[Any, Any]]:
        """Return the channels of the values that can be balanced; nothing runs where they are known."""
        names = list_balanced_values(self.prepared)
        if not self.channels and names:
            for values in self._run(names):
                self._add_channels(values)
        return self.channels

    def _add_channels(self, values: dict[str, Any]) -> None:
        for name in list_balanced_values(self.prepared):
            rows = np.asarray(values[name]).reshape(-1, np.shape(values[name])[-1])
            low, high = rows.min(axis=0), rows.max(axis=0)
            if name in self.channels:
                low, high = np.minimum(low, self.channels[name][0]), np.maximum(high, self.channels[name][1])
            self.channels[name] = low, high

    def _run(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of those names for each example."""
        given, outputs = [value.name for value in self.prepared.inputs], self.prepared.outputs
        programs = []
        for group in group_by_bytes([name for name in names if name not in given], self.prepared) or [()]:
            observed = self.prepared.replace(outputs=tuple(self.prepared.value(name) for name in group) or outputs)
            programs.append((group, self.bench.compile(self.bench.plan_exact(observed), is_kept=False)))
        for number, item in enumerate(self.examples.items):
            self.tell(f"calibrating on batch {number + 1} of {len(self.examples)}")
            found = {name: value for name, value in zip(given, item.values, strict=True) if name in names}
            for group, program in programs:
                found.update(zip(group, run_once(program, item.values), strict=False))
            yield found
        for _, program in programs:
            program.close()
