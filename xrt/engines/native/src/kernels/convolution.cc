// Depthwise convolution of float32, where the number of groups is the number of channels. Other convolutions are matrix products,
// for which BLAS is faster.
#include <memory>
#include <stdexcept>

#include "table.h"
#include "variants.h"
#include "window.h"

namespace xrt {
namespace {

struct State {
  Window window;
  int64_t batch, channels, multiplier;
  bool has_bias;
};

int32_t why_not(const xrt_node *node, xrt_text why) {
  for (int32_t i = 0; i < node->n_inputs; ++i)
    if (is_given(node->inputs[i]) && node->inputs[i].dtype != kFloat32) return refuse(why, "all inputs must be float32");
  if (node->n_inputs < 2 || node->inputs[0].ndim < 3 || node->inputs[1].ndim != node->inputs[0].ndim)
    return refuse(why, "the ranks of tensor and weights are not known, or there are no spatial axes");
  const int64_t *shape = node->inputs[0].shape, *weights = node->inputs[1].shape;
  if (shape[1] < 1 || weights[1] != 1 || weights[0] < 0 || int_of(*node, "group", 1) != shape[1] || weights[0] % shape[1])
    return refuse(why, "the kernel supports depthwise convolutions only (group = channels)");
  return XRT_OK;
}

int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  if (const int32_t status = why_not(node, why)) return status;
  return catch_errors(why, [&] {
    const Shape shape = shape_of(node->inputs[0]), weights = shape_of(node->inputs[1]);
    const Window window(*node, Shape(weights.begin() + 2, weights.end()), Shape(shape.begin() + 2, shape.end()));
    const bool has_bias = node->n_inputs > 2 && is_given(node->inputs[2]);
    Shape result{shape[0], weights[0]};
    for (int64_t extent : window.positions()) result.push_back(extent);
    set_output(plan->outputs[0], kFloat32, result);
    plan->state = new State{window, shape[0], shape[1], weights[0] / shape[1], has_bias};
    return static_cast<int32_t>(XRT_OK);
  });
}

// Computes the output planes of one input plane.
void convolve(const State &state, const xrt_call *call, int64_t plane, const float *layout) {
  const Window &window = state.window;
  const auto taps = static_cast<int64_t>(window.offsets().size());
  const float *weights = data_of<float>(call->inputs[1]);
  const float *bias = state.has_bias ? data_of<float>(call->inputs[2]) : nullptr;
  for (int64_t k = 0; k < state.multiplier; ++k) {
    const int64_t channel = plane % state.channels * state.multiplier + k;
    const Taps channel_taps{window.offsets().data(), weights + channel * taps, taps};
    float *y = data_of<float>(call->outputs[0]) + (plane * state.multiplier + k) * window.outputs();
    for (int64_t row = 0; row < window.rows(); ++row)
      variant().loops->window_weighted(layout + window.start_of(row), y + row * window.row(), window.row(), channel_taps,
                                       bias ? bias[channel] : 0.0F);
  }
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    const Window &window = state.window;
    const float *x = data_of<float>(call->inputs[0]);
    const int64_t work = window.outputs() * state.multiplier * static_cast<int64_t>(window.offsets().size());
    return run_in_parallel(call, state.batch * state.channels, window.plane() + work / 4, why, [&](int64_t begin, int64_t end) {
      std::vector<float> layout(static_cast<size_t>(window.layout_size()));
      for (int64_t plane = begin; plane < end; ++plane) {
        window.lay_out(x + plane * window.plane(), layout.data());
        convolve(state, call, plane, layout.data());
      }
    });
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

}  // namespace

const xrt_kernel kDepthwiseConv = {"depthwise_conv_f32", "", "Conv", 1, 0, 1, XRT_CPU, 0, 0, why_not, prepare, run, destroy};

}  // namespace xrt
