// Transpose for elements of 1, 2, 4 or 8 bytes. Axes that stay adjacent are merged. If the last axis stays the last, rows are
// copied; otherwise planes are transposed in blocks that fit in the cache.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "node.h"
#include "table.h"

namespace xrt {
namespace {

struct State {
  std::vector<Axis> axes;  // the axes of the output, with their steps in the input
  size_t bytes;            // per element
};

std::vector<int64_t> permutation_of(const xrt_node &node, size_t rank) {
  std::vector<int64_t> permutation = ints_of(node, "perm");
  if (permutation.empty())
    for (size_t i = rank; i-- > 0;) permutation.push_back(static_cast<int64_t>(i));
  std::vector<bool> seen(rank);
  for (int64_t &axis : permutation) {
    axis = axis_of(axis, static_cast<int64_t>(rank));
    if (axis < 0 || permutation.size() != rank || seen[static_cast<size_t>(axis)])
      throw std::invalid_argument("perm is not a permutation of the axes");
    seen[static_cast<size_t>(axis)] = true;
  }
  return permutation;
}

std::vector<Axis> axes_of(const Shape &shape, const std::vector<int64_t> &permutation) {
  std::vector<Axis> axes;
  for (size_t i = permutation.size(); i-- > 0;) {
    const auto from = static_cast<size_t>(permutation[i]);
    const Axis axis{shape[from], product(shape, from + 1)};
    if (axis.extent == 1) continue;
    if (!axes.empty() && axis.step == axes.front().step * axes.front().extent) {
      axes.front().extent *= axis.extent;
    } else {
      axes.insert(axes.begin(), axis);
    }
  }
  if (axes.empty()) axes.push_back({1, 1});
  return axes;
}

int32_t why_not(const xrt_node *node, xrt_text why) {
  const xrt_dtype dtype = node->inputs[0].dtype;
  const bool fits = dtype.bits == 8 || dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64;
  return fits ? static_cast<int32_t>(XRT_OK) : refuse(why, "the kernel supports elements of 1, 2, 4 or 8 bytes");
}

int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return catch_errors(why, [&] {
    const Shape shape = shape_of(node->inputs[0]);
    const std::vector<int64_t> permutation = permutation_of(*node, shape.size());
    Shape result;
    for (int64_t axis : permutation) result.push_back(shape[static_cast<size_t>(axis)]);
    set_output(plan->outputs[0], node->inputs[0].dtype, result);
    plan->state = new State{axes_of(shape, permutation), bytes_of(node->inputs[0].dtype)};
    return static_cast<int32_t>(XRT_OK);
  });
}

// The last axis stays the last.
void copy_rows(const State &state, const xrt_call *call) {
  const std::vector<Axis> outer(state.axes.begin(), state.axes.end() - 1);
  const auto bytes = static_cast<size_t>(state.axes.back().extent) * state.bytes;
  const char *x = data_of<char>(call->inputs[0]);
  char *y = data_of<char>(call->outputs[0]);
  in_parallel(call, count_indices(outer), static_cast<int64_t>(bytes) / 8 + 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(y + static_cast<size_t>(i) * bytes, x + static_cast<size_t>(offset_of(outer, i)) * state.bytes, bytes);
  });
}

// The side of a block: the elements of a cache line.
template <class T>
constexpr int64_t kSide = 64 / static_cast<int64_t>(sizeof(T));

// Transposes a full block through a copy on the stack. So each cache line is accessed once; lines at large power-of-two distances
// would evict each other.
template <class T>
void transpose_full_block(const T *x, int64_t x_pitch, T *y, int64_t y_pitch) {
  T square[kSide<T>][kSide<T>];
  for (int64_t i = 0; i < kSide<T>; ++i) std::memcpy(square[i], x + i * x_pitch, sizeof square[i]);
  for (int64_t j = 0; j < kSide<T>; ++j) {
    T line[kSide<T>];
    for (int64_t i = 0; i < kSide<T>; ++i) line[i] = square[i][j];
    std::memcpy(y + j * y_pitch, line, sizeof line);
  }
}

// Transposes a block. Rows are `x_pitch` elements apart in x and `y_pitch` in y; `rows` and `columns` are those of x.
template <class T>
void transpose_block(const T *x, int64_t x_pitch, T *y, int64_t y_pitch, int64_t rows, int64_t columns) {
  if (rows == kSide<T> && columns == kSide<T>) return transpose_full_block(x, x_pitch, y, y_pitch);
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) y[j * y_pitch + i] = x[i * x_pitch + j];
}

// The last axis of the input is not the last of the output. Transposes the planes of these two axes. `across` is the axis of the
// output whose elements are contiguous in the input.
template <class T>
void transpose_planes(const State &state, const xrt_call *call) {
  std::vector<Axis> outer = state.axes;
  const Axis last = outer.back();
  outer.pop_back();
  const auto across = std::find_if(outer.begin(), outer.end(), [](const Axis &axis) { return axis.step == 1; });
  const Axis contiguous = *across;
  int64_t pitch = last.extent;  // distance between the elements of `across` in the output
  for (auto axis = across + 1; axis != outer.end(); ++axis) pitch *= axis->extent;
  const auto position = across - outer.begin();
  const std::vector<Axis> before(outer.begin(), outer.begin() + position), after(outer.begin() + position + 1, outer.end());
  constexpr int64_t side = kSide<T>;
  const int64_t bands = (contiguous.extent + side - 1) / side, inner = count_indices(after);
  const T *x = data_of<T>(call->inputs[0]);
  T *y = data_of<T>(call->outputs[0]);
  in_parallel(call, count_indices(before) * inner * bands, side * last.extent, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t band = item % bands * side, middle = item / bands % inner, lead = item / bands / inner;
      const T *from = x + offset_of(before, lead) + offset_of(after, middle) + band;
      T *to = y + lead * contiguous.extent * pitch + band * pitch + middle * last.extent;
      const int64_t columns = std::min(side, contiguous.extent - band);
      for (int64_t row = 0; row < last.extent; row += side)
        transpose_block(from + row * last.step, last.step, to + row, pitch, std::min(side, last.extent - row), columns);
    }
  });
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    if (size_of(call->outputs[0]) == 0) return static_cast<int32_t>(XRT_OK);
    if (state.axes.back().step == 1) {
      copy_rows(state, call);
      return static_cast<int32_t>(XRT_OK);
    }
    switch (state.bytes) {
      case 1: transpose_planes<uint8_t>(state, call); break;
      case 2: transpose_planes<uint16_t>(state, call); break;
      case 4: transpose_planes<uint32_t>(state, call); break;
      default: transpose_planes<uint64_t>(state, call); break;
    }
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

}  // namespace

const xrt_kernel kTranspose = {"transpose", "", "Transpose", 1, 0, 1, XRT_CPU, 0, 0, why_not, prepare, run, destroy};

}  // namespace xrt
