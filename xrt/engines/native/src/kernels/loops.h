// The inner loops of the kernels, a table of them per variant of the instruction set. All are of float32 unless they say
// otherwise, work on the calling thread, and give the same bits for the same input however a call is cut into parts.
#ifndef XRT_KERNELS_LOOPS_H
#define XRT_KERNELS_LOOPS_H

#include <cstdint>

namespace xrt {

struct Moments {
  float mean, inverse;  // one over the root of variance + epsilon
};

// What a reduction does with its elements, before whatever is done to the total.
enum class Fold : uint8_t { sum, sum_abs, sum_square, product, max, min };
constexpr int kFolds = 6;

// Reductions of one type of elements into a wider total: float and double into double, integers into int64.
template <class T, class Total>
struct Reducers {
  // Of n elements in a row.
  Total (*row[kFolds])(const T *x, int64_t n);
  // Of n rows, `pitch` elements apart: totals[j] is combined with every x[i * pitch + j], j under `width`.
  void (*columns[kFolds])(const T *x, int64_t n, int64_t pitch, int64_t width, Total *totals);
};

// Where a window's elements lie that are combined into one output, relative to the first output's.
struct Taps {
  const int64_t *offsets;
  const float *weights;  // only where they are weighted
  int64_t count;
};

struct Loops {
  // Rows of n elements.
  void (*softmax)(const float *x, float *y, int64_t n);
  void (*log_softmax)(const float *x, float *y, int64_t n);
  Moments (*moments)(const float *x, int64_t n, float epsilon);
  float (*inverse_root_mean_square)(const float *x, int64_t n, float epsilon);
  // (x - mean) * inverse * scale + bias; scale and bias of each element, bias may be NULL.
  void (*normalise)(const float *x, float *y, int64_t n, Moments moments, const float *scale, const float *bias);
  // The same with one scale and bias for all.
  void (*normalise_evenly)(const float *x, float *y, int64_t n, Moments moments, float scale, float bias);
  void (*scale_and_shift)(const float *x, float *y, int64_t n, float factor, float shift);
  // log(sum(exp(x - top))) is what is left of a sum of exponentials: returns the sum.
  double (*sum_of_exponentials)(const float *x, int64_t n, float top);

  // `width` columns of n elements, `pitch` elements apart.
  void (*softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t width);
  void (*log_softmax_columns)(const float *x, float *y, int64_t n, int64_t pitch, int64_t width);

  Reducers<float, double> floats;
  Reducers<double, double> doubles;
  Reducers<int32_t, int64_t> ints;
  Reducers<int64_t, int64_t> longs;

  // y[i] for i under n: the greatest, the sum, and the weighted sum plus a start of x[i + offset] over the taps. May read
  // up to 64 elements beyond the last.
  void (*window_max)(const float *x, float *y, int64_t n, Taps taps);
  void (*window_sum)(const float *x, float *y, int64_t n, Taps taps);
  void (*window_weighted)(const float *x, float *y, int64_t n, Taps taps, float start);
  // Elements by turns: 2 * pairs of them.
  void (*split)(const float *x, float *even, float *odd, int64_t pairs);
};

}  // namespace xrt

#endif
