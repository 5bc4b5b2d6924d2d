// Softmax and normalization of a row, and softmax of several columns at once.
#include "../loops.h"
#include "rows.h"
#include "tables.h"

namespace xrt {
namespace XRT_ISA {

// ---------------------------------------------------------------- softmax

void softmax(const float *x, float *y, int64_t n) {
  const float top = max_row(x, n);
  const double total = sum_row(x, n, -kInf, [&](int64_t i, VecF v, int64_t count) {
    const VecF power = exp(v - top);
    put(y + i, power, count);
    return power;
  });
  const float inverse = static_cast<float>(1.0 / total);
  map_row(y, y, n, [&](VecF v) { return v * inverse; });
}

double sum_of_exponentials(const float *x, int64_t n, float top) {
  return sum_row(x, n, -kInf, [&](int64_t, VecF v, int64_t) { return exp(v - top); });
}

void log_softmax(const float *x, float *y, int64_t n) {
  const float top = max_row(x, n);
  const float sum = static_cast<float>(sum_of_exponentials(x, n, top));
  const float log_sum = log(splat(sum))[0];
  map_row(x, y, n, [&](VecF v) { return (v - top) - log_sum; });
}

namespace {

// Up to as many columns as a register has elements; `count` is their number.
struct Columns {
  const float *x;
  int64_t n, pitch, count;

  VecF at(int64_t row) const {
    const float *from = x + row * pitch;
    return count == kLanes<float> ? load<VecF>(from) : load_some(from, count);
  }
  VecF top() const {
    VecF top = splat(-kInf);
    for (int64_t row = 0; row < n; ++row) top = greater<float>(at(row), top);
    return top;
  }
};

// Calls f(columns, address of their output) for all columns, a register at a time.
template <class F>
void each_column(const float *x, float *y, int64_t n, int64_t pitch, int64_t width, F f) {
  for (int64_t j = 0; j < width; j += kLanes<float>) {
    const int64_t left = width - j;
    f(Columns{x + j, n, pitch, left < kLanes<float> ? left : kLanes<float>}, y + j);
  }
}

}  // namespace

void softmax_columns(const float *x, float *y, int64_t n, int64_t pitch, int64_t width) {
  each_column(x, y, n, pitch, width, [](const Columns &columns, float *to) {
    const VecF top = columns.top();
    VecF sum = {};
    for (int64_t row = 0; row < columns.n; ++row) {
      const VecF power = exp(columns.at(row) - top);
      put(to + row * columns.pitch, power, columns.count);
      sum = sum + power;
    }
    const VecF inverse = 1.0F / sum;
    const Columns powers{to, columns.n, columns.pitch, columns.count};
    for (int64_t row = 0; row < powers.n; ++row) put(to + row * powers.pitch, powers.at(row) * inverse, powers.count);
  });
}

void log_softmax_columns(const float *x, float *y, int64_t n, int64_t pitch, int64_t width) {
  each_column(x, y, n, pitch, width, [](const Columns &columns, float *to) {
    const VecF top = columns.top();
    VecF sum = {};
    for (int64_t row = 0; row < columns.n; ++row) sum = sum + exp(columns.at(row) - top);
    const VecF log_sum = log(sum);
    for (int64_t row = 0; row < columns.n; ++row)
      put(to + row * columns.pitch, (columns.at(row) - top) - log_sum, columns.count);
  });
}

// ---------------------------------------------------------------- normalizations

Moments moments(const float *x, int64_t n, float epsilon) {
  const double count = static_cast<double>(n);
  const float mean = static_cast<float>(sum_row(x, n, 0.0F, [](int64_t, VecF v, int64_t) { return v; }) / count);
  const double squares = sum_row(x, n, mean, [&](int64_t, VecF v, int64_t) { return (v - mean) * (v - mean); });
  const float variance = static_cast<float>(squares / count);
  return {mean, 1.0F / __builtin_sqrtf(variance + epsilon)};
}

float inverse_root_mean_square(const float *x, int64_t n, float epsilon) {
  const double squares = sum_row(x, n, 0.0F, [](int64_t, VecF v, int64_t) { return v * v; });
  return 1.0F / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(n)) + epsilon);
}

void normalize(const float *x, float *y, int64_t n, Moments moments, const float *scale, const float *bias) {
  each_vector(x, n, 0.0F, [&](int64_t i, VecF v, int64_t count) {
    const bool whole = count == kLanes<float>;
    VecF result = (v - moments.mean) * moments.inverse * (whole ? load<VecF>(scale + i) : load_some(scale + i, count));
    if (bias) result = result + (whole ? load<VecF>(bias + i) : load_some(bias + i, count));
    put(y + i, result, count);
  });
}

void normalize_evenly(const float *x, float *y, int64_t n, Moments moments, float scale, float bias) {
  map_row(x, y, n, [&](VecF v) { return (v - moments.mean) * moments.inverse * scale + bias; });
}

void scale_and_shift(const float *x, float *y, int64_t n, float factor, float shift) {
  map_row(x, y, n, [&](VecF v) { return v * factor + shift; });
}

}  // namespace XRT_ISA
}  // namespace xrt
