#include "table.h"

namespace xrt {

const xrt_kernel *const kKernels[] = {
    &kElementwise,
    &kSoftmax,
    &kSoftmaxFlattened,
    &kLogSoftmax,
    &kLogSoftmaxFlattened,
    &kLayerNormalization,
    &kRmsNormalization,
    &kInstanceNormalization,
    &kGroupNormalization,
    &kBatchNormalization,
    &kReduceSum,
    &kReduceMean,
    &kReduceProd,
    &kReduceMax,
    &kReduceMin,
    &kReduceL1,
    &kReduceL2,
    &kReduceSumSquare,
    &kReduceLogSum,
    &kReduceLogSumExp,
    &kTranspose,
    &kMaxPool,
    &kAveragePool,
    &kGlobalAveragePool,
    &kGlobalMaxPool,
    &kDepthwiseConv,
};

const int32_t kKernelCount = sizeof(kKernels) / sizeof(kKernels[0]);

}  // namespace xrt
