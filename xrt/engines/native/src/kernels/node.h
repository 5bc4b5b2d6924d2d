// Reading nodes and tensors, and answering with reasons.
#ifndef XRT_KERNELS_NODE_H
#define XRT_KERNELS_NODE_H

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "xrt/kernel.h"

namespace xrt {

using Shape = std::vector<int64_t>;

// ---------------------------------------------------------------- types

inline constexpr xrt_dtype kFloat32 = {XRT_FLOAT, 32, 1};
inline constexpr xrt_dtype kFloat64 = {XRT_FLOAT, 64, 1};
inline constexpr xrt_dtype kInt32 = {XRT_INT, 32, 1};
inline constexpr xrt_dtype kInt64 = {XRT_INT, 64, 1};

inline bool operator==(const xrt_dtype &a, const xrt_dtype &b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline bool operator!=(const xrt_dtype &a, const xrt_dtype &b) { return !(a == b); }

std::string name_of(xrt_dtype dtype);  // "float32"
inline size_t bytes_of(xrt_dtype dtype) { return (dtype.bits + 7U) / 8U; }

// ---------------------------------------------------------------- tensors and shapes

inline bool is_given(const xrt_tensor &tensor) { return tensor.ndim != -1; }
inline Shape shape_of(const xrt_tensor &tensor) { return Shape(tensor.shape, tensor.shape + (tensor.ndim > 0 ? tensor.ndim : 0)); }
int64_t product(const Shape &shape, size_t begin = 0, size_t end = SIZE_MAX);
inline int64_t size_of(const xrt_tensor &tensor) { return product(shape_of(tensor)); }

template <class T>
T *data_of(const xrt_tensor &tensor) {
  return static_cast<T *>(tensor.data);
}

// The elements of a constant int64 or int32 tensor.
std::vector<int64_t> integers_of(const xrt_tensor &tensor);

// Counts from the end where it is negative; -1 where it is no axis of that rank.
inline int64_t axis_of(int64_t axis, int64_t rank) {
  const int64_t positive = axis < 0 ? axis + rank : axis;
  return positive < rank ? positive : -1;
}

// ---------------------------------------------------------------- attributes

const xrt_attribute *find(const xrt_node &node, const char *name);
int64_t int_of(const xrt_node &node, const char *name, int64_t otherwise);
double float_of(const xrt_node &node, const char *name, double otherwise);
std::string string_of(const xrt_node &node, const char *name, const char *otherwise);
std::vector<int64_t> ints_of(const xrt_node &node, const char *name);
std::vector<double> floats_of(const xrt_node &node, const char *name);
std::vector<std::string> strings_of(const xrt_node &node, const char *name);

// ---------------------------------------------------------------- answers

int32_t answer(int32_t status, xrt_text why, const std::string &text);
inline int32_t refuse(xrt_text why, const std::string &text) { return answer(XRT_REFUSED, why, text); }
inline int32_t fail(xrt_text why, const std::string &text) { return answer(XRT_FAILED, why, text); }

// Refuses a node whose first input is not one of the types.
int32_t takes(const xrt_node &node, std::initializer_list<xrt_dtype> dtypes, xrt_text why);

void announce(xrt_output &output, xrt_dtype dtype, const Shape &shape);

// Runs a function of the kernel table; what it throws becomes XRT_FAILED with its text.
template <class F>
int32_t guarded(xrt_text why, F function) {
  try {
    return function();
  } catch (const std::exception &error) {
    return fail(why, error.what());
  } catch (...) {
    return fail(why, "an unknown exception");
  }
}

// ---------------------------------------------------------------- work on several threads

// Calls `function(begin, end)` on parts of [0, items), each of about `enough` units of work; an item has `cost` of them.
// What the parts are must not change a result: they depend on the number of threads.
template <class F>
void in_parallel(const xrt_call *call, int64_t items, int64_t cost, F function) {
  constexpr int64_t enough = int64_t{1} << 15;  // some ten microseconds: handing it to a thread costs one or two
  if (items <= 0) return;
  const int64_t grain = cost >= enough ? 1 : enough / (cost < 1 ? 1 : cost);
  if (items <= grain || call->threads <= 1) return function(int64_t{0}, items);
  call->parallel(
      call, items, grain, [](void *f, int64_t begin, int64_t end) { (*static_cast<F *>(f))(begin, end); }, &function);
}

// The same for a function that may run out of memory; what it throws makes the call fail.
template <class F>
int32_t each_part(const xrt_call *call, int64_t items, int64_t cost, xrt_text why, F function) {
  std::atomic<bool> failed{false};
  in_parallel(call, items, cost, [&](int64_t begin, int64_t end) {
    try {
      function(begin, end);
    } catch (const std::exception &) {
      failed = true;
    }
  });
  return failed ? fail(why, "there is not enough memory") : static_cast<int32_t>(XRT_OK);
}

}  // namespace xrt

#endif
