"""``tvm`` on CUDA: TVM's GPU schedules, compiled by NVRTC, on XRT's memory and streams.

TVM lowers a Function to CUDA C++ with all memory of a call as parameters, so that a run allocates nothing in TVM, does not
synchronize, and can be captured in a CUDA graph. NVRTC compiles the source, TVM's CUDA runtime loads the binary (all in
`codegen`), and `TvmOnDevice` launches it. Compiling needs no GPU.
"""
