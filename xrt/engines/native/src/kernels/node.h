// Helpers for kernels: read nodes and tensors, report errors, and divide work between threads.
#pragma once

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

// Returns the elements of a constant int64 or int32 tensor.
std::vector<int64_t> integers_of(const xrt_tensor &tensor);

// Normalizes an axis, which may be negative; returns -1 if it is out of range.
inline int64_t axis_of(int64_t axis, int64_t rank) {
  const int64_t positive = axis < 0 ? axis + rank : axis;
  return positive < rank ? positive : -1;
}

// An axis to iterate over; `step` is the distance between its elements in the tensor, in elements.
struct Axis {
  int64_t extent, step;
};
int64_t count_indices(const std::vector<Axis> &axes);
// Converts an index over all axes, in row-major order, to an offset in the tensor.
int64_t offset_of(const std::vector<Axis> &axes, int64_t index);

// ---------------------------------------------------------------- attributes

const xrt_attribute *find(const xrt_node &node, const char *name);
int64_t int_of(const xrt_node &node, const char *name, int64_t fallback);
double float_of(const xrt_node &node, const char *name, double fallback);
std::string string_of(const xrt_node &node, const char *name, const char *fallback);
std::vector<int64_t> ints_of(const xrt_node &node, const char *name);
std::vector<double> floats_of(const xrt_node &node, const char *name);
std::vector<std::string> strings_of(const xrt_node &node, const char *name);

// ---------------------------------------------------------------- results of functions

int32_t report(int32_t status, xrt_text why, const std::string &text);
inline int32_t refuse(xrt_text why, const std::string &text) { return report(XRT_REFUSED, why, text); }
inline int32_t fail(xrt_text why, const std::string &text) { return report(XRT_FAILED, why, text); }

// Returns XRT_OK if the first input has one of these types, else refuses the node.
int32_t check_first_input(const xrt_node &node, std::initializer_list<xrt_dtype> dtypes, xrt_text why);

void set_output(xrt_output &output, xrt_dtype dtype, const Shape &shape);

// Calls a function that returns a status. An exception becomes XRT_FAILED with its message.
template <class F>
int32_t catch_errors(xrt_text why, F function) {
  try {
    return function();
  } catch (const std::exception &error) {
    return fail(why, error.what());
  } catch (...) {
    return fail(why, "an unknown exception");
  }
}

// ---------------------------------------------------------------- parallel work

// Calls `function(begin, end)` for ranges of [0, items). `cost` is the work per item; 2^15 units take about ten microseconds.
// The results must not depend on the division into ranges, because that depends on the number of threads.
template <class F>
void in_parallel(const xrt_call *call, int64_t items, int64_t cost, F function) {
  constexpr int64_t min_cost = int64_t{1} << 15;  // per range: passing it to a thread takes one or two microseconds
  if (items <= 0) return;
  const int64_t grain = cost >= min_cost ? 1 : min_cost / (cost < 1 ? 1 : cost);
  if (items <= grain || call->threads <= 1) return function(int64_t{0}, items);
  call->parallel(
      call, items, grain, [](void *f, int64_t begin, int64_t end) { (*static_cast<F *>(f))(begin, end); }, &function);
}

// Like `in_parallel`, for a function that may throw std::bad_alloc, which becomes XRT_FAILED.
template <class F>
int32_t run_in_parallel(const xrt_call *call, int64_t items, int64_t cost, xrt_text why, F function) {
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
