"""Recipes that generate graphs, in families; `xrt.testing.generate` combines them."""
