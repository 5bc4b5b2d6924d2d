// Two native kernels: CumSum, which ONNX has, and my.domain.Swish, which it has not.
#include <cmath>
#include <cstdio>
#include <new>

#include <xrt/kernel.h>

namespace {

// Writes why a kernel does not serve, and returns the status.
int32_t say(xrt_text why, int32_t status, const char *text) {
  std::snprintf(why.data, why.capacity, "%s", text);
  return status;
}

const xrt_attribute *find(const xrt_node *node, const char *name) {
  for (int32_t i = 0; i < node->n_attributes; ++i) {
    const xrt_attribute &attribute = node->attributes[i];
    const char *a = attribute.name, *b = name;
    while (*a != '\0' && *a == *b) ++a, ++b;
    if (*a == *b) return &attribute;
  }
  return nullptr;
}

int64_t int_of(const xrt_node *node, const char *name, int64_t otherwise) {
  const xrt_attribute *found = find(node, name);
  return found == nullptr ? otherwise : found->i;
}

bool is_float32(const xrt_tensor &tensor) { return tensor.dtype.code == XRT_FLOAT && tensor.dtype.bits == 32; }

// The output is of the first input's type.
void announce_same(const xrt_node *node, xrt_plan *plan) {
  const xrt_tensor &x = node->inputs[0];
  plan->outputs[0].dtype = x.dtype;
  plan->outputs[0].ndim = x.ndim;
  for (int32_t i = 0; i < x.ndim; ++i) plan->outputs[0].shape[i] = x.shape[i];
}

// ---------------------------------------------------------------- my.domain.Swish: x * sigmoid(beta * x)

int32_t swish_why_not(const xrt_node *node, xrt_text why) {
  return is_float32(node->inputs[0]) ? XRT_OK : say(why, XRT_REFUSED, "it takes float32");
}

int32_t swish_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  const xrt_attribute *beta = find(node, "beta");
  plan->state = new (std::nothrow) float(beta == nullptr ? 1.0f : static_cast<float>(beta->f));
  if (plan->state == nullptr) return say(why, XRT_FAILED, "no memory");
  announce_same(node, plan);
  return XRT_OK;
}

// What the parts of a call share.
struct Swish {
  const float *x;
  float *y;
  float beta;
};

int32_t swish_run(void *state, const xrt_call *call, xrt_text) {
  const xrt_tensor &x = call->inputs[0];
  int64_t items = 1;
  for (int32_t i = 0; i < x.ndim; ++i) items *= x.shape[i];
  Swish work = {static_cast<const float *>(x.data), static_cast<float *>(call->outputs[0].data), *static_cast<float *>(state)};
  const xrt_body part = [](void *argument, int64_t begin, int64_t end) {
    const Swish &w = *static_cast<const Swish *>(argument);
    for (int64_t i = begin; i < end; ++i) w.y[i] = w.x[i] / (1.0f + std::exp(-w.beta * w.x[i]));
  };
  call->parallel(call, items, 4096, part, &work);  // 4096 elements are work enough for one thread
  return XRT_OK;
}

void swish_destroy(void *state) { delete static_cast<float *>(state); }

// ---------------------------------------------------------------- CumSum along the last axis, forwards

int32_t cumsum_why_not(const xrt_node *node, xrt_text why) {
  const xrt_tensor &x = node->inputs[0], &axis = node->inputs[1];
  if (!is_float32(x) || x.ndim < 1) return say(why, XRT_REFUSED, "it takes float32 of a known rank, from 1 on");
  if (axis.data == nullptr || axis.dtype.bits != 64) return say(why, XRT_REFUSED, "the axis must be a constant of int64");
  const int64_t along = *static_cast<const int64_t *>(axis.data);
  if (along != -1 && along != x.ndim - 1) return say(why, XRT_REFUSED, "it runs along the last axis");
  const bool plain = int_of(node, "reverse", 0) == 0 && int_of(node, "exclusive", 0) == 0;
  return plain ? XRT_OK : say(why, XRT_REFUSED, "it runs forwards and includes each element");
}

int32_t cumsum_prepare(const xrt_node *node, xrt_plan *plan, xrt_text) {
  announce_same(node, plan);
  return XRT_OK;
}

int32_t cumsum_run(void *, const xrt_call *call, xrt_text) {
  const xrt_tensor &x = call->inputs[0];
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < x.ndim; ++i) rows *= x.shape[i];
  const xrt_body part = [](void *argument, int64_t begin, int64_t end) {
    const xrt_call &c = *static_cast<const xrt_call *>(argument);
    const int64_t length = c.inputs[0].shape[c.inputs[0].ndim - 1];
    for (int64_t row = begin; row < end; ++row) {
      const float *from = static_cast<const float *>(c.inputs[0].data) + row * length;
      float *to = static_cast<float *>(c.outputs[0].data) + row * length;
      float sum = 0.0f;
      for (int64_t i = 0; i < length; ++i) to[i] = sum += from[i];
    }
  };
  call->parallel(call, rows, 16, part, const_cast<xrt_call *>(call));
  return XRT_OK;
}

// ---------------------------------------------------------------- the table

// Bit 0 of in_place: the output may share the first input's memory, if that input has no later reader.
const xrt_kernel swish = {"my_swish", "my.domain", "Swish", 1, 0, 0, XRT_CPU, 0, 1, swish_why_not, swish_prepare, swish_run, swish_destroy};
// Priority 1: asked before toy's own kernel in Python, which has 0 and what this one refuses.
const xrt_kernel cumsum = {"my_cumsum", "", "CumSum", 11, 0, 1, XRT_CPU, 0, 1, cumsum_why_not, cumsum_prepare, cumsum_run, nullptr};

const xrt_kernel *const kernels[] = {&swish, &cumsum};
const xrt_library library = {XRT_KERNEL_ABI, "my_native_kernels", "0.1.0", 2, kernels};

}  // namespace

const xrt_library *xrt_library_entry(uint32_t abi) { return abi == XRT_KERNEL_ABI ? &library : nullptr; }
