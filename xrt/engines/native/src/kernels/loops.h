// The inner loops of the kernels: a table of functions for each instruction set. They process float32 unless their parameters
// have another type, run on the calling thread, and return the same bits however the caller divides its work between threads.
#pragma once

#include <cstdint>

namespace xrt {

struct Moments {
  float mean, inverse;  // inverse: 1 / sqrt(variance + epsilon)
};

// How a reduction combines elements to a total.
enum class Fold : uint8_t { sum, sum_abs, sum_square, product, max, min };
constexpr int kFolds = 6;

// Reductions of elements of type T. The type of the total is double for floats and int64 for integers.
template <class T, class Total>
struct Reducers {
  // Reduces n contiguous elements.
  Total (*row[kFolds])(const T *x, int64_t n);
  // Combines totals[j] with x[i * pitch + j], for all i < n and j < width.
  void (*columns[kFolds])(const T *x, int64_t n, int64_t pitch, int64_t width, Total *totals);
};

// The taps of a window: output i combines the elements x[i + offset] for all offsets.
struct Taps {
  const int64_t *offsets;
  const float *weights;  // used by window_weighted only
  int64_t count;
};

struct Loops {
  // Functions of a row of n elements.
  void (*softmax)(const float *x, float *y, int64_t n);
  void (*log_softmax)(const float *x, float *y, int64_t n);
  Moments (*moments)(const float *x, int64_t n, float epsilon);
  float (*inverse_root_mean_square)(const float *x, int64_t n, float epsilon);
  // y[i] = (x[i] - mean) * inverse * scale[i] + bias[i]; `bias` may be NULL.
  void (*normalize)(const float *x, float *y, int64_t n, Moments moments, const float *scale, const float *bias);
  // The same with one scale and one bias for all elements.
  void (*normalize_evenly)(const float *x, float *y, int64_t n, Moments moments, float scale, float bias);
  void (*scale_and_shift)(const float *x, float *y, int64_t n, float factor, float shift);
  // Returns the sum of exp(x[i] - top).
  double (*sum_of_exponentials)(const float *x, int64_t n, float top);

  // Functions of `width` columns of n elements; rows are `pitch` elements apart.
  void (*softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t width);
  void (*log_softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t width);

  Reducers<float, double> floats;
  Reducers<double, double> doubles;
  Reducers<int32_t, int64_t> ints;
  Reducers<int64_t, int64_t> longs;

  // For i < n, y[i] is the maximum, the sum, or `start` plus the weighted sum of x[i + offset] over the taps. They may read up to
  // 64 elements after the last one.
  void (*window_max)(const float *x, float *y, int64_t n, Taps taps);
  void (*window_sum)(const float *x, float *y, int64_t n, Taps taps);
  void (*window_weighted)(const float *x, float *y, int64_t n, Taps taps, float start);
  // Copies the elements of even and of odd index, `pairs` of each.
  void (*split)(const float *x, float *even, float *odd, int64_t pairs);
};

}  // namespace xrt
