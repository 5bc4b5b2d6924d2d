// Reductions of rows and columns of each type, and the table of all loops.
#include "tables.h"

#include <limits>

namespace xrt {
namespace XRT_ISA {
namespace {

// The number of totals per row. It is the same for all instruction sets, so that they return the same result.
constexpr int kTotals = 16;

template <class A>
constexpr A lowest() {
  return std::numeric_limits<A>::has_infinity ? -std::numeric_limits<A>::infinity() : std::numeric_limits<A>::lowest();
}
template <class A>
constexpr A highest() {
  return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity() : std::numeric_limits<A>::max();
}

// Integers are added and multiplied as unsigned numbers, because they wrap around on overflow.
inline double plus(double a, double b) { return a + b; }
inline int64_t plus(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
inline double times(double a, double b) { return a * b; }
inline int64_t times(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }
inline double magnitude(double a) { return __builtin_fabs(a); }
inline int64_t magnitude(int64_t a) { return a < 0 ? static_cast<int64_t>(-static_cast<uint64_t>(a)) : a; }

// A fold: its initial total, the conversion of an element, and the combination of two totals.
template <Fold fold, class A>
struct Folding {
  static constexpr A start() {
    return fold == Fold::product ? A{1} : fold == Fold::max ? lowest<A>() : fold == Fold::min ? highest<A>() : A{0};
  }
  static A convert(A x) { return fold == Fold::sum_abs ? magnitude(x) : fold == Fold::sum_square ? times(x, x) : x; }
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
    for (int k = 0; k < kTotals; ++k) totals[k] = F::combine(totals[k], F::convert(static_cast<A>(x[i + k])));
  for (; i < n; ++i) totals[i % kTotals] = F::combine(totals[i % kTotals], F::convert(static_cast<A>(x[i])));
  for (int width = kTotals / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) totals[k] = F::combine(totals[k], totals[k + width]);
  return totals[0];
}

template <Fold fold, class T, class A>
void columns(const T *x, int64_t n, int64_t pitch, int64_t width, A *totals) {
  using F = Folding<fold, A>;
  // Eight rows per iteration, because loading and storing the totals is most of the work.
  for (; n >= 8; n -= 8, x += 8 * pitch)
    for (int64_t j = 0; j < width; ++j) {
      const auto element = [&](int64_t row) { return F::convert(static_cast<A>(x[row * pitch + j])); };
      const A low = F::combine(F::combine(element(0), element(1)), F::combine(element(2), element(3)));
      const A high = F::combine(F::combine(element(4), element(5)), F::combine(element(6), element(7)));
      totals[j] = F::combine(totals[j], F::combine(low, high));
    }
  for (; n > 0; --n, x += pitch)
    for (int64_t j = 0; j < width; ++j) totals[j] = F::combine(totals[j], F::convert(static_cast<A>(x[j])));
}

}  // namespace

template <class T, class A>
constexpr Reducers<T, A> reducers() {
  return {{row<Fold::sum, T, A>, row<Fold::sum_abs, T, A>, row<Fold::sum_square, T, A>, row<Fold::product, T, A>,
           row<Fold::max, T, A>, row<Fold::min, T, A>},
          {columns<Fold::sum, T, A>, columns<Fold::sum_abs, T, A>, columns<Fold::sum_square, T, A>,
           columns<Fold::product, T, A>, columns<Fold::max, T, A>, columns<Fold::min, T, A>}};
}

// ---------------------------------------------------------------- the table of loops

extern const Loops loops;
const Loops loops = {
    softmax,
    log_softmax,
    moments,
    inverse_root_mean_square,
    normalize,
    normalize_evenly,
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
