#include "kernels/table.h"

namespace xrt {

const xrt_kernel *const kKernels[] = {
    &kReluF32,
};

const int32_t kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

}  // namespace xrt
