// Loops of pools and convolutions: each output combines the elements at fixed offsets from its index.
#include "functions.h"
#include "tables.h"

namespace xrt {
namespace XRT_ISA {
namespace {

// Registers of outputs per iteration: independent sums, so that an addition need not wait for the previous one.
constexpr int kRegistersAtOnce = 4;

// Computes `count` registers of outputs and stores the first `wanted` elements.
template <int count, class F>
inline void compute_outputs(const float *x, float *y, int64_t wanted, VecF start, Taps taps, F combine) {
  VecF totals[count];
  for (VecF &total : totals) total = start;
  for (int64_t t = 0; t < taps.count; ++t) {
    const float *from = x + taps.offsets[t];
    for (int k = 0; k < count; ++k) totals[k] = combine(totals[k], load<VecF>(from + k * kLanes<float>), t);
  }
  for (int k = 0; k < count; ++k) {
    const int64_t left = wanted - k * kLanes<float>;
    if (left >= kLanes<float>) {
      store(y + k * kLanes<float>, totals[k]);
    } else if (left > 0) {
      store_some(y + k * kLanes<float>, totals[k], left);
    }
  }
}

template <class F>
inline void slide(const float *x, float *y, int64_t n, VecF start, Taps taps, F combine) {
  constexpr int64_t many = kRegistersAtOnce * kLanes<float>;
  int64_t i = 0;
  for (; i + many <= n; i += many) compute_outputs<kRegistersAtOnce>(x + i, y + i, many, start, taps, combine);
  for (; i < n; i += kLanes<float>) compute_outputs<1>(x + i, y + i, n - i, start, taps, combine);
}

}  // namespace

void window_max(const float *x, float *y, int64_t n, Taps taps) {
  slide(x, y, n, splat(-kInf), taps, [](VecF total, VecF v, int64_t) { return greater<float>(v, total); });
}

void window_sum(const float *x, float *y, int64_t n, Taps taps) {
  slide(x, y, n, VecF{}, taps, [](VecF total, VecF v, int64_t) { return total + v; });
}

void window_weighted(const float *x, float *y, int64_t n, Taps taps, float start) {
  const float *weights = taps.weights;
  slide(x, y, n, splat(start), taps, [=](VecF total, VecF v, int64_t t) { return total + v * weights[t]; });
}

void split(const float *x, float *even, float *odd, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
}

}  // namespace XRT_ISA
}  // namespace xrt
