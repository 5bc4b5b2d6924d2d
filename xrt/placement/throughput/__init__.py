"""Throughput as an objective: the configuration that serves most requests per second within a bound on the latency.

Batch size, instances and threads per instance are swept in a closed loop, and the point with the highest measured rate within
the bound is chosen. Nothing here makes a module or calls a model: `xrt.module.tuning` does.
"""
