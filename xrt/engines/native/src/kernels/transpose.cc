// Transpose of elements of 1, 2, 4 or 8 bytes. Axes that stay together are one; what is left is either rows that move as
// they are, or planes that are turned block by block so that both sides stay in the cache.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "node.h"
#include "table.h"

namespace xrt {
namespace {

struct Axis {
  int64_t extent, step;  // step in the input, in elements
};

struct State {
  std::vector<Axis> axes;  // of the output, outermost first
  size_t bytes;            // of one element
};

std::vector<int64_t> permutation_of(const xrt_node &node, size_t rank) {
  std::vector<int64_t> permutation = ints_of(node, "perm");
  if (permutation.empty())
    for (size_t i = rank; i-- > 0;) permutation.push_back(static_cast<int64_t>(i));
  std::vector<bool> seen(rank);
  for (int64_t &axis : permutation) {
    axis = axis_of(axis, static_cast<int64_t>(rank));
    if (axis < 0 || permutation.size() != rank || seen[static_cast<size_t>(axis)])
      throw std::invalid_argument("perm is no permutation of the tensor's axes");
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
  return fits ? static_cast<int32_t>(XRT_OK) : refuse(why, "it takes elements of 1, 2, 4 or 8 bytes");
}

int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return guarded(why, [&] {
    const Shape shape = shape_of(node->inputs[0]);
    const std::vector<int64_t> permutation = permutation_of(*node, shape.size());
    Shape result;
    for (int64_t axis : permutation) result.push_back(shape[static_cast<size_t>(axis)]);
    announce(plan->outputs[0], node->inputs[0].dtype, result);
    plan->state = new State{axes_of(shape, permutation), bytes_of(node->inputs[0].dtype)};
    return static_cast<int32_t>(XRT_OK);
  });
}

// Where in the input the outer axes, all but the last `inner`, put an index of the output.
int64_t place_of(const std::vector<Axis> &axes, size_t outer, int64_t index) {
  int64_t place = 0;
  for (size_t i = outer; i-- > 0;) {
    place += index % axes[i].extent * axes[i].step;
    index /= axes[i].extent;
  }
  return place;
}

int64_t extent_of(const std::vector<Axis> &axes, size_t outer) {
  int64_t total = 1;
  for (size_t i = 0; i < outer; ++i) total *= axes[i].extent;
  return total;
}

// The last axis stays the last: rows move as they are.
void move_rows(const State &state, const xrt_call *call) {
  const size_t outer = state.axes.size() - 1;
  const auto bytes = static_cast<size_t>(state.axes[outer].extent) * state.bytes;
  const char *x = data_of<char>(call->inputs[0]);
  char *y = data_of<char>(call->outputs[0]);
  in_parallel(call, extent_of(state.axes, outer), static_cast<int64_t>(bytes) / 8 + 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(y + static_cast<size_t>(i) * bytes, x + static_cast<size_t>(place_of(state.axes, outer, i)) * state.bytes, bytes);
  });
}

// Elements of a cache line: the side of a square that is read and written line by line.
template <class T>
constexpr int64_t kSide = 64 / static_cast<int64_t>(sizeof(T));

// A square by way of one on the stack, so that lines far apart, which crowd each other out, are touched once.
template <class T>
void turn_square(const T *x, int64_t x_pitch, T *y, int64_t y_pitch) {
  T square[kSide<T>][kSide<T>];
  for (int64_t i = 0; i < kSide<T>; ++i) std::memcpy(square[i], x + i * x_pitch, sizeof square[i]);
  for (int64_t j = 0; j < kSide<T>; ++j) {
    T line[kSide<T>];
    for (int64_t i = 0; i < kSide<T>; ++i) line[i] = square[i][j];
    std::memcpy(y + j * y_pitch, line, sizeof line);
  }
}

// Rows of x, `x_pitch` elements apart, become columns of y.
template <class T>
void turn(const T *x, int64_t x_pitch, T *y, int64_t y_pitch, int64_t rows, int64_t columns) {
  if (rows == kSide<T> && columns == kSide<T>) return turn_square(x, x_pitch, y, y_pitch);
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) y[j * y_pitch + i] = x[i * x_pitch + j];
}

// The input's last axis is another than the output's: planes of the two are turned. In the output, axis `across` is the
// one whose elements lie side by side in the input.
template <class T>
void turn_planes(const State &state, const xrt_call *call) {
  std::vector<Axis> outer = state.axes;
  const Axis last = outer.back();
  outer.pop_back();
  const auto across = std::find_if(outer.begin(), outer.end(), [](const Axis &axis) { return axis.step == 1; });
  const Axis turned = *across;
  int64_t pitch = last.extent;  // of axis `across` in the output
  for (auto axis = across + 1; axis != outer.end(); ++axis) pitch *= axis->extent;
  const auto position = across - outer.begin();
  const std::vector<Axis> before(outer.begin(), outer.begin() + position), after(outer.begin() + position + 1, outer.end());
  constexpr int64_t side = kSide<T>;
  const int64_t bands = (turned.extent + side - 1) / side, inner = extent_of(after, after.size());
  const T *x = data_of<T>(call->inputs[0]);
  T *y = data_of<T>(call->outputs[0]);
  in_parallel(call, extent_of(before, before.size()) * inner * bands, side * last.extent, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t band = item % bands * side, middle = item / bands % inner, lead = item / bands / inner;
      const T *from = x + place_of(before, before.size(), lead) + place_of(after, after.size(), middle) + band;
      T *to = y + lead * turned.extent * pitch + band * pitch + middle * last.extent;
      const int64_t columns = std::min(side, turned.extent - band);
      for (int64_t row = 0; row < last.extent; row += side)
        turn(from + row * last.step, last.step, to + row, pitch, std::min(side, last.extent - row), columns);
    }
  });
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return guarded(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    if (size_of(call->outputs[0]) == 0) return static_cast<int32_t>(XRT_OK);
    if (state.axes.back().step == 1) {
      move_rows(state, call);
      return static_cast<int32_t>(XRT_OK);
    }
    switch (state.bytes) {
      case 1: turn_planes<uint8_t>(state, call); break;
      case 2: turn_planes<uint16_t>(state, call); break;
      case 4: turn_planes<uint32_t>(state, call); break;
      default: turn_planes<uint64_t>(state, call); break;
    }
    return static_cast<int32_t>(XRT_OK);
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

}  // namespace

const xrt_kernel kTranspose = {"transpose", "", "Transpose", 1, 0, 1, XRT_CPU, 0, 0, why_not, prepare, run, destroy};

}  // namespace xrt
