// MaxPool and AveragePool of float32 over any number of spatial axes, and the global pools.
#include <limits>
#include <memory>
#include <stdexcept>

#include "table.h"
#include "variants.h"
#include "window.h"

namespace xrt {
namespace {

int32_t check_planes(const xrt_node &node, xrt_text why) {
  if (const int32_t status = check_first_input(node, {kFloat32}, why)) return status;
  if (node.inputs[0].ndim >= 0 && node.inputs[0].ndim < 3) return refuse(why, "the tensor has no spatial axes");
  return XRT_OK;
}

// ---------------------------------------------------------------- sliding windows

struct State {
  Window window;
  int64_t planes;
  float padding;
  std::vector<float> counts;  // of AveragePool: the number of elements that each output averages
};

int32_t why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = check_planes(*node, why)) return status;
  if (node->n_outputs > 1) return refuse(why, "the kernel does not return the indices of the maxima");
  return XRT_OK;
}

// Counts the elements of each window along one axis. With `with_padding` the declared padding counts, but not that of ceil_mode.
std::vector<int64_t> count_along(const WindowAxis &axis, bool with_padding) {
  const int64_t low = with_padding ? -axis.begin : 0, high = axis.extent + (with_padding ? axis.declared_end : 0);
  std::vector<int64_t> counts(static_cast<size_t>(axis.positions));
  for (int64_t i = 0; i < axis.positions; ++i)
    for (int64_t k = 0; k < axis.kernel; ++k) {
      const int64_t at = i * axis.stride - axis.begin + k * axis.dilation;
      counts[static_cast<size_t>(i)] += at >= low && at < high;
    }
  return counts;
}

std::vector<float> counts_of(const Window &window, bool with_padding) {
  std::vector<float> counts(1, 1.0F);
  for (const WindowAxis &axis : window.axes()) {
    std::vector<float> next;
    for (float outer : counts)
      for (int64_t count : count_along(axis, with_padding)) next.push_back(outer * static_cast<float>(count));
    counts = next;
  }
  return counts;
}

template <bool mean>
int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return catch_errors(why, [&] {
    const Shape shape = shape_of(node->inputs[0]);
    if (shape.size() < 3) return refuse(why, "the tensor has no spatial axes");
    const Window window(*node, ints_of(*node, "kernel_shape"), Shape(shape.begin() + 2, shape.end()));
    const float padding = mean ? 0.0F : -std::numeric_limits<float>::infinity();
    auto state = std::make_unique<State>(State{window, shape[0] * shape[1], padding, {}});
    if (mean) state->counts = counts_of(window, int_of(*node, "count_include_pad", 0) != 0);
    Shape result(shape.begin(), shape.begin() + 2);
    for (int64_t extent : window.positions()) result.push_back(extent);
    set_output(plan->outputs[0], kFloat32, result);
    plan->state = state.release();
    return static_cast<int32_t>(XRT_OK);
  });
}

void pool_plane(const State &state, const float *layout, float *y) {
  const Window &window = state.window;
  const Taps taps{window.offsets().data(), nullptr, static_cast<int64_t>(window.offsets().size())};
  const auto loop = state.counts.empty() ? variant().loops->window_max : variant().loops->window_sum;
  for (int64_t row = 0; row < window.rows(); ++row)
    loop(layout + window.start_of(row), y + row * window.row(), window.row(), taps);
  for (size_t i = 0; i < state.counts.size(); ++i) y[i] /= state.counts[i];
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    const Window &window = state.window;
    const float *x = data_of<float>(call->inputs[0]);
    float *y = data_of<float>(call->outputs[0]);
    const int64_t cost = window.plane() + window.outputs() * static_cast<int64_t>(window.offsets().size()) / 4;
    return run_in_parallel(call, state.planes, cost, why, [&](int64_t begin, int64_t end) {
      std::vector<float> layout(static_cast<size_t>(window.layout_size()), state.padding);
      for (int64_t plane = begin; plane < end; ++plane) {
        window.lay_out(x + plane * window.plane(), layout.data());
        pool_plane(state, layout.data(), y + plane * window.outputs());
      }
    });
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

// ---------------------------------------------------------------- global pools

struct GlobalState {
  int64_t planes, plane;
};

int32_t global_why_not(const xrt_node *node, xrt_text why) { return check_first_input(*node, {kFloat32}, why); }

int32_t global_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return catch_errors(why, [&] {
    Shape shape = shape_of(node->inputs[0]);
    if (shape.size() < 2) return refuse(why, "the tensor has no channels");
    plan->state = new GlobalState{shape[0] * shape[1], product(shape, 2)};
    for (size_t i = 2; i < shape.size(); ++i) shape[i] = 1;
    set_output(plan->outputs[0], kFloat32, shape);
    return static_cast<int32_t>(XRT_OK);
  });
}

template <bool mean>
int32_t global_run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
    const GlobalState &state = *static_cast<const GlobalState *>(opaque);
    const float *x = data_of<float>(call->inputs[0]);
    float *y = data_of<float>(call->outputs[0]);
    const auto fold = variant().loops->floats.row[static_cast<int>(mean ? Fold::sum : Fold::max)];
    in_parallel(call, state.planes, state.plane, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double total = fold(x + i * state.plane, state.plane);
        y[i] = static_cast<float>(mean ? total / static_cast<double>(state.plane) : total);
      }
    });
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy_global(void *state) { delete static_cast<GlobalState *>(state); }

}  // namespace

const xrt_kernel kMaxPool = {"max_pool_f32", "", "MaxPool", 1, 0, 1, XRT_CPU, 0, 0, why_not, prepare<false>, run, destroy};
const xrt_kernel kAveragePool = {"average_pool_f32", "", "AveragePool", 1, 0, 1, XRT_CPU, 0, 0,
                                 why_not, prepare<true>, run, destroy};
const xrt_kernel kGlobalAveragePool = {"global_average_pool_f32", "", "GlobalAveragePool", 1, 0, 1, XRT_CPU, 0, 0,
                                       global_why_not, global_prepare, global_run<true>, destroy_global};
const xrt_kernel kGlobalMaxPool = {"global_max_pool_f32", "", "GlobalMaxPool", 1, 0, 1, XRT_CPU, 0, 0,
                                   global_why_not, global_prepare, global_run<false>, destroy_global};

}  // namespace xrt
