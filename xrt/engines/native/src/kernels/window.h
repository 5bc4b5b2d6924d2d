// The window of pools and convolutions, which slides over the spatial axes of (N, C, *spatial).
#pragma once

#include "loops.h"
#include "node.h"

namespace xrt {

// The window along one spatial axis.
struct WindowAxis {
  int64_t extent, kernel, stride, dilation;
  int64_t begin, end;    // padding that the window reads
  int64_t declared_end;  // padding at the end without the part that ceil_mode adds
  int64_t positions;     // extent of the output
  int64_t padded() const { return begin + extent + end; }
};

// A window and the layout of the padded planes that it reads. With a stride of s, each row of a plane is split into s phases:
// phase p has the elements p, p + s, p + 2 s, ... So the elements that a tap of the window reads at adjacent positions are
// contiguous.
class Window {
 public:
  // Reads the attributes; throws std::invalid_argument if they are invalid or the window does not fit in the padded tensor.
  Window(const xrt_node &node, const Shape &kernel, const Shape &spatial);

  const std::vector<WindowAxis> &axes() const { return axes_; }
  Shape positions() const;
  int64_t plane() const { return plane_; }          // elements of an input plane
  int64_t outputs() const { return outputs_; }      // elements of an output plane
  int64_t row() const { return axes_.back().positions; }
  int64_t rows() const { return outputs_ / (row() ? row() : 1); }
  int64_t layout_size() const { return layout_size_; }  // elements of a plane in this layout
  const std::vector<int64_t> &offsets() const { return offsets_; }  // of the taps, in the order of the weights

  // Copies a plane to this layout. The caller has filled `layout` with the padding.
  void lay_out(const float *plane, float *layout) const;
  // Returns the offset of the first element that the first position of a row of outputs reads.
  int64_t start_of(int64_t row) const;

 private:
  void find_offsets();
  void lay_out_row(const float *from, float *to) const;

  std::vector<WindowAxis> axes_;
  int64_t plane_ = 1, outputs_ = 1, layout_size_ = 0;
  int64_t phase_ = 0, pitch_ = 0;  // elements per phase and per row
  // The axes except the last, with steps in rows of the padded plane: by index of an input row, and of an output row.
  std::vector<Axis> input_rows_, output_rows_;
  int64_t first_row_ = 0;  // the padded row of the first input row
  std::vector<int64_t> offsets_;
};

}  // namespace xrt
