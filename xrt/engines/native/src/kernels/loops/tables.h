// Declares the loops of one instruction set for the table in reduction.cc. loops.h describes them.
#pragma once

#include "../loops.h"

namespace xrt {
namespace XRT_ISA {

void softmax(const float *x, float *y, int64_t n);
void log_softmax(const float *x, float *y, int64_t n);
void softmax_columns(const float *x, float *y, int64_t n, int64_t pitch, int64_t width);
void log_softmax_columns(const float *x, float *y, int64_t n, int64_t pitch, int64_t width);
double sum_of_exponentials(const float *x, int64_t n, float top);
Moments moments(const float *x, int64_t n, float epsilon);
float inverse_root_mean_square(const float *x, int64_t n, float epsilon);
void normalize(const float *x, float *y, int64_t n, Moments moments, const float *scale, const float *bias);
void normalize_evenly(const float *x, float *y, int64_t n, Moments moments, float scale, float bias);
void scale_and_shift(const float *x, float *y, int64_t n, float factor, float shift);
void window_max(const float *x, float *y, int64_t n, Taps taps);
void window_sum(const float *x, float *y, int64_t n, Taps taps);
void window_weighted(const float *x, float *y, int64_t n, Taps taps, float start);
void split(const float *x, float *even, float *odd, int64_t pairs);

}  // namespace XRT_ISA
}  // namespace xrt
