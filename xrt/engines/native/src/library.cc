// What makes this shared library a library of kernels like any other.
#include <string>

#include "kernels/table.h"
#include "kernels/variants.h"

const xrt_library *xrt_library_entry(uint32_t) {
  // Another instruction set rounds elsewhere: it is part of the version.
  static const std::string version = std::string("1-") + xrt::variant().name;
  static const xrt_library library = {XRT_KERNEL_ABI, "xrt_native", version.c_str(), xrt::kKernelCount, xrt::kKernels};
  return &library;
}
