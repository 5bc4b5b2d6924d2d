// Loops over rows of float32: reading them vector by vector, and adding up.
#ifndef XRT_KERNELS_LOOPS_ROWS_H
#define XRT_KERNELS_LOOPS_ROWS_H

#include "functions.h"

namespace xrt {
namespace XRT_ISA {

// Calls f(place, vector) for every vector of a row; the last one is filled up with `pad` and stored in part.
template <class F>
inline void each_vector(const float *x, int64_t n, float pad, F f) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, load<VecF>(x + i), lanes);
  if (i < n) {
    VecF rest = splat(pad);
    std::memcpy(&rest, x + i, static_cast<size_t>(n - i) * sizeof(float));
    f(i, rest, n - i);
  }
}

inline void put(float *y, VecF v, int64_t count) {
  if (count == kLanes<float>) {
    store(y, v);
  } else {
    store_some(y, v, count);
  }
}

// y = f(x) for a row.
template <class F>
inline void map_row(const float *x, float *y, int64_t n, F f) {
  each_vector(x, n, 0.0F, [&](int64_t i, VecF v, int64_t count) { put(y + i, f(v), count); });
}

// The sum of f(place, vector, count) over a row. Vectors are added in float32 within blocks, blocks in float64: the error
// does not grow with the row, and the order depends on nothing but its length. The pad must give zero.
template <class F>
inline double sum_row(const float *x, int64_t n, float pad, F f) {
  constexpr int64_t block = 64 * kLanes<float>;
  double total = 0;
  for (int64_t start = 0; start < n; start += block) {
    const int64_t length = n - start < block ? n - start : block;
    VecF sums[2] = {};
    int turn = 0;
    each_vector(x + start, length, pad, [&](int64_t i, VecF v, int64_t count) {
      sums[turn] = sums[turn] + f(start + i, v, count);
      turn ^= 1;
    });
    total += static_cast<double>(fold<float>(sums[0] + sums[1], [](float a, float b) { return a + b; }));
  }
  return total;
}

// The greatest of a row, NaN where one is among it.
inline float max_row(const float *x, int64_t n) {
  VecF top = splat(-kInf);
  each_vector(x, n, -kInf, [&](int64_t, VecF v, int64_t) { top = greater<float>(v, top); });
  return fold<float>(top, [](float a, float b) { return a > b || a != a ? a : b; });
}

}  // namespace XRT_ISA
}  // namespace xrt

#endif
