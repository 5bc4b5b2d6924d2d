// Normalizations of float32: over the last axes (LayerNormalization, RMSNormalization), over a channel or a group of channels
// (InstanceNormalization, GroupNormalization), and with constant statistics (BatchNormalization).
#include <cmath>

#include "node.h"
#include "table.h"
#include "variants.h"

namespace xrt {
namespace {

int32_t all_float32(const xrt_node &node, xrt_text why) {
  for (int32_t i = 0; i < node.n_inputs; ++i)
    if (is_given(node.inputs[i]) && node.inputs[i].dtype != kFloat32)
      return refuse(why, "all inputs must be float32; input " + std::to_string(i) + " is " + name_of(node.inputs[i].dtype));
  return XRT_OK;
}

int32_t statistics_in_float32(const xrt_node &node, xrt_text why) {
  const int64_t type = int_of(node, "stash_type", 1);
  return type == 1 ? static_cast<int32_t>(XRT_OK)
                   : refuse(why, "stash_type must be 1, float32; it is " + std::to_string(type));
}

struct State {
  int64_t rows = 0;   // groups of elements that are normalized together
  int64_t n = 0;      // elements per row
  int64_t plane = 0;  // elements with the same scale and bias, for the operators with channels
  int64_t channels = 0;
  float epsilon = 0;
  int32_t n_inputs = 0, n_outputs = 0;
};

// Implements `prepare`: `describe(shape, state)` sets the fields of the state that depend on the operator.
template <class F>
int32_t prepare_with(const xrt_node *node, xrt_plan *plan, xrt_text why, F describe) {
  return catch_errors(why, [&] {
    State state;
    state.epsilon = static_cast<float>(float_of(*node, "epsilon", 1e-5));
    state.n_inputs = node->n_inputs, state.n_outputs = node->n_outputs;
    const Shape shape = shape_of(node->inputs[0]);
    set_output(plan->outputs[0], kFloat32, shape);
    const int32_t status = describe(shape, state);
    if (status == XRT_OK) plan->state = new State(state);
    return status;
  });
}

// Implements `run`: calls `compute(state, x, y)`.
template <class F>
int32_t run_with(void *opaque, const xrt_call *call, xrt_text why, F compute) {
  return catch_errors(why, [&] {
    compute(*static_cast<const State *>(opaque), data_of<float>(call->inputs[0]), data_of<float>(call->outputs[0]));
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

// ---------------------------------------------------------------- over the last axes

// Whether a scale or bias has the shape of the normalized axes. False if its shape is unknown.
bool fits(const xrt_tensor &tensor, const Shape &trailing) {
  if (!is_given(tensor)) return true;
  Shape own = shape_of(tensor);
  while (own.size() > trailing.size() && own.front() == 1) own.erase(own.begin());
  if (own.size() != trailing.size()) return false;
  for (size_t i = 0; i < own.size(); ++i)
    if (own[i] != trailing[i] || own[i] < 0) return false;
  return true;
}

int32_t trailing_why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = all_float32(*node, why)) return status;
  if (const int32_t status = statistics_in_float32(*node, why)) return status;
  if (node->inputs[0].ndim < 1) return refuse(why, "the rank of the input is not known, or 0");
  const Shape shape = shape_of(node->inputs[0]);
  const int64_t axis = axis_of(int_of(*node, "axis", -1), node->inputs[0].ndim);
  if (axis < 0) return refuse(why, "axis is out of range");
  const Shape trailing(shape.begin() + axis, shape.end());
  for (int32_t i = 1; i < node->n_inputs; ++i)
    if (!fits(node->inputs[i], trailing)) return refuse(why, "scale and bias must have the shape of the normalized axes");
  return XRT_OK;
}

int32_t trailing_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  if (const int32_t status = trailing_why_not(node, why)) return status;
  return prepare_with(node, plan, why, [&](const Shape &shape, State &state) {
    const auto axis = static_cast<size_t>(axis_of(int_of(*node, "axis", -1), node->inputs[0].ndim));
    state.rows = product(shape, 0, axis);
    state.n = product(shape, axis);
    Shape statistics(shape);
    for (size_t i = axis; i < shape.size(); ++i) statistics[i] = 1;
    for (int32_t k = 1; k < node->n_outputs; ++k) set_output(plan->outputs[k], kFloat32, statistics);
    return static_cast<int32_t>(XRT_OK);
  });
}

// Stores a statistic of a row, if its output is used.
void put(const xrt_call *call, const State &state, int32_t output, int64_t row, float value) {
  if (output < state.n_outputs && call->outputs[output].data) data_of<float>(call->outputs[output])[row] = value;
}

int32_t layer_run(void *opaque, const xrt_call *call, xrt_text why) {
  return run_with(opaque, call, why, [&](const State &state, const float *x, float *y) {
    const Loops &loops = *variant().loops;
    const float *scale = data_of<float>(call->inputs[1]), *bias = state.n_inputs > 2 ? data_of<float>(call->inputs[2]) : nullptr;
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Moments moments = loops.moments(x + row * state.n, state.n, state.epsilon);
        loops.normalize(x + row * state.n, y + row * state.n, state.n, moments, scale, bias);
        put(call, state, 1, row, moments.mean);
        put(call, state, 2, row, moments.inverse);
      }
    });
  });
}

int32_t rms_run(void *opaque, const xrt_call *call, xrt_text why) {
  return run_with(opaque, call, why, [&](const State &state, const float *x, float *y) {
    const Loops &loops = *variant().loops;
    const float *scale = data_of<float>(call->inputs[1]);
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float inverse = loops.inverse_root_mean_square(x + row * state.n, state.n, state.epsilon);
        loops.normalize(x + row * state.n, y + row * state.n, state.n, {0.0F, inverse}, scale, nullptr);
      }
    });
  });
}

// ---------------------------------------------------------------- over a channel or a group of channels

int32_t channels_why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = all_float32(*node, why)) return status;
  if (node->n_inputs < 3) return refuse(why, "the node has no scale and bias");
  return statistics_in_float32(*node, why);
}

// Whether all inputs except the first have one element per channel. Called by `prepare`, because extents may be symbolic before.
bool have_channels(const xrt_node &node, int64_t channels) {
  for (int32_t i = 1; i < node.n_inputs; ++i)
    if (is_given(node.inputs[i]) && shape_of(node.inputs[i]) != Shape{channels}) return false;
  return true;
}

const char *const kChannelsReason = "scale, bias and statistics must have one element for each channel";

int32_t instance_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return prepare_with(node, plan, why, [&](const Shape &shape, State &state) {
    if (shape.size() < 2) return refuse(why, "the tensor has no channels");
    if (!have_channels(*node, shape[1])) return refuse(why, kChannelsReason);
    state.channels = shape[1];
    state.rows = shape[0] * shape[1];
    state.n = state.plane = product(shape, 2);
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t group_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return prepare_with(node, plan, why, [&](const Shape &shape, State &state) {
    const int64_t groups = int_of(*node, "num_groups", 0);
    if (shape.size() < 2 || groups < 1 || shape[1] % groups) return refuse(why, "num_groups does not divide the channels");
    if (!have_channels(*node, shape[1])) return refuse(why, kChannelsReason);
    state.channels = shape[1];
    state.rows = shape[0] * groups;
    state.plane = product(shape, 2);
    state.n = shape[1] / groups * state.plane;
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t channels_run(void *opaque, const xrt_call *call, xrt_text why) {
  return run_with(opaque, call, why, [&](const State &state, const float *x, float *y) {
    const Loops &loops = *variant().loops;
    const float *scale = data_of<float>(call->inputs[1]), *bias = data_of<float>(call->inputs[2]);
    const int64_t planes = state.plane ? state.n / state.plane : 0;
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Moments moments = loops.moments(x + row * state.n, state.n, state.epsilon);
        for (int64_t k = 0; k < planes; ++k) {
          const int64_t channel = (row * planes + k) % state.channels, at = row * state.n + k * state.plane;
          loops.normalize_evenly(x + at, y + at, state.plane, moments, scale[channel], bias[channel]);
        }
      }
    });
  });
}

// ---------------------------------------------------------------- with constant statistics

int32_t batch_why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = all_float32(*node, why)) return status;
  if (int_of(*node, "training_mode", 0) || node->n_outputs > 1)
    return refuse(why, "the kernel supports inference only, not training_mode=1");
  return node->n_inputs < 5 ? refuse(why, "the node lacks inputs") : static_cast<int32_t>(XRT_OK);
}

int32_t batch_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return prepare_with(node, plan, why, [&](const Shape &shape, State &state) {
    if (shape.size() < 2) return refuse(why, "the tensor has no channels");
    if (!have_channels(*node, shape[1])) return refuse(why, kChannelsReason);
    state.channels = shape[1];
    state.rows = shape[0] * shape[1];
    state.n = product(shape, 2);
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t batch_run(void *opaque, const xrt_call *call, xrt_text why) {
  return run_with(opaque, call, why, [&](const State &state, const float *x, float *y) {
    const float *scale = data_of<float>(call->inputs[1]), *bias = data_of<float>(call->inputs[2]);
    const float *mean = data_of<float>(call->inputs[3]), *variance = data_of<float>(call->inputs[4]);
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t channel = row % state.channels;
        const float factor = scale[channel] / std::sqrt(variance[channel] + state.epsilon);
        variant().loops->scale_and_shift(x + row * state.n, y + row * state.n, state.n, factor,
                                         bias[channel] - mean[channel] * factor);
      }
    });
  });
}

}  // namespace

const xrt_kernel kLayerNormalization = {"layer_normalization_f32", "", "LayerNormalization", 17, 0, 1, XRT_CPU, 0, 1,
                                        trailing_why_not, trailing_prepare, layer_run, destroy};
const xrt_kernel kRmsNormalization = {"rms_normalization_f32", "", "RMSNormalization", 23, 0, 1, XRT_CPU, 0, 1,
                                      trailing_why_not, trailing_prepare, rms_run, destroy};
const xrt_kernel kInstanceNormalization = {"instance_normalization_f32", "", "InstanceNormalization", 6, 0, 1, XRT_CPU, 0, 1,
                                           channels_why_not, instance_prepare, channels_run, destroy};
const xrt_kernel kGroupNormalization = {"group_normalization_f32", "", "GroupNormalization", 21, 0, 1, XRT_CPU, 0, 1,
                                        channels_why_not, group_prepare, channels_run, destroy};
const xrt_kernel kBatchNormalization = {"batch_normalization_f32", "", "BatchNormalization", 9, 0, 1, XRT_CPU, 0, 1,
                                        batch_why_not, batch_prepare, batch_run, destroy};

}  // namespace xrt
