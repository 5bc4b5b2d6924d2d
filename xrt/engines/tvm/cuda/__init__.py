"""``tvm`` on CUDA: TVM's own schedules for GPUs, compiled by NVRTC, on memory and streams of XRT's.

A Function is lowered by TVM to CUDA C++ (`code`), with every byte that a call needs as a parameter (`memory`), so that a run
allocates nothing of TVM's, waits for nothing and can be recorded. NVRTC makes machine code of it (`nvrtc`), which TVM's runtime
for CUDA loads (`library`) and a `TvmOnDevice` launches. Up to the machine code none of it needs a GPU.
"""
