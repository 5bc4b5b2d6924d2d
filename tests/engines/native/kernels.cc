// Kernels for the tests: they do as an attribute bids, and count what is asked of them. Macros make the library a wrong one.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>

#include <xrt/kernel.h>

#ifndef ABI
#define ABI XRT_KERNEL_ABI
#endif
#ifndef VERSION
#define VERSION "7"
#endif

namespace {

std::atomic<int64_t> prepared{0}, destroyed{0}, runs{0};

const xrt_attribute *find(const xrt_node *node, const char *name) {
  for (int32_t i = 0; i < node->n_attributes; ++i) {
    if (std::strcmp(node->attributes[i].name, name) == 0) return &node->attributes[i];
  }
  return nullptr;
}

bool bids(const xrt_node *node, const char *what) {
  const xrt_attribute *bid = find(node, "bid");
  return bid != nullptr && std::strcmp(bid->s, what) == 0;
}

int32_t say(xrt_text why, int32_t status, const char *text) {
  std::snprintf(why.data, why.capacity, "%s", text);
  return status;
}

int64_t size_of(const xrt_tensor &tensor) {
  int64_t size = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  return size;
}

// ---------------------------------------------------------------- Twice: y = factor * x + the sum of the other inputs

struct Twice {
  float factor;
  bool fails;
};

int32_t why_not(const xrt_node *node, xrt_text why) {
  const xrt_dtype &type = node->inputs[0].dtype;
  if (bids(node, "decline")) return say(why, XRT_REFUSED, "it was\nbidden to");
  if (type.bits != 0 && (type.code != XRT_FLOAT || type.bits != 32)) return say(why, XRT_REFUSED, "it takes float32");
  return XRT_OK;
}

int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  if (bids(node, "refuse")) return say(why, XRT_REFUSED, "not for this shape");
  if (bids(node, "fail to prepare")) return say(why, XRT_FAILED, "no room");
  if (bids(node, "fail in silence")) return XRT_FAILED;
  const xrt_tensor &x = node->inputs[0];
  xrt_output &y = plan->outputs[0];
  y.dtype = x.dtype;
  if (bids(node, "announce another type")) y.dtype.bits = 64;
  if (bids(node, "announce no type")) y.dtype.bits = 0;
  y.ndim = x.ndim;
  for (int32_t i = 0; i < x.ndim; ++i) y.shape[i] = x.shape[i] + (bids(node, "announce another shape") ? 1 : 0);
  if (bids(node, "announce a long shape")) y.ndim = 17;
  plan->scratch = bids(node, "scratch") ? 1000 : 0;
  const xrt_attribute *factor = find(node, "factor");
  plan->state = new Twice{factor == nullptr ? 2.0f : static_cast<float>(factor->f), bids(node, "fail to run")};
  ++prepared;
  return XRT_OK;
}

void part(void *argument, int64_t begin, int64_t end) {
  void **both = static_cast<void **>(argument);
  const Twice *state = static_cast<const Twice *>(both[0]);
  const xrt_call *call = static_cast<const xrt_call *>(both[1]);
  float *y = static_cast<float *>(call->outputs[0].data);
  const float *x = static_cast<const float *>(call->inputs[0].data);
  const float *z = call->inputs[1].ndim < 0 ? nullptr : static_cast<const float *>(call->inputs[1].data);
  for (int64_t i = begin; i < end; ++i) y[i] = state->factor * x[i] + (z == nullptr ? 0.0f : z[i]);
}

int32_t run(void *state, const xrt_call *call, xrt_text why) {
  ++runs;
  if (static_cast<Twice *>(state)->fails) return say(why, XRT_FAILED, "the number\n  is odd");
  if (call->scratch != nullptr) std::memset(call->scratch, 255, 1000);
  void *both[] = {state, const_cast<xrt_call *>(call)};
  call->parallel(call, size_of(call->outputs[0]), 64, part, both);
  return XRT_OK;
}

void destroy(void *state) {
  delete static_cast<Twice *>(state);
  ++destroyed;
}

// ---------------------------------------------------------------- Split: the first output is x, the second, if wanted, -x

int32_t prepare_split(const xrt_node *node, xrt_plan *plan, xrt_text) {
  for (int32_t k = 0; k < node->n_outputs; ++k) {
    plan->outputs[k].dtype = node->inputs[0].dtype;
    plan->outputs[k].ndim = node->inputs[0].ndim;
    std::memcpy(plan->outputs[k].shape, node->inputs[0].shape, sizeof(int64_t) * node->inputs[0].ndim);
  }
  return XRT_OK;
}

int32_t run_split(void *, const xrt_call *call, xrt_text) {
  const float *x = static_cast<const float *>(call->inputs[0].data);
  for (int64_t i = 0, size = size_of(call->inputs[0]); i < size; ++i) {
    const float value = x[i];
    if (call->outputs[0].data != nullptr) static_cast<float *>(call->outputs[0].data)[i] = value;
    if (call->outputs[1].data != nullptr) static_cast<float *>(call->outputs[1].data)[i] = -value;
  }
  return XRT_OK;
}

const xrt_kernel twice = {"twice", "test", "Twice", 1, 0, 0, XRT_CPU, 0, 3, why_not, prepare, run, destroy};
const xrt_kernel split = {"split", "test", "Split", 1, 0, 0, XRT_CPU, 0, 0, nullptr, prepare_split, run_split, nullptr};
// Louder than XRT's own: it serves every Neg of float32, and gives -x as 2 * -x so that a test can tell.
int32_t prepare_neg(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  const int32_t status = prepare(node, plan, why);
  if (status == XRT_OK) static_cast<Twice *>(plan->state)->factor = -2.0f;
  return status;
}
int32_t run_neg(void *state, const xrt_call *call, xrt_text why) {
  xrt_tensor inputs[2] = {call->inputs[0], {}};
  inputs[1].ndim = -1;
  xrt_call own = *call;
  own.inputs = inputs;
  return run(state, &own, why);
}
const xrt_kernel neg = {"loud_neg", "", "Neg", 6, 12, 5, XRT_CPU, 0, 1, why_not, prepare_neg, run_neg, destroy};

#if defined(NO_RUN)
const xrt_kernel extra = {"lame", "test", "Lame", 1, 0, 0, XRT_CPU, 0, 0, nullptr, prepare, nullptr, nullptr};
#elif defined(NO_NAME)
const xrt_kernel extra = {nullptr, "test", "Lame", 1, 0, 0, XRT_CPU, 0, 0, nullptr, prepare, run, nullptr};
#elif defined(NOT_UTF8)
const xrt_kernel extra = {"lame", "test", "L\xff", 1, 0, 0, XRT_CPU, 0, 0, nullptr, prepare, run, nullptr};
#elif defined(ODD_DEVICE)
const xrt_kernel extra = {"lame", "test", "Lame", 1, 0, 0, 77, 0, 0, nullptr, prepare, run, nullptr};
#elif defined(TWINS)
const xrt_kernel extra = {"splat", "test", "Split", 1, 0, 0, XRT_CPU, 0, 0, nullptr, prepare_split, run_split, nullptr};
#else
#define NO_EXTRA
#endif

const xrt_kernel *const kernels[] = {
    &twice,
    &split,
    &neg,
#ifndef NO_EXTRA
    &extra,
#endif
};

const xrt_library library = {ABI, "test_kernels", VERSION, sizeof(kernels) / sizeof(kernels[0]), kernels};

}  // namespace

#ifdef NO_ENTRY
extern "C" XRT_EXPORT const xrt_library *another_entry(uint32_t) { return &library; }
#else
const xrt_library *xrt_library_entry(uint32_t abi) {
#ifdef NULL_ENTRY
  (void)abi;
  return nullptr;
#else
  return abi == XRT_KERNEL_ABI ? &library : nullptr;
#endif
}
#endif

#ifdef UNDEFINED
extern "C" void nowhere_to_be_found();
extern "C" XRT_EXPORT void call_it() { nowhere_to_be_found(); }
#endif

extern "C" XRT_EXPORT int64_t count(int32_t what) { return what == 0 ? prepared : what == 1 ? destroyed : runs; }

// Sizes and offsets as the compiler sees them, for the test of abi.py.
extern "C" XRT_EXPORT int64_t layout(int32_t which) {
  const int64_t all[] = {
      sizeof(xrt_dtype),  sizeof(xrt_tensor),  sizeof(xrt_attribute), sizeof(xrt_node), sizeof(xrt_text), sizeof(xrt_output),
      sizeof(xrt_plan),   sizeof(xrt_call),    sizeof(xrt_kernel),    sizeof(xrt_library),
      offsetof(xrt_tensor, byte_offset), offsetof(xrt_attribute, tensor), offsetof(xrt_node, n_outputs),
      offsetof(xrt_output, shape), offsetof(xrt_plan, outputs), offsetof(xrt_call, host), offsetof(xrt_kernel, destroy),
      offsetof(xrt_library, kernels), XRT_KERNEL_ABI, XRT_MAX_RANK};
  return which < static_cast<int32_t>(sizeof(all) / sizeof(all[0])) ? all[which] : -1;
}
