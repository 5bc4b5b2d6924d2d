// The kernels that XRT ships: every file of this folder defines some, table.cc lists them all.
#ifndef XRT_KERNELS_TABLE_H
#define XRT_KERNELS_TABLE_H

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

#endif
