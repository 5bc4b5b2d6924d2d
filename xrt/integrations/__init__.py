"""Batch jobs over tables of rows, and Ray.

`batch` appends a model's outputs to rows; `ray` runs batch jobs and services on Ray. Scheduling, routing and transport are left
to Ray; XRT runs models.
"""
