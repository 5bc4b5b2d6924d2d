// The kernels that XRT ships. The files of this folder define them, and table.cc lists them.
#pragma once

#include "xrt/kernel.h"

namespace xrt {

extern const xrt_kernel *const kKernels[];
extern const int32_t kKernelCount;

extern const xrt_kernel kElementwise;
extern const xrt_kernel kSoftmax, kSoftmaxFlattened, kLogSoftmax, kLogSoftmaxFlattened;
extern const xrt_kernel kLayerNormalization, kRmsNormalization, kInstanceNormalization, kGroupNormalization;
extern const xrt_kernel kBatchNormalization;
extern const xrt_kernel kReduceSum, kReduceMean, kReduceProd, kReduceMax, kReduceMin, kReduceL1, kReduceL2, kReduceSumSquare,
    kReduceLogSum, kReduceLogSumExp;
extern const xrt_kernel kTranspose;
extern const xrt_kernel kMaxPool, kAveragePool, kGlobalAveragePool, kGlobalMaxPool;
extern const xrt_kernel kDepthwiseConv;

}  // namespace xrt
