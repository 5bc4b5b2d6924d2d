"""Array operations that work with any array library: shapes, windows, resampling, scales and zero points."""
