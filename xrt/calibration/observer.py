"""The values of a model over batches, each with its collector; threads may add at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from xrt.calibration.collectors import Collector, make_collector, read_parameters
from xrt.errors import CalibrationError, CalibrationWarning, warn
from xrt.forking import renew_after_fork
from xrt.formats.calibration_table import CalibrationTable, ValueRange

__all__ = ["Observer"]

Array: TypeAlias = np.ndarray[Any, Any]


class Observer:
    """Collects the ranges of values, which are found by key; raises OptionError for an unknown method."""

    def __init__(self, method: str = "minmax", parameters: Mapping[str, float] | None = None) -> None:
        self.method, self._given = method, dict(parameters or {})
        make_collector(method, self._given)
        self._collectors: dict[str, tuple[str, Collector]] = {}
        self._lock = renew_after_fork(threading.Lock())
        self.batches = 0
        """Calls of the model that were observed."""

    def check(self, values: Iterable[tuple[str, Any]], what: str = "value") -> None:
        """Raise CalibrationError for a value with NaN or an infinity."""
        for name, array in values:
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
                nans, infinities = int(np.isnan(array).sum()), int(np.isinf(array).sum())
                raise CalibrationError(
                    f"{what} {name!r} of calibration batch {self.batches + 1} has {nans} NaN and {infinities} infinities among "
                    f"its {array.size} numbers; calibrate on data for which the model's values are finite"
                )

    def add(self, values: Mapping[str, tuple[str, Array]]) -> None:
        """See the values of one batch: name and array by key. Raises CalibrationError where one is not finite, and adds none."""
        with self._lock:
            self.check(values.values())
            self.batches += 1
            for key, (name, array) in values.items():
                if array.size:
                    if key not in self._collectors:
                        self._collectors[key] = name, make_collector(self.method, self._given)
                    self._collectors[key][1].add(array)

    def make_table(self) -> CalibrationTable:
        """Return the table of what was seen; raises CalibrationError where nothing was."""
        with self._lock:
            if not self.batches:
                raise CalibrationError("calibration has seen no batch; call the model on examples of its inputs")
            made = tuple(_describe(key, name, one) for key, (name, one) in self._collectors.items())
            needs_more = any(one.needs_batches for _, one in self._collectors.values())
        if self.batches == 1 and needs_more:
            warn(
                f"calibration by {self.method!r} has seen one batch, and needs the statistics of several; add batches, "
                "or use method='minmax'",
                CalibrationWarning,
            )
        return CalibrationTable(method=self.method, parameters=read_parameters(self.method, self._given), ranges=made)


def _describe(key: str, name: str, collector: Collector) -> ValueRange:
    low, high = collector.choose()
    least, most, batches = collector.least, collector.most, collector.batches
    return ValueRange(key=key, low=low, high=high, least=least, most=most, batches=batches, name=name[:4000])
