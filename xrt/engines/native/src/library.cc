// The entry point of the shared library, which kernel.h declares.
#include <string>

#include "kernels/table.h"
#include "kernels/variants.h"

const xrt_library *xrt_library_entry(uint32_t) {
  // Instruction sets round differently (FMA), so the version of the library includes the one in use.
  static const std::string version = std::string("1-") + xrt::variant().name;
  static const xrt_library library = {XRT_KERNEL_ABI, "xrt_native", version.c_str(), xrt::kKernelCount, xrt::kKernels};
  return &library;
}
