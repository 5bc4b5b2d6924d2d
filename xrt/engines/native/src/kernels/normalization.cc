// Normalisations of float32: over the trailing axes, over the elements of a channel or a group, and by given statistics.
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
  int64_t rows = 0;     // how many sets of statistics
  int64_t n = 0;        // elements of each
  int64_t plane = 0;    // elements that share a scale and a bias
  int64_t channels = 0;
  float epsilon = 0;
};

template <class F>
int32_t prepared(const xrt_node *node, xrt_plan *plan, xrt_text why, F describe) {
  return guarded(why, [&] {
    State state;
    state.epsilon = static_cast<float>(float_of(*node, "epsilon", 1e-5));
    const Shape shape = shape_of(node->inputs[0]);
    announce(plan->outputs[0], kFloat32, shape);
    const int32_t status = describe(shape, state);
    if (status == XRT_OK) plan->state = new State(state);
    return status;
  });
}

template <class F>
int32_t ran(void *opaque, const xrt_call *call, xrt_text why, F compute) {
  return guarded(why, [&] {
    compute(*static_cast<const State *>(opaque), data_of<float>(call->inputs[0]), data_of<float>(call->outputs[0]));
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

// The input in that place, NULL where it is left out.
const float *optional(const xrt_call *call, int32_t n_inputs, int32_t place) {
  return place < n_inputs ? data_of<float>(call->inputs[place]) : nullptr;
}

// ---------------------------------------------------------------- over the trailing axes

// Whether a scale or bias is as large as what is normalised; where the model does not say, `prepare` sees.
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
  if (axis < 0) return refuse(why, "axis is none of the tensor's");
  const Shape trailing(shape.begin() + axis, shape.end());
  for (int32_t i = 1; i < node->n_inputs; ++i)
    if (!fits(node->inputs[i], trailing)) return refuse(why, "scale and bias must have the shape of what is normalised");
  return XRT_OK;
}

struct Trailing : State {
  int32_t n_inputs, n_outputs;
};

int32_t trailing_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  if (const int32_t status = trailing_why_not(node, why)) return status;
  return guarded(why, [&] {
    Shape shape = shape_of(node->inputs[0]);
    const auto axis = static_cast<size_t>(axis_of(int_of(*node, "axis", -1), node->inputs[0].ndim));
    announce(plan->outputs[0], kFloat32, shape);
    Trailing state{};
    state.rows = product(shape, 0, axis), state.n = product(shape, axis);
    state.epsilon = static_cast<float>(float_of(*node, "epsilon", 1e-5));
    state.n_inputs = node->n_inputs, state.n_outputs = node->n_outputs;
    for (size_t i = axis; i < shape.size(); ++i) shape[i] = 1;
    for (int32_t k = 1; k < node->n_outputs; ++k) announce(plan->outputs[k], kFloat32, shape);
    plan->state = new Trailing(state);
    return static_cast<int32_t>(XRT_OK);
  });
}

void put(const xrt_call *call, const Trailing &state, int32_t output, int64_t row, float value) {
  if (output < state.n_outputs && call->outputs[output].data) data_of<float>(call->outputs[output])[row] = value;
}

void destroy_trailing(void *state) { delete static_cast<Trailing *>(state); }

int32_t layer_run(void *opaque, const xrt_call *call, xrt_text why) {
  return guarded(why, [&] {
    const Trailing &state = *static_cast<const Trailing *>(opaque);
    const Loops &loops = *variant().loops;
    const float *x = data_of<float>(call->inputs[0]), *scale = data_of<float>(call->inputs[1]);
    const float *bias = optional(call, state.n_inputs, 2);
    float *y = data_of<float>(call->outputs[0]);
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Moments moments = loops.moments(x + row * state.n, state.n, state.epsilon);
        loops.normalise(x + row * state.n, y + row * state.n, state.n, moments, scale, bias);
        put(call, state, 1, row, moments.mean);
        put(call, state, 2, row, moments.inverse);
      }
    });
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t rms_run(void *opaque, const xrt_call *call, xrt_text why) {
  return guarded(why, [&] {
    const Trailing &state = *static_cast<const Trailing *>(opaque);
    const Loops &loops = *variant().loops;
    const float *x = data_of<float>(call->inputs[0]), *scale = data_of<float>(call->inputs[1]);
    float *y = data_of<float>(call->outputs[0]);
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float inverse = loops.inverse_root_mean_square(x + row * state.n, state.n, state.epsilon);
        loops.normalise(x + row * state.n, y + row * state.n, state.n, {0.0F, inverse}, scale, nullptr);
      }
    });
    return static_cast<int32_t>(XRT_OK);
  });
}

// ---------------------------------------------------------------- over a channel or a group of them

int32_t channels_why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = all_float32(*node, why)) return status;
  if (node->n_inputs < 3) return refuse(why, "the node has no scale and bias");
  return statistics_in_float32(*node, why);
}

// Whether all inputs after the first have one element for each channel: with symbolic extents only a call tells.
bool have_channels(const xrt_node &node, int64_t channels) {
  for (int32_t i = 1; i < node.n_inputs; ++i)
    if (is_given(node.inputs[i]) && shape_of(node.inputs[i]) != Shape{channels}) return false;
  return true;
}

const char *const kChannels = "scale, bias and statistics must have one element for each channel";

int32_t instance_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return prepared(node, plan, why, [&](const Shape &shape, State &state) {
    if (shape.size() < 2) return refuse(why, "the tensor has no channels");
    if (!have_channels(*node, shape[1])) return refuse(why, kChannels);
    state.channels = shape[1];
    state.rows = shape[0] * shape[1];
    state.n = state.plane = product(shape, 2);
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t group_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return prepared(node, plan, why, [&](const Shape &shape, State &state) {
    const int64_t groups = int_of(*node, "num_groups", 0);
    if (shape.size() < 2 || groups < 1 || shape[1] % groups) return refuse(why, "num_groups does not divide the channels");
    if (!have_channels(*node, shape[1])) return refuse(why, kChannels);
    state.channels = shape[1];
    state.rows = shape[0] * groups;
    state.plane = product(shape, 2);
    state.n = shape[1] / groups * state.plane;
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t channels_run(void *opaque, const xrt_call *call, xrt_text why) {
  return ran(opaque, call, why, [&](const State &state, const float *x, float *y) {
    const Loops &loops = *variant().loops;
    const float *scale = data_of<float>(call->inputs[1]), *bias = data_of<float>(call->inputs[2]);
    const int64_t planes = state.plane ? state.n / state.plane : 0;
    in_parallel(call, state.rows, state.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Moments moments = loops.moments(x + row * state.n, state.n, state.epsilon);
        for (int64_t k = 0; k < planes; ++k) {
          const int64_t channel = (row * planes + k) % state.channels, at = row * state.n + k * state.plane;
          loops.normalise_evenly(x + at, y + at, state.plane, moments, scale[channel], bias[channel]);
        }
      }
    });
  });
}

// ---------------------------------------------------------------- by given statistics

int32_t batch_why_not(const xrt_node *node, xrt_text why) {
  if (const int32_t status = all_float32(*node, why)) return status;
  if (int_of(*node, "training_mode", 0) || node->n_outputs > 1) return refuse(why, "it serves inference, not training");
  return node->n_inputs < 5 ? refuse(why, "the node lacks inputs") : static_cast<int32_t>(XRT_OK);
}

int32_t batch_prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return prepared(node, plan, why, [&](const Shape &shape, State &state) {
    if (shape.size() < 2) return refuse(why, "the tensor has no channels");
    if (!have_channels(*node, shape[1])) return refuse(why, kChannels);
    state.channels = shape[1];
    state.rows = shape[0] * shape[1];
    state.n = product(shape, 2);
    return static_cast<int32_t>(XRT_OK);
  });
}

int32_t batch_run(void *opaque, const xrt_call *call, xrt_text why) {
  return ran(opaque, call, why, [&](const State &state, const float *x, float *y) {
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
                                        trailing_why_not, trailing_prepare, layer_run, destroy_trailing};
const xrt_kernel kRmsNormalization = {"rms_normalization_f32", "", "RMSNormalization", 23, 0, 1, XRT_CPU, 0, 1,
                                      trailing_why_not, trailing_prepare, rms_run, destroy_trailing};
const xrt_kernel kInstanceNormalization = {"instance_normalization_f32", "", "InstanceNormalization", 6, 0, 1, XRT_CPU, 0, 1,
                                           channels_why_not, instance_prepare, channels_run, destroy};
const xrt_kernel kGroupNormalization = {"group_normalization_f32", "", "GroupNormalization", 21, 0, 1, XRT_CPU, 0, 1,
                                        channels_why_not, group_prepare, channels_run, destroy};
const xrt_kernel kBatchNormalization = {"batch_normalization_f32", "", "BatchNormalization", 9, 0, 1, XRT_CPU, 0, 1,
                                        batch_why_not, batch_prepare, batch_run, destroy};

}  // namespace xrt
