// Mathematical functions of vectors of float32. The error is a few units in the last place. The results for infinities, NaN,
// signed zeroes and denormals are those of IEEE 754 and the C library.
//
// Methods: range reduction in two parts (Cody and Waite, "Software Manual for the Elementary Functions", 1980), polynomials
// through the Chebyshev points of the reduced range (computed with 40 digits, rounded to float32), and scaling by powers of two
// in two steps, so that denormals are rounded once. `log1p` corrects the rounding of 1 + u (Kahan, HP-15C Advanced Functions
// Handbook, 1982).
#pragma once

#include <limits>

#include "vec.h"

namespace xrt {
namespace XRT_ISA {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---------------------------------------------------------------- sign and rounding

template <class T>
struct Parts;  // `sign`: the sign bit. `whole`: from this number on, all numbers are integers.

template <>
struct Parts<float> {
  static constexpr uint32_t sign = 0x80000000U;
  static constexpr float whole = 8388608.0F;
};
template <>
struct Parts<double> {
  static constexpr uint64_t sign = 0x8000000000000000U;
  static constexpr double whole = 4503599627370496.0;
};

template <class T>
inline Vec<T> absolute(Vec<T> x) {
  using B = decltype(Parts<T>::sign + 0);
  return bits<Vec<T>>(bits<Vec<B>>(x) & ~Parts<T>::sign);
}

template <class T>
inline Vec<T> with_sign_of(Vec<T> magnitude, Vec<T> x) {
  using B = decltype(Parts<T>::sign + 0);
  return bits<Vec<T>>((bits<Vec<B>>(magnitude) & ~Parts<T>::sign) | (bits<Vec<B>>(x) & Parts<T>::sign));
}

// Rounds to the nearest integer, ties to even. A float32 of 2^23 or more has no fraction bits, so adding 2^23 rounds.
template <class T>
inline Vec<T> nearest(Vec<T> x) {
  const Vec<T> size = absolute<T>(x), whole = splat<T>(Parts<T>::whole);
  return select(size < whole, with_sign_of<T>((size + whole) - whole, x), x);
}

template <class T>
inline Vec<T> floored(Vec<T> x) {
  const Vec<T> near = nearest<T>(x);
  return with_sign_of<T>(select(near > x, near - 1, near), x);
}

template <class T>
inline Vec<T> ceiled(Vec<T> x) {
  const Vec<T> near = nearest<T>(x);
  return with_sign_of<T>(select(near < x, near + 1, near), x);
}

inline VecF root(VecF x) {
#if defined(__AVX512F__)
  return bits<VecF>(_mm512_maskz_sqrt_ps(0xFFFF, bits<__m512>(x)));
#elif defined(__AVX2__)
  return bits<VecF>(_mm256_sqrt_ps(bits<__m256>(x)));
#elif defined(__x86_64__)
  return bits<VecF>(_mm_sqrt_ps(bits<__m128>(x)));
#else
  for (int i = 0; i < kLanes<float>; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

inline VecD root(VecD x) {
#if defined(__AVX512F__)
  return bits<VecD>(_mm512_maskz_sqrt_pd(0xFF, bits<__m512d>(x)));
#elif defined(__AVX2__)
  return bits<VecD>(_mm256_sqrt_pd(bits<__m256d>(x)));
#elif defined(__x86_64__)
  return bits<VecD>(_mm_sqrt_pd(bits<__m128d>(x)));
#else
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

// a > b ? a : b and a < b ? a : b, so the result is b if one of them is NaN. They are single instructions, which compilers do not
// always select.
template <class T>
inline Vec<T> upper(Vec<T> a, Vec<T> b) {
  return select(a > b, a, b);
}
template <class T>
inline Vec<T> under(Vec<T> a, Vec<T> b) {
  return select(a < b, a, b);
}
#if defined(__AVX512F__)
template <>
inline VecF upper<float>(VecF a, VecF b) {
  return bits<VecF>(_mm512_maskz_max_ps(0xFFFF, bits<__m512>(a), bits<__m512>(b)));
}
template <>
inline VecF under<float>(VecF a, VecF b) {
  return bits<VecF>(_mm512_maskz_min_ps(0xFFFF, bits<__m512>(a), bits<__m512>(b)));
}
#elif defined(__AVX2__)
template <>
inline VecF upper<float>(VecF a, VecF b) {
  return bits<VecF>(_mm256_max_ps(bits<__m256>(a), bits<__m256>(b)));
}
template <>
inline VecF under<float>(VecF a, VecF b) {
  return bits<VecF>(_mm256_min_ps(bits<__m256>(a), bits<__m256>(b)));
}
#endif

// The maximum and the minimum; NaN if an operand is NaN. The compiler can hoist the test of b out of a loop if b is constant.
template <class T>
inline Vec<T> greater(Vec<T> a, Vec<T> b) {
  return select(b != b, b, upper<T>(b, a));
}

template <class T>
inline Vec<T> lesser(Vec<T> a, Vec<T> b) {
  return select(b != b, b, under<T>(b, a));
}

// c[0] + c[1] x + ... + c[N - 1] x^(N - 1)
template <class V, class T, int N>
inline V polynomial(V x, const T (&c)[N]) {
  V sum = V{} + c[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

// ---------------------------------------------------------------- exponentials

// The exponent bits are computed as unsigned numbers, because those of a NaN may overflow.

// 2^n; n from -126 to 127, modulo 2^32.
inline VecF power_of_two(VecU n) { return bits<VecF>((n + 127U) << 23); }

struct Reduced {
  VecF n;
  VecU whole;  // n, as an integer modulo 2^32
  VecF tail;   // exp(r) - 1, where x = n ln 2 + r
};

// For x from -104 to 89.
inline Reduced reduce_exp(VecF x) {
  constexpr float c[] = {0.5F, 0.166666672F, 0.0416664667F, 0.00833331048F, 0.00139336498F, 0.000198909911F};
  const VecF shift = splat(12582912.0F);  // 1.5 * 2^23: the sum's last bits are the integer
  const VecF shifted = x * 1.44269504F + shift;
  const VecF n = shifted - shift;
  VecF r = x - n * 0.693359375F;
  r = r + n * 2.12194440e-4F;
  return {n, bits<VecU>(shifted) - bits<VecU>(shift), r + r * r * polynomial(r, c)};
}

// Clamps x to the bounds; NaN stays NaN.
inline VecF clamped(VecF x, float low, float high) { return under<float>(splat(high), upper<float>(splat(low), x)); }

// Computes x 2^n, rounded once.
inline VecF scaled(VecF x, const Reduced &part) {
#if defined(__AVX512F__)
  return bits<VecF>(_mm512_maskz_scalef_ps(0xFFFF, bits<__m512>(x), bits<__m512>(part.n)));
#else
  const VecU half = bits<VecU>(bits<VecI>(part.whole) >> 1);
  return x * power_of_two(half) * power_of_two(part.whole - half);
#endif
}

// If x is NaN the tail is NaN, and so is the result, here and below.
inline VecF exp(VecF x) {
  const Reduced part = reduce_exp(clamped(x, -104.0F, 89.0F));
  return scaled(1.0F + part.tail, part);
}

// exp(x) - 1, also accurate near zero.
inline VecF expm1(VecF x) {
  const Reduced part = reduce_exp(clamped(x, -50.0F, 89.0F));
  const VecF scale = power_of_two(part.whole - 1U);  // 2^(n - 1), because 2^128 is not a float32
  const VecF result = 2.0F * (scale * part.tail + (scale - 0.5F));
  return select(absolute<float>(x) < 1e-9F, x, result);
}

inline VecF sigmoid(VecF x) { return 1.0F / (1.0F + exp(-x)); }

inline VecF tanh(VecF x) {
  constexpr float c[] = {-0.333333343F, 0.133333042F, -0.0539592579F, 0.0217689183F, -0.00834394526F, 0.00229274482F};
  const VecF size = absolute<float>(x), square = x * x;
  const VecF near = x + x * square * polynomial(square, c);
  const VecF far = 1.0F - 2.0F / (exp(2.0F * size) + 1.0F);
  return with_sign_of<float>(select(size < 0.625F, near, far), x);
}

// For |x| < 1 a polynomial of x; otherwise 1 - exp(-x^2) p(1 / (|x| + 2)) with a polynomial p.
inline VecF erf(VecF x) {
  constexpr float a[] = {1.12837911F,      -0.37612626F,    0.112835944F,   -0.0268542115F,
                         0.00518908724F,   -0.00080168643F, 7.87587487e-05F};
  constexpr float b[] = {-0.000164236379F, 0.570123255F, 1.03500545F,   2.80824256F,
                         -1.76333261F,     18.2804852F,  -30.4976177F, 15.4691114F};
  const VecF size = clamped(absolute<float>(x), 0.0F, 4.0F);
  const VecF near = x * polynomial(x * x, a);
  const VecF far = 1.0F - exp(-size * size) * polynomial(1.0F / (size + 2.0F), b);
  return select(size < 1.0F, near, with_sign_of<float>(select(x != x, x, far), x));
}

// ---------------------------------------------------------------- logarithms

inline VecF log(VecF x) {
  constexpr float c[] = {0.333333343F,  -0.249999896F, 0.200000107F, -0.166680008F, 0.142865241F,
                         -0.124507435F, 0.110377833F,  -0.10646192F, 0.105308644F,  -0.0620150007F};
  constexpr uint32_t root_half = 0x3F3504F3;  // the bits of sqrt(1/2)
  const auto tiny = x < std::numeric_limits<float>::min();
  const VecU raw = bits<VecU>(select(tiny, x * Parts<float>::whole, x));
  const VecI exponent = bits<VecI>(raw - root_half) >> 23;
  const VecF f = bits<VecF>(raw - (bits<VecU>(exponent) << 23)) - 1.0F;
  const VecF e = __builtin_convertvector(exponent, VecF) - select(tiny, splat(23.0F), VecF{});
  const VecF square = f * f;
  VecF tail = f * square * polynomial(f, c);
  tail = tail - e * 2.12194440e-4F;
  tail = tail - 0.5F * square;
  VecF result = (f + tail) + e * 0.693359375F;
  result = select(x == kInf, x, result);
  result = select(x == 0.0F, splat(-kInf), result);
  return select(x < 0.0F, splat(kNan), select(x != x, x, result));
}

// log(1 + u) for u in [0, 1].
inline VecF log1p(VecF u) {
  const VecF w = 1.0F + u;
  return log(w) + (u - (w - 1.0F)) / w;
}

// log(1 + exp(x)), as logaddexp(x, 0) computes it.
inline VecF softplus(VecF x) {
  const VecF result = select(x > 0.0F, x, VecF{}) + log1p(exp(-absolute<float>(x)));
  return select(x != x, x, result);
}

// ---------------------------------------------------------------- powers, in float64 for the precision of y log2(x)

// log2 of normal positive numbers, by the series of the inverse hyperbolic tangent.
inline VecD log2(VecD x) {
  constexpr double c[] = {1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17};
  constexpr uint64_t root_half = 0x3FE6A09E667F3BCD;
  const auto raw = bits<Vec<uint64_t>>(x);
  const VecL exponent = bits<VecL>(raw - root_half) >> 52;
  const VecD m = bits<VecD>(raw - (bits<Vec<uint64_t>>(exponent) << 52));
  const VecD s = (m - 1.0) / (m + 1.0);
  return __builtin_convertvector(exponent, VecD) + 2.8853900817779268 * s * polynomial(s * s, c);
}

// 2^x for x from -1000 to 1000, by the series of the exponential.
inline VecD exp2(VecD x) {
  constexpr double c[] = {1.0,
                          0.69314718055994531,
                          0.24022650695910072,
                          0.055504108664821580,
                          0.0096181291076284772,
                          0.0013333558146428443,
                          0.00015403530393381610,
                          1.5252733804059841e-05,
                          1.3215486790144309e-06,
                          1.0178086009239699e-07,
                          7.0549116208011233e-09,
                          4.4455382718708116e-10};
  const VecD shift = splat(6755399441055744.0);  // 1.5 * 2^52
  const VecD shifted = x + shift;
  const auto n = bits<Vec<uint64_t>>(shifted) - bits<Vec<uint64_t>>(shift);
  return polynomial(x - (shifted - shift), c) * bits<VecD>((n + 1023U) << 52);
}

// |x|^y for finite x and y, x not zero.
inline VecD power_of_size(VecD size, VecD y) {
  VecD product = y * log2(size);
  product = select(product > 1000.0, splat(1000.0), product);
  return exp2(select(product < -1000.0, splat(-1000.0), product));
}

inline VecF power_of_size(VecF size, VecF y) {
  const Pair<double> base = widen<double, float>(size), exponent = widen<double, float>(y);
  return narrow<float, double>(power_of_size(base.low, exponent.low), power_of_size(base.high, exponent.high));
}

// x^y with the special cases of C's pow.
inline VecF pow(VecF x, VecF y) {
  const VecF size = absolute<float>(x);
  const auto whole = nearest<float>(y) == y;
  const auto odd = whole & (nearest<float>(y * 0.5F) != y * 0.5F);
  const auto endless = absolute<float>(y) == kInf;
  VecF result = power_of_size(size, select(endless, VecF{}, y));
  const VecF at_zero = select(y > 0.0F, VecF{}, splat(kInf)), at_inf = select(y > 0.0F, splat(kInf), VecF{});
  result = select(endless, select(size == 1.0F, splat(1.0F), select(size > 1.0F, at_inf, at_zero)), result);
  result = select(size == 0.0F, at_zero, select(size == kInf, at_inf, result));
  const auto negative = bits<VecI>(x) < 0;
  result = select(negative & odd, -result, result);
  result = select((x < 0.0F) & (size != kInf) & (whole == 0), splat(kNan), result);
  result = select((x != x) | (y != y), x + y, result);
  return select((y == 0.0F) | (x == 1.0F), splat(1.0F), result);
}

// ---------------------------------------------------------------- narrow floats, as bits in the lower half of 32-bit elements

inline VecF float_of_half(VecU h) {
  constexpr uint32_t bias = (127U - 15U) << 23;
  const VecU sign = (h & 0x8000U) << 16, size = (h & 0x7FFFU) << 13;
  const VecU normal = size + bias;
  const VecU special = normal + bias;  // infinity and NaN have the largest exponent in both types
  const VecF small = bits<VecF>(size + (bias + (1U << 23))) - bits<VecF>(splat(bias + (1U << 23)));
  VecU result = select(size >= (31U << 23), special, normal);
  result = select(size < (1U << 23), bits<VecU>(small), result);
  return bits<VecF>(result | sign);
}

// Rounds to the nearest number, ties to even.
inline VecU half_of_float(VecF x) {
  constexpr uint32_t bias = (127U - 15U) << 23;
  const VecU raw = bits<VecU>(x), sign = (raw >> 16) & 0x8000U, size = raw & 0x7FFFFFFFU;
  const VecU normal = (size - bias + 0xFFFU + ((size >> 13) & 1U)) >> 13;
  const VecU small = bits<VecU>(bits<VecF>(size) + 0.5F) - bits<uint32_t>(0.5F);  // the last place of 0.5 is the smallest float16
  VecU result = select(size < bias + (1U << 23), small, normal);
  result = select(size >= 0x477FF000U, splat(0x7C00U), result);
  result = select(size > 0x7F800000U, 0x7E00U | ((size >> 13) & 0x3FFU), result);
  return result | sign;
}

inline VecF float_of_bfloat(VecU h) { return bits<VecF>(h << 16); }

inline VecU bfloat_of_float(VecF x) {
  const VecU raw = bits<VecU>(x);
  return select(x != x, (raw >> 16) | 0x40U, (raw + 0x7FFFU + ((raw >> 16) & 1U)) >> 16);
}

}  // namespace XRT_ISA
}  // namespace xrt
