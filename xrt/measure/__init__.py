"""Measurement: timing of calls, interleaved rounds, statistics of paired rounds, and closed-loop load. Independent of models and
engines.
"""
