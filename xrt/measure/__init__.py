"""Timing of calls, interleaved rounds, statistics of paired rounds, and closed-loop load, independent of models and engines."""
