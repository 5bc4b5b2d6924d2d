// What makes this shared library a library of kernels like any other.
#include "kernels/table.h"

static const xrt_library kLibrary = {XRT_KERNEL_ABI, "xrt_native", "1", xrt::kKernelCount, xrt::kKernels};

const xrt_library *xrt_library_entry(uint32_t) { return &kLibrary; }
