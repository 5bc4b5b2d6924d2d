"""Integrations: XRT's modules inside systems that run processes, and jobs over tables of rows.

`batch` takes a model and rows and returns the rows with the model's outputs; `ray` runs that and services on Ray.
Nothing here schedules, routes or transports: Ray runs processes, and XRT runs models.
"""
