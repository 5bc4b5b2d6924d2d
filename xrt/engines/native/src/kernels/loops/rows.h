// Loops over rows of float32: map, sum and maximum.
#pragma once

#include "functions.h"

namespace xrt {
namespace XRT_ISA {

// Calls f(index, vector, count) for each vector of a row. The last vector may have fewer elements (`count`); the others are
// `pad`.
template <class F>
inline void each_vector(const float *x, int64_t n, float pad, F f) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, load<VecF>(x + i), lanes);
  if (i < n) {
    VecF last = splat(pad);
    std::memcpy(&last, x + i, static_cast<size_t>(n - i) * sizeof(float));
    f(i, last, n - i);
  }
}

// Stores the first `count` elements of a vector.
inline void put(float *y, VecF v, int64_t count) {
  if (count == kLanes<float>) {
    store(y, v);
  } else {
    store_some(y, v, count);
  }
}

// Computes y = f(x) for a row.
template <class F>
inline void map_row(const float *x, float *y, int64_t n, F f) {
  each_vector(x, n, 0.0F, [&](int64_t i, VecF v, int64_t count) { put(y + i, f(v), count); });
}

// Four independent totals, so that an addition need not wait for the previous one. `step(total, index, vector, count)` returns
// the next total.
struct Totals {
  VecF total[4];

  template <class F>
  void add(const float *x, int64_t index, int64_t n, float pad, F step) {
    constexpr int64_t lanes = kLanes<float>;
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes)
      for (int k = 0; k < 4; ++k) total[k] = step(total[k], index + i + k * lanes, load<VecF>(x + i + k * lanes), lanes);
    const auto add_last = [&](int64_t at, VecF v, int64_t count) { total[0] = step(total[0], index + i + at, v, count); };
    each_vector(x + i, n - i, pad, add_last);
  }
};

// Returns the sum of f(index, vector, count) over a row. Vectors are added in float32 within blocks, and blocks in float64, so
// that the error does not grow with the row. The order depends only on the length. f must return 0 for the pad.
template <class F>
inline double sum_row(const float *x, int64_t n, float pad, F f) {
  constexpr int64_t block = 128 * kLanes<float>;
  const auto plus = [&](VecF sum, int64_t index, VecF v, int64_t count) { return sum + f(index, v, count); };
  double total = 0;
  for (int64_t start = 0; start < n; start += block) {
    Totals sums = {};
    sums.add(x + start, start, n - start < block ? n - start : block, pad, plus);
    const VecF sum = (sums.total[0] + sums.total[1]) + (sums.total[2] + sums.total[3]);
    total += static_cast<double>(fold<float>(sum, [](float a, float b) { return a + b; }));
  }
  return total;
}

// Returns the maximum of a row, or NaN if an element is NaN.
inline float max_row(const float *x, int64_t n) {
  const auto maximum = [](VecF top, int64_t, VecF v, int64_t) { return greater<float>(v, top); };
  const VecF least = splat(-kInf);
  Totals tops = {{least, least, least, least}};
  tops.add(x, 0, n, -kInf, maximum);
  const VecF top = greater<float>(greater<float>(tops.total[0], tops.total[1]), greater<float>(tops.total[2], tops.total[3]));
  return fold<float>(top, [](float a, float b) { return a > b || a != a ? a : b; });
}

}  // namespace XRT_ISA
}  // namespace xrt
