"""Calibration: ranges of a model's values over batches.

Batches are streamed: only extremes and a histogram of each value are stored. Models are run by the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.calibration.collectors import METHODS as METHODS, Observer as Observer, make_collector as make_collector

__all__, __getattr__, __dir__ = load_lazily(__name__)
