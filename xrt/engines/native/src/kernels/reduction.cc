// Reductions over any axes: of float32, float64, int32 and int64.
//
// Axes that lie together are one, so that a shape alternates between axes that are kept and axes that are reduced. Where
// the last is reduced, rows are folded; where it is kept, columns side by side. Long folds are cut into pieces of a fixed
// length whose totals are combined in order: neither the number of threads nor their luck changes a bit.
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "node.h"
#include "table.h"
#include "variants.h"

namespace xrt {
namespace {

enum class Final : uint8_t { none, mean, root, log, log_of_exponentials };

// ---------------------------------------------------------------- the geometry

struct Axis {
  int64_t extent, step;
};

struct State {
  xrt_dtype dtype;
  std::vector<Axis> kept, reduced;  // outermost first, without the last axis
  int64_t row = 1;                  // the extent of the last axis
  bool last_is_reduced = true;
  int64_t count = 1;  // elements that go into one output
};

std::vector<bool> reduced_axes(const xrt_node &node, size_t rank) {
  const bool by_input = node.n_inputs > 1 && is_given(node.inputs[1]);
  const std::vector<int64_t> axes = by_input ? integers_of(node.inputs[1]) : ints_of(node, "axes");
  std::vector<bool> is_reduced(rank, axes.empty());
  for (int64_t axis : axes) {
    const int64_t at = axis_of(axis, static_cast<int64_t>(rank));
    if (at < 0) throw std::invalid_argument("axis " + std::to_string(axis) + " is none of the tensor's");
    is_reduced[static_cast<size_t>(at)] = true;
  }
  return is_reduced;
}

Shape result_shape(const Shape &shape, const std::vector<bool> &is_reduced, bool keep) {
  Shape result;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!is_reduced[i]) result.push_back(shape[i]);
    if (is_reduced[i] && keep) result.push_back(1);
  }
  return result;
}

State state_of(const Shape &shape, const std::vector<bool> &is_reduced) {
  State state{};
  bool any = false, previous = false;
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0; step *= shape[i]) {
    if (is_reduced[i]) state.count *= shape[i];
    if (shape[i] == 1) continue;
    std::vector<Axis> &axes = is_reduced[i] ? state.reduced : state.kept;
    if (any && is_reduced[i] == previous) {
      axes.front().extent *= shape[i];
    } else {
      axes.insert(axes.begin(), {shape[i], step});
    }
    if (!any) state.last_is_reduced = is_reduced[i];
    any = true, previous = is_reduced[i];
  }
  std::vector<Axis> &last = state.last_is_reduced ? state.reduced : state.kept;
  if (!last.empty()) {
    state.row = last.back().extent;
    last.pop_back();
  }
  return state;
}

int64_t extent_of(const std::vector<Axis> &axes) {
  int64_t total = 1;
  for (const Axis &axis : axes) total *= axis.extent;
  return total;
}

int64_t place_of(const std::vector<Axis> &axes, int64_t index) {
  int64_t place = 0;
  for (size_t i = axes.size(); i-- > 0;) {
    place += index % axes[i].extent * axes[i].step;
    index /= axes[i].extent;
  }
  return place;
}

// ---------------------------------------------------------------- folding

template <class T>
struct Of;
template <>
struct Of<float> {
  using Total = double;
  static const Reducers<float, double> &loops() { return variant().loops->floats; }
};
template <>
struct Of<double> {
  using Total = double;
  static const Reducers<double, double> &loops() { return variant().loops->doubles; }
};
template <>
struct Of<int32_t> {
  using Total = int64_t;
  static const Reducers<int32_t, int64_t> &loops() { return variant().loops->ints; }
};
template <>
struct Of<int64_t> {
  using Total = int64_t;
  static const Reducers<int64_t, int64_t> &loops() { return variant().loops->longs; }
};

template <class Total>
Total neutral(Fold fold) {
  using Limits = std::numeric_limits<Total>;
  switch (fold) {
    case Fold::product: return 1;
    case Fold::max: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Fold::min: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default: return 0;
  }
}

template <class Total>
Total wrapped(Total a, Total b, bool multiplied) {
  if constexpr (std::is_floating_point_v<Total>) {
    return multiplied ? a * b : a + b;
  } else {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<Total>(multiplied ? x * y : x + y);
  }
}

template <class Total>
Total combined(Fold fold, Total a, Total b) {
  switch (fold) {
    case Fold::product: return wrapped(a, b, true);
    case Fold::max: return a > b || a != a ? a : b;
    case Fold::min: return a < b || a != a ? a : b;
    default: return wrapped(a, b, false);
  }
}

constexpr int64_t kPiece = int64_t{1} << 16;  // elements of a row that are folded in one go
constexpr int64_t kWidth = 1024;             // columns side by side: their totals stay in the first cache
constexpr int64_t kRows = 256;               // rows of columns in one go

// Calls f(total index, first element, length) for every piece of every row, on several threads.
template <class F>
void each_row_piece(const State &state, const xrt_call *call, F f) {
  const int64_t parts = (state.row + kPiece - 1) / kPiece, rows = extent_of(state.reduced), pieces = rows * parts;
  in_parallel(call, extent_of(state.kept) * pieces, state.row < kPiece ? state.row : kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t kept = i / pieces, row = i % pieces / parts, part = i % parts;
      const int64_t start = place_of(state.kept, kept) + place_of(state.reduced, row) + part * kPiece;
      const int64_t left = state.row - part * kPiece;
      f(i, start, left < kPiece ? left : kPiece);
    }
  });
}

template <class T, class Total = typename Of<T>::Total>
std::vector<Total> fold_rows(const State &state, const xrt_call *call, Fold fold) {
  const T *x = data_of<T>(call->inputs[0]);
  const auto loop = Of<T>::loops().row[static_cast<int>(fold)];
  const int64_t outputs = extent_of(state.kept), pieces = extent_of(state.reduced) * ((state.row + kPiece - 1) / kPiece);
  std::vector<Total> totals(static_cast<size_t>(outputs * pieces));
  each_row_piece(state, call, [&](int64_t i, int64_t start, int64_t n) { totals[static_cast<size_t>(i)] = loop(x + start, n); });
  if (pieces == 1) return totals;
  std::vector<Total> results(static_cast<size_t>(outputs), neutral<Total>(fold));
  for (size_t i = 0; i < totals.size(); ++i) {
    Total &result = results[i / static_cast<size_t>(pieces)];
    result = combined(fold, result, totals[i]);
  }
  return results;
}

// Columns: the innermost reduced axis is walked along, in pieces of a fixed number of rows.
template <class T, class Total = typename Of<T>::Total>
std::vector<Total> fold_columns(State state, const xrt_call *call, Fold fold) {
  const T *x = data_of<T>(call->inputs[0]);
  const auto loop = Of<T>::loops().columns[static_cast<int>(fold)];
  const Axis along = state.reduced.empty() ? Axis{1, 0} : state.reduced.back();
  if (!state.reduced.empty()) state.reduced.pop_back();
  const int64_t blocks = (state.row + kWidth - 1) / kWidth, parts = (along.extent + kRows - 1) / kRows;
  const int64_t outputs = extent_of(state.kept), walks = extent_of(state.reduced);
  std::vector<Total> totals(static_cast<size_t>(outputs * parts * state.row), neutral<Total>(fold));
  const int64_t cost = (along.extent < kRows ? along.extent : kRows) * (state.row < kWidth ? state.row : kWidth) * walks / 2;
  in_parallel(call, outputs * parts * blocks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % blocks * kWidth, part = i / blocks % parts, kept = i / blocks / parts;
      const int64_t width = state.row - column < kWidth ? state.row - column : kWidth;
      const int64_t first = part * kRows, n = along.extent - first < kRows ? along.extent - first : kRows;
      Total *total = totals.data() + (kept * parts + part) * state.row + column;
      const T *start = x + place_of(state.kept, kept) + first * along.step + column;
      for (int64_t walk = 0; walk < walks; ++walk)
        loop(start + place_of(state.reduced, walk), n, along.step, width, total);
    }
  });
  if (parts == 1) return totals;
  std::vector<Total> results(static_cast<size_t>(outputs * state.row), neutral<Total>(fold));
  for (int64_t kept = 0; kept < outputs; ++kept)
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t j = 0; j < state.row; ++j) {
        Total &result = results[static_cast<size_t>(kept * state.row + j)];
        result = combined(fold, result, totals[static_cast<size_t>((kept * parts + part) * state.row + j)]);
      }
  return results;
}

template <class T>
std::vector<typename Of<T>::Total> folded(const State &state, const xrt_call *call, Fold fold) {
  if (state.count == 0) return {};
  return state.last_is_reduced ? fold_rows<T>(state, call, fold) : fold_columns<T>(state, call, fold);
}

// ---------------------------------------------------------------- the kernels

template <class Total>
Total finished(Final final, Total total, int64_t count) {
  switch (final) {
    case Final::mean: return total / static_cast<Total>(count);
    case Final::root: return static_cast<Total>(std::sqrt(static_cast<double>(total)));
    case Final::log: return static_cast<Total>(std::log(static_cast<double>(total)));
    default: return total;
  }
}

// log(sum(exp(x))): the greatest element is taken out first, so that nothing overflows. Rows only.
void log_sum_exp(const State &state, const xrt_call *call) {
  const float *x = data_of<float>(call->inputs[0]);
  float *y = data_of<float>(call->outputs[0]);
  const std::vector<double> tops = folded<float>(state, call, Fold::max);
  const int64_t rows = extent_of(state.reduced);
  in_parallel(call, size_of(call->outputs[0]), 4 * state.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto greatest = tops.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(tops[static_cast<size_t>(i)]);
      const float top = std::isfinite(greatest) ? greatest : 0.0F;
      double total = 0;
      for (int64_t row = 0; row < rows && state.count; ++row)
        total += variant().loops->sum_of_exponentials(x + place_of(state.kept, i) + place_of(state.reduced, row), state.row, top);
      y[i] = std::isnan(greatest) ? greatest : static_cast<float>(std::log(total)) + top;
    }
  });
}

template <class T>
void reduce(const State &state, const xrt_call *call, Fold fold, Final final) {
  using Total = typename Of<T>::Total;
  const std::vector<Total> totals = folded<T>(state, call, fold);
  T *y = data_of<T>(call->outputs[0]);
  const int64_t n = size_of(call->outputs[0]);
  const auto nothing = static_cast<Total>(neutral<T>(fold));  // the least number of the type itself
  for (int64_t i = 0; i < n; ++i) {
    const Total total = totals.empty() ? nothing : totals[static_cast<size_t>(i)];
    y[i] = static_cast<T>(finished(final, total, state.count));
  }
}

// The types a reduction serves: a quotient, root or logarithm of integers is toy's Python kernel's affair.
int32_t takes_its_type(const xrt_node &node, Final final, xrt_text why) {
  if (final == Final::log_of_exponentials) return takes(node, {kFloat32}, why);
  if (final != Final::none) return takes(node, {kFloat32, kFloat64}, why);
  return takes(node, {kFloat32, kFloat64, kInt32, kInt64}, why);
}

template <Final final>
int32_t why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = takes_its_type(*node, final, why)) return status;
  const bool by_input = node->n_inputs > 1 && is_given(node->inputs[1]);
  if (by_input && !node->inputs[1].data) return refuse(why, "its axes are computed by the model");
  const bool none = by_input ? size_of(node->inputs[1]) == 0 : ints_of(*node, "axes").empty();
  if (none && int_of(*node, "noop_with_empty_axes", 0)) return refuse(why, "there are no axes to reduce");
  if (final != Final::log_of_exponentials) return XRT_OK;
  if (node->inputs[0].ndim < 0) return refuse(why, "the rank is not known");
  const auto rank = static_cast<size_t>(node->inputs[0].ndim);
  return guarded(why, [&] {
    if (rank == 0 || reduced_axes(*node, rank)[rank - 1]) return static_cast<int32_t>(XRT_OK);
    return refuse(why, "it reduces the last axis, alone or with others");
  });
}

template <Final final>
int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return guarded(why, [&] {
    const Shape shape = shape_of(node->inputs[0]);
    const std::vector<bool> is_reduced = reduced_axes(*node, shape.size());
    State state = state_of(shape, is_reduced);
    state.dtype = node->inputs[0].dtype;
    // A last axis of extent 1 vanishes: what was the last but one may be kept.
    if (final == Final::log_of_exponentials && !state.last_is_reduced) {
      state.kept.push_back({state.row, 1});
      state.row = 1;
      state.last_is_reduced = true;
    }
    announce(plan->outputs[0], state.dtype, result_shape(shape, is_reduced, int_of(*node, "keepdims", 1) != 0));
    plan->state = new State(state);
    return static_cast<int32_t>(XRT_OK);
  });
}

template <Fold fold, Final final>
int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return guarded(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    if (final == Final::log_of_exponentials) {
      log_sum_exp(state, call);
    } else if (state.dtype == kFloat32) {
      reduce<float>(state, call, fold, final);
    }
    if (state.dtype == kFloat64) reduce<double>(state, call, fold, final);
    if (state.dtype == kInt32) reduce<int32_t>(state, call, fold, final);
    if (state.dtype == kInt64) reduce<int64_t>(state, call, fold, final);
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

template <Fold fold, Final final = Final::none>
constexpr xrt_kernel kernel(const char *name, const char *op_type) {
  return {name, "", op_type, 1, 0, 1, XRT_CPU, 0, 0, why_not<final>, prepare<final>, run<fold, final>, destroy};
}

}  // namespace

const xrt_kernel kReduceSum = kernel<Fold::sum>("reduce_sum", "ReduceSum");
const xrt_kernel kReduceMean = kernel<Fold::sum, Final::mean>("reduce_mean", "ReduceMean");
const xrt_kernel kReduceProd = kernel<Fold::product>("reduce_prod", "ReduceProd");
const xrt_kernel kReduceMax = kernel<Fold::max>("reduce_max", "ReduceMax");
const xrt_kernel kReduceMin = kernel<Fold::min>("reduce_min", "ReduceMin");
const xrt_kernel kReduceL1 = kernel<Fold::sum_abs>("reduce_l1", "ReduceL1");
const xrt_kernel kReduceL2 = kernel<Fold::sum_square, Final::root>("reduce_l2", "ReduceL2");
const xrt_kernel kReduceSumSquare = kernel<Fold::sum_square>("reduce_sum_square", "ReduceSumSquare");
const xrt_kernel kReduceLogSum = kernel<Fold::sum, Final::log>("reduce_log_sum", "ReduceLogSum");
const xrt_kernel kReduceLogSumExp = kernel<Fold::max, Final::log_of_exponentials>("reduce_log_sum_exp", "ReduceLogSumExp");

}  // namespace xrt
