// Reductions over any axes: of float32, float64, int32 and int64.
//
// Adjacent axes are merged, so that kept and reduced axes alternate. If the last axis is reduced, rows are folded; otherwise
// several columns at once. Long folds are divided into pieces of a fixed length, and the totals of pieces are combined in order,
// so that the result does not depend on the number of threads.
#include <algorithm>
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

// The function that is applied to the total of a fold.
enum class Final : uint8_t { none, mean, root, log, log_of_exponentials };

// ---------------------------------------------------------------- the geometry

struct State {
  xrt_dtype dtype;
  std::vector<Axis> kept, reduced;  // all axes except the last one
  int64_t row = 1;                  // extent of the last axis
  bool last_is_reduced = true;
  int64_t count = 1;  // elements per output
};

std::vector<bool> reduced_axes(const xrt_node &node, size_t rank) {
  const bool by_input = node.n_inputs > 1 && is_given(node.inputs[1]);
  const std::vector<int64_t> axes = by_input ? integers_of(node.inputs[1]) : ints_of(node, "axes");
  std::vector<bool> is_reduced(rank, axes.empty());
  for (int64_t axis : axes) {
    const int64_t at = axis_of(axis, static_cast<int64_t>(rank));
    if (at < 0) throw std::invalid_argument("axis " + std::to_string(axis) + " is out of range");
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

// ---------------------------------------------------------------- folding

template <class T>
using TotalOf = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

template <class T>
const Reducers<T, TotalOf<T>> &reducers() {
  const Loops &loops = *variant().loops;
  if constexpr (std::is_same_v<T, float>) return loops.floats;
  if constexpr (std::is_same_v<T, double>) return loops.doubles;
  if constexpr (std::is_same_v<T, int32_t>) return loops.ints;
  if constexpr (std::is_same_v<T, int64_t>) return loops.longs;
}

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
Total wrapping(Total a, Total b, bool multiplied) {
  if constexpr (std::is_floating_point_v<Total>) {
    return multiplied ? a * b : a + b;
  } else {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<Total>(multiplied ? x * y : x + y);
  }
}

template <class Total>
Total combine(Fold fold, Total a, Total b) {
  switch (fold) {
    case Fold::product: return wrapping(a, b, true);
    case Fold::max: return a > b || a != a ? a : b;
    case Fold::min: return a < b || a != a ? a : b;
    default: return wrapping(a, b, false);
  }
}

constexpr int64_t kPiece = int64_t{1} << 16;  // elements per piece of a row
constexpr int64_t kWidth = 1024;             // columns that are folded at once: their totals fit in the L1 cache
constexpr int64_t kRows = 256;               // rows per piece of columns

// Calls f(index of the total, offset of the first element, length) for each piece of each row, on several threads.
template <class F>
void each_row_piece(const State &state, const xrt_call *call, F f) {
  const int64_t parts = (state.row + kPiece - 1) / kPiece, rows = count_indices(state.reduced), pieces = rows * parts;
  in_parallel(call, count_indices(state.kept) * pieces, std::min(state.row, kPiece), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t kept = i / pieces, row = i % pieces / parts, part = i % parts;
      const int64_t start = offset_of(state.kept, kept) + offset_of(state.reduced, row) + part * kPiece;
      f(i, start, std::min(state.row - part * kPiece, kPiece));
    }
  });
}

template <class T, class Total = TotalOf<T>>
std::vector<Total> fold_rows(const State &state, const xrt_call *call, Fold fold) {
  const T *x = data_of<T>(call->inputs[0]);
  const auto loop = reducers<T>().row[static_cast<int>(fold)];
  const int64_t outputs = count_indices(state.kept), pieces = count_indices(state.reduced) * ((state.row + kPiece - 1) / kPiece);
  std::vector<Total> totals(static_cast<size_t>(outputs * pieces));
  each_row_piece(state, call, [&](int64_t i, int64_t start, int64_t n) { totals[static_cast<size_t>(i)] = loop(x + start, n); });
  if (pieces == 1) return totals;
  std::vector<Total> results(static_cast<size_t>(outputs), neutral<Total>(fold));
  for (size_t i = 0; i < totals.size(); ++i) {
    Total &result = results[i / static_cast<size_t>(pieces)];
    result = combine(fold, result, totals[i]);
  }
  return results;
}

// The last axis is kept: combines rows along the innermost reduced axis, in pieces of a fixed number of rows.
template <class T, class Total = TotalOf<T>>
std::vector<Total> fold_columns(State state, const xrt_call *call, Fold fold) {
  const T *x = data_of<T>(call->inputs[0]);
  const auto loop = reducers<T>().columns[static_cast<int>(fold)];
  const Axis along = state.reduced.empty() ? Axis{1, 0} : state.reduced.back();
  if (!state.reduced.empty()) state.reduced.pop_back();
  const int64_t blocks = (state.row + kWidth - 1) / kWidth, parts = (along.extent + kRows - 1) / kRows;
  const int64_t outputs = count_indices(state.kept), outer_count = count_indices(state.reduced);
  std::vector<Total> totals(static_cast<size_t>(outputs * parts * state.row), neutral<Total>(fold));
  const int64_t cost = std::min(along.extent, kRows) * std::min(state.row, kWidth) * outer_count / 2;
  in_parallel(call, outputs * parts * blocks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % blocks * kWidth, part = i / blocks % parts, kept = i / blocks / parts;
      const int64_t width = std::min(state.row - column, kWidth);
      const int64_t first = part * kRows, n = std::min(along.extent - first, kRows);
      Total *total = totals.data() + (kept * parts + part) * state.row + column;
      const T *start = x + offset_of(state.kept, kept) + first * along.step + column;
      for (int64_t outer = 0; outer < outer_count; ++outer)
        loop(start + offset_of(state.reduced, outer), n, along.step, width, total);
    }
  });
  if (parts == 1) return totals;
  std::vector<Total> results(static_cast<size_t>(outputs * state.row), neutral<Total>(fold));
  for (int64_t kept = 0; kept < outputs; ++kept)
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t j = 0; j < state.row; ++j) {
        Total &result = results[static_cast<size_t>(kept * state.row + j)];
        result = combine(fold, result, totals[static_cast<size_t>((kept * parts + part) * state.row + j)]);
      }
  return results;
}

template <class T>
std::vector<TotalOf<T>> fold_all(const State &state, const xrt_call *call, Fold fold) {
  if (state.count == 0) return {};
  return state.last_is_reduced ? fold_rows<T>(state, call, fold) : fold_columns<T>(state, call, fold);
}

// ---------------------------------------------------------------- the kernels

template <class Total>
Total apply_final(Final final, Total total, int64_t count) {
  switch (final) {
    case Final::mean: return total / static_cast<Total>(count);
    case Final::root: return static_cast<Total>(std::sqrt(static_cast<double>(total)));
    case Final::log: return static_cast<Total>(std::log(static_cast<double>(total)));
    default: return total;
  }
}

// log(sum(exp(x))), for rows only. The maximum is subtracted from x first, so that exp does not overflow.
void log_sum_exp(const State &state, const xrt_call *call) {
  const float *x = data_of<float>(call->inputs[0]);
  float *y = data_of<float>(call->outputs[0]);
  const std::vector<double> tops = fold_all<float>(state, call, Fold::max);
  const int64_t rows = count_indices(state.reduced);
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  in_parallel(call, size_of(call->outputs[0]), 4 * state.count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float greatest = tops.empty() ? lowest : static_cast<float>(tops[static_cast<size_t>(i)]);
      const float top = std::isfinite(greatest) ? greatest : 0.0F;
      double total = 0;
      for (int64_t row = 0; row < rows && state.count; ++row) {
        const float *start = x + offset_of(state.kept, i) + offset_of(state.reduced, row);
        total += variant().loops->sum_of_exponentials(start, state.row, top);
      }
      y[i] = std::isnan(greatest) ? greatest : static_cast<float>(std::log(total)) + top;
    }
  });
}

template <class T>
void reduce(const State &state, const xrt_call *call, Fold fold, Final final) {
  using Total = TotalOf<T>;
  const std::vector<Total> totals = fold_all<T>(state, call, fold);
  T *y = data_of<T>(call->outputs[0]);
  const int64_t n = size_of(call->outputs[0]);
  const auto empty_total = static_cast<Total>(neutral<T>(fold));  // of T: the lowest number of Total may not fit in T
  for (int64_t i = 0; i < n; ++i) {
    const Total total = totals.empty() ? empty_total : totals[static_cast<size_t>(i)];
    y[i] = static_cast<T>(apply_final(final, total, state.count));
  }
}

// Checks the type of the input. The Python kernels of toy compute means, roots and logarithms of integers.
int32_t check_type(const xrt_node &node, Final final, xrt_text why) {
  if (final == Final::log_of_exponentials) return check_first_input(node, {kFloat32}, why);
  if (final != Final::none) return check_first_input(node, {kFloat32, kFloat64}, why);
  return check_first_input(node, {kFloat32, kFloat64, kInt32, kInt64}, why);
}

template <Final final>
int32_t why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = check_type(*node, final, why)) return status;
  const bool by_input = node->n_inputs > 1 && is_given(node->inputs[1]);
  if (by_input && !node->inputs[1].data) return refuse(why, "the axes are not constant");
  const bool none = by_input ? size_of(node->inputs[1]) == 0 : ints_of(*node, "axes").empty();
  if (none && int_of(*node, "noop_with_empty_axes", 0)) return refuse(why, "there are no axes to reduce");
  if (final != Final::log_of_exponentials) return XRT_OK;
  if (node->inputs[0].ndim < 0) return refuse(why, "the rank is not known");
  const auto rank = static_cast<size_t>(node->inputs[0].ndim);
  return catch_errors(why, [&] {
    if (rank == 0 || reduced_axes(*node, rank)[rank - 1]) return static_cast<int32_t>(XRT_OK);
    return refuse(why, "the kernel requires a reduction of the last axis");
  });
}

template <Final final>
int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return catch_errors(why, [&] {
    const Shape shape = shape_of(node->inputs[0]);
    const std::vector<bool> is_reduced = reduced_axes(*node, shape.size());
    State state = state_of(shape, is_reduced);
    state.dtype = node->inputs[0].dtype;
    // Axes of extent 1 are dropped. If the last one was, the axis before it, which may be kept, is the last now.
    if (final == Final::log_of_exponentials && !state.last_is_reduced) {
      state.kept.push_back({state.row, 1});
      state.row = 1;
      state.last_is_reduced = true;
    }
    set_output(plan->outputs[0], state.dtype, result_shape(shape, is_reduced, int_of(*node, "keepdims", 1) != 0));
    plan->state = new State(state);
    return static_cast<int32_t>(XRT_OK);
  });
}

template <Fold fold, Final final>
int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
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
