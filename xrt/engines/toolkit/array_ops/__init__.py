"""Operations on arrays that are the same for every array library: shapes, windows, resampling, quantization, precision."""
