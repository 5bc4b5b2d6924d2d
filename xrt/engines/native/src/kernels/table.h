// The kernels that XRT ships: every file of this folder defines some, table.cc lists them all.
#ifndef XRT_KERNELS_TABLE_H
#define XRT_KERNELS_TABLE_H

#include "xrt/kernel.h"

namespace xrt {

extern const xrt_kernel *const kKernels[];
extern const int32_t kKernelCount;

extern const xrt_kernel kReluF32;

}  // namespace xrt

#endif
