// Softmax and LogSoftmax. Up to version 12 they are computed over all axes from `axis` on, since version 13 over `axis` alone.
#include <memory>

#include "node.h"
#include "table.h"
#include "variants.h"

namespace xrt {
namespace {

struct State {
  int64_t outer, n, inner;
  bool log;
};

int32_t why_not(const xrt_node *node, xrt_text why) { return check_first_input(*node, {kFloat32}, why); }

template <bool flattened, bool log>
int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return catch_errors(why, [&] {
    const Shape shape = shape_of(node->inputs[0]);
    const auto rank = static_cast<int64_t>(shape.size());
    const int64_t axis_attribute = int_of(*node, "axis", flattened ? 1 : -1);
    const int64_t axis = flattened && axis_attribute == rank ? rank : axis_of(axis_attribute, rank == 0 ? 1 : rank);
    if (axis < 0) return refuse(why, "axis " + std::to_string(axis_attribute) + " is out of range");
    const auto at = static_cast<size_t>(axis);
    const size_t end = flattened ? shape.size() : at + 1;
    plan->state = new State{product(shape, 0, at), product(shape, at, end), product(shape, end), log};
    set_output(plan->outputs[0], kFloat32, shape);
    return static_cast<int32_t>(XRT_OK);
  });
}

void run_rows(const State &state, const xrt_call *call) {
  const float *x = data_of<float>(call->inputs[0]);
  float *y = data_of<float>(call->outputs[0]);
  const auto loop = state.log ? variant().loops->log_softmax : variant().loops->softmax;
  in_parallel(call, state.outer, 2 * state.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) loop(x + i * state.n, y + i * state.n, state.n);
  });
}

// The axis is not the last: processes blocks of adjacent columns, whose width is a multiple of the register size.
void run_columns(const State &state, const xrt_call *call) {
  constexpr int64_t width = 64;
  const float *x = data_of<float>(call->inputs[0]);
  float *y = data_of<float>(call->outputs[0]);
  const auto loop = state.log ? variant().loops->log_softmax_columns : variant().loops->softmax_columns;
  const int64_t blocks = (state.inner + width - 1) / width;
  in_parallel(call, state.outer * blocks, 2 * width * state.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % blocks * width, at = i / blocks * state.n * state.inner + column;
      const int64_t left = state.inner - column;
      loop(x + at, y + at, state.n, state.inner, left < width ? left : width);
    }
  });
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    if (state.n == 0) return static_cast<int32_t>(XRT_OK);
    state.inner == 1 ? run_rows(state, call) : run_columns(state, call);
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

template <bool flattened, bool log>
constexpr xrt_kernel kernel(const char *name) {
  return {name,        "",      log ? "LogSoftmax" : "Softmax", flattened ? 1 : 13,        flattened ? 12 : 0, 1,
          XRT_CPU,     0,       1,                              why_not,                   prepare<flattened, log>,
          run,         destroy};
}

}  // namespace

const xrt_kernel kSoftmax = kernel<false, false>("softmax_f32");
const xrt_kernel kSoftmaxFlattened = kernel<true, false>("softmax_flattened_f32");
const xrt_kernel kLogSoftmax = kernel<false, true>("log_softmax_f32");
const xrt_kernel kLogSoftmaxFlattened = kernel<true, true>("log_softmax_flattened_f32");

}  // namespace xrt
