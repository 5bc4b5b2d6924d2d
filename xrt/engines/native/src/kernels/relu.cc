// Relu of float32: the least that a kernel is.
#include <cstdio>

#include "kernels/table.h"

namespace xrt {
namespace {

int32_t WhyNot(const xrt_node *node, xrt_text why) {
  const xrt_dtype type = node->inputs[0].dtype;
  if (type.code == XRT_FLOAT && type.bits == 32) return XRT_OK;
  std::snprintf(why.data, why.capacity, "it takes float32");
  return XRT_REFUSED;
}

int32_t Prepare(const xrt_node *node, xrt_plan *plan, xrt_text) {
  const xrt_tensor &x = node->inputs[0];
  plan->outputs[0].dtype = x.dtype;
  plan->outputs[0].ndim = x.ndim;
  for (int32_t i = 0; i < x.ndim; ++i) plan->outputs[0].shape[i] = x.shape[i];
  return XRT_OK;
}

void Part(void *argument, int64_t begin, int64_t end) {
  const xrt_call *call = static_cast<const xrt_call *>(argument);
  const float *x = static_cast<const float *>(call->inputs[0].data);
  float *y = static_cast<float *>(call->outputs[0].data);
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

int32_t Run(void *, const xrt_call *call, xrt_text) {
  int64_t count = 1;
  for (int32_t i = 0; i < call->inputs[0].ndim; ++i) count *= call->inputs[0].shape[i];
  call->parallel(call, count, 16384, Part, const_cast<xrt_call *>(call));
  return XRT_OK;
}

}  // namespace

const xrt_kernel kReluF32 = {"relu_f32", "", "Relu", 6, 0, 1, XRT_CPU, 0, 1, WhyNot, Prepare, Run, nullptr};

}  // namespace xrt
