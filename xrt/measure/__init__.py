"""Measurement: timing of calls, interleaved turns, and statistics of paired rounds. It knows no model and no engine."""
