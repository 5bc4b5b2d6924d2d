// Reductions of rows and columns, of any type.
#include "tables.h"

#include <limits>

namespace xrt {
namespace XRT_ISA {
namespace {

// How many totals a row is spread over: enough for the registers, and a fixed number, so that results are the same.
constexpr int kTotals = 16;

template <class A>
constexpr A lowest() {
  return std::numeric_limits<A>::has_infinity ? -std::numeric_limits<A>::infinity() : std::numeric_limits<A>::lowest();
}
template <class A>
constexpr A highest() {
  return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity() : std::numeric_limits<A>::max();
}

// Integers wrap: they are added and multiplied as unsigned.
inline double plus(double a, double b) { return a + b; }
inline int64_t plus(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
inline double times(double a, double b) { return a * b; }
inline int64_t times(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
inline double size(double a) { return __builtin_fabs(a); }
inline int64_t size(int64_t a) { return a < 0 ? static_cast<int64_t>(-static_cast<uint64_t>(a)) : a; }

// What a fold starts with, what it makes of an element, and how it combines two totals.
template <Fold fold, class A>
struct Folding {
  static constexpr A start() {
    return fold == Fold::product ? A{1} : fold == Fold::max ? lowest<A>() : fold == Fold::min ? highest<A>() : A{0};
  }
  static A of(A x) { return fold == Fold::sum_abs ? size(x) : fold == Fold::sum_square ? times(x, x) : x; }
  static A combine(A a, A b) {
    if constexpr (fold == Fold::max) return (a > b) | (a != a) ? a : b;
    if constexpr (fold == Fold::min) return (a < b) | (a != a) ? a : b;
    if constexpr (fold == Fold::product) return times(a, b);
    return plus(a, b);
  }
};

template <Fold fold, class T, class A>
A row(const T *x, int64_t n) {
  using F = Folding<fold, A>;
  A totals[kTotals];
  for (A &total : totals) total = F::start();
  int64_t i = 0;
  for (; i + kTotals <= n; i += kTotals)
    for (int k = 0; k < kTotals; ++k) totals[k] = F::combine(totals[k], F::of(static_cast<A>(x[i + k])));
  for (; i < n; ++i) totals[i % kTotals] = F::combine(totals[i % kTotals], F::of(static_cast<A>(x[i])));
  for (int width = kTotals / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) totals[k] = F::combine(totals[k], totals[k + width]);
  return totals[0];
}

template <Fold fold, class T, class A>
void columns(const T *x, int64_t n, int64_t pitch, int64_t width, A *totals) {
  using F = Folding<fold, A>;
  // Eight rows at a time: totals come from memory and go there, and that is most of the work.
  for (; n >= 8; n -= 8, x += 8 * pitch)
    for (int64_t j = 0; j < width; ++j) {
      const auto of = [&](int64_t row) { return F::of(static_cast<A>(x[row * pitch + j])); };
      const A low = F::combine(F::combine(of(0), of(1)), F::combine(of(2), of(3)));
      const A high = F::combine(F::combine(of(4), of(5)), F::combine(of(6), of(7)));
      totals[j] = F::combine(totals[j], F::combine(low, high));
    }
  for (; n > 0; --n, x += pitch)
    for (int64_t j = 0; j < width; ++j) totals[j] = F::combine(totals[j], F::of(static_cast<A>(x[j])));
}

}  // namespace

template <class T, class A>
constexpr Reducers<T, A> reducers() {
  return {{row<Fold::sum, T, A>, row<Fold::sum_abs, T, A>, row<Fold::sum_square, T, A>, row<Fold::product, T, A>,
           row<Fold::max, T, A>, row<Fold::min, T, A>},
          {columns<Fold::sum, T, A>, columns<Fold::sum_abs, T, A>, columns<Fold::sum_square, T, A>,
           columns<Fold::product, T, A>, columns<Fold::max, T, A>, columns<Fold::min, T, A>}};
}

// ---------------------------------------------------------------- what this variant offers

extern const Loops loops;
const Loops loops = {
    softmax,
    log_softmax,
    moments,
    inverse_root_mean_square,
    normalise,
    normalise_evenly,
    scale_and_shift,
    sum_of_exponentials,
    softmax_columns,
    log_softmax_columns,
    reducers<float, double>(),
    reducers<double, double>(),
    reducers<int32_t, int64_t>(),
    reducers<int64_t, int64_t>(),
    window_max,
    window_sum,
    window_weighted,
    split,
};

}  // namespace XRT_ISA
}  // namespace xrt
