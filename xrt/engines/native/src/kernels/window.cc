#include "window.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "variants.h"

namespace xrt {
namespace {

constexpr int64_t kSlack = 128;  // floats that a loop may read beyond the last output of the last row

int64_t entry(const std::vector<int64_t> &list, size_t i, int64_t fallback) { return i < list.size() ? list[i] : fallback; }

// Computes the padding and the number of positions of an axis, as ONNX defines them.
void set_padding(WindowAxis &axis, const std::string &auto_pad, bool round_up) {
  const int64_t span = (axis.kernel - 1) * axis.dilation + 1;
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
    axis.positions = (axis.extent + axis.stride - 1) / axis.stride;
    const int64_t total = std::max<int64_t>(0, (axis.positions - 1) * axis.stride + span - axis.extent);
    axis.begin = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    axis.end = axis.declared_end = total - axis.begin;
    return;
  }
  if (auto_pad == "VALID") axis.begin = axis.end = 0;
  axis.declared_end = axis.end;
  const int64_t space = axis.extent + axis.begin + axis.end - span;
  axis.positions = (space < 0 ? space - axis.stride + 1 : space) / axis.stride + 1;  // rounded down
  // ceil_mode adds a position, unless its window would start in the padding at the end.
  const bool more = round_up && auto_pad != "VALID" && space % axis.stride;
  if (more && axis.positions * axis.stride < axis.extent + axis.begin) ++axis.positions;
  if (axis.positions < 1) throw std::invalid_argument("the window does not fit into the padded tensor");
  axis.end = std::max(axis.end, (axis.positions - 1) * axis.stride + span - axis.extent - axis.begin);
}

}  // namespace

Window::Window(const xrt_node &node, const Shape &kernel, const Shape &spatial) {
  const std::vector<int64_t> strides = ints_of(node, "strides"), dilations = ints_of(node, "dilations"),
                             pads = ints_of(node, "pads");
  const size_t rank = kernel.size();
  if (rank == 0 || rank != spatial.size()) throw std::invalid_argument("kernel_shape does not have the tensor's spatial rank");
  for (size_t i = 0; i < rank; ++i) {
    WindowAxis axis{spatial[i], kernel[i], entry(strides, i, 1), entry(dilations, i, 1), entry(pads, i, 0),
                    entry(pads, i + rank, 0), 0, 0};
    if (axis.kernel < 1 || axis.stride < 1 || axis.dilation < 1 || axis.begin < 0 || axis.end < 0)
      throw std::invalid_argument("kernel_shape, strides and dilations must be positive, pads not negative");
    set_padding(axis, string_of(node, "auto_pad", "NOTSET"), int_of(node, "ceil_mode", 0) != 0);
    axes_.push_back(axis);
    plane_ *= axis.extent;
    outputs_ *= axis.positions;
  }
  phase_ = (axes_.back().padded() + axes_.back().stride - 1) / axes_.back().stride;
  pitch_ = phase_ * axes_.back().stride;
  int64_t rows = 1;  // of the padded plane
  for (size_t i = rank - 1; i-- > 0;) {
    input_rows_.insert(input_rows_.begin(), {axes_[i].extent, rows});
    output_rows_.insert(output_rows_.begin(), {axes_[i].positions, axes_[i].stride * rows});
    first_row_ += axes_[i].begin * rows;
    rows *= axes_[i].padded();
  }
  layout_size_ = rows * pitch_ + kSlack;
  find_offsets();
}

Shape Window::positions() const {
  Shape positions;
  for (const WindowAxis &axis : axes_) positions.push_back(axis.positions);
  return positions;
}

// The offset of a tap is the index of its padded row times the pitch, plus the offset in the row by phase.
void Window::find_offsets() {
  offsets_.assign(1, 0);
  for (const WindowAxis &axis : axes_) {
    const bool is_last = &axis == &axes_.back();
    std::vector<int64_t> next;
    for (int64_t before : offsets_)
      for (int64_t k = 0; k < axis.kernel; ++k) {
        const int64_t at = k * axis.dilation;
        const int64_t in_row = at % axis.stride * phase_ + at / axis.stride;
        next.push_back(is_last ? before * pitch_ + in_row : before * axis.padded() + at);
      }
    offsets_ = next;
  }
}

int64_t Window::start_of(int64_t row) const { return offset_of(output_rows_, row) * pitch_; }

void Window::lay_out(const float *plane, float *layout) const {
  const WindowAxis &last = axes_.back();
  const int64_t rows = last.extent ? plane_ / last.extent : 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t padded_row = first_row_ + offset_of(input_rows_, row);
    lay_out_row(plane + row * last.extent, layout + padded_row * pitch_);
  }
}

void Window::lay_out_row(const float *from, float *to) const {
  const WindowAxis &last = axes_.back();
  if (last.stride == 1) {
    std::memcpy(to + last.begin, from, static_cast<size_t>(last.extent) * sizeof(float));
    return;
  }
  int64_t done = 0;
  if (last.stride == 2) {
    // If the padding at the begin is odd, elements at even indices belong to the odd phase.
    const int64_t pairs = last.extent / 2, odd = last.begin % 2;
    float *const first = to + odd * phase_ + last.begin / 2, *const second = to + (1 - odd) * phase_ + (last.begin + 1) / 2;
    variant().loops->split(from, first, second, pairs);
    done = 2 * pairs;
  }
  for (int64_t i = done; i < last.extent; ++i) {
    const int64_t padded = last.begin + i;
    to[padded % last.stride * phase_ + padded / last.stride] = from[i];
  }
}

}  // namespace xrt
