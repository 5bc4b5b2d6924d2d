// The geometry that pools and convolutions share: a window that slides over the spatial axes of (N, C, *spatial).
#ifndef XRT_KERNELS_WINDOW_H
#define XRT_KERNELS_WINDOW_H

#include "loops.h"
#include "node.h"

namespace xrt {

// One spatial axis.
struct WindowAxis {
  int64_t extent, kernel, stride, dilation;
  int64_t begin, end;         // padding that the window reads
  int64_t declared_end;       // without what rounding up the number of positions adds
  int64_t positions;
  int64_t padded() const { return begin + extent + end; }
};

// A padded plane, laid out so that the elements which one place of the window sees at neighbouring positions lie side by
// side: each row of the last axis is split into as many phases as the stride has steps.
class Window {
 public:
  // Reads the attributes; throws std::invalid_argument where the window does not fit into the padded tensor.
  Window(const xrt_node &node, const Shape &kernel, const Shape &spatial);

  const std::vector<WindowAxis> &axes() const { return axes_; }
  Shape positions() const;
  int64_t plane() const { return plane_; }          // elements of an input plane
  int64_t outputs() const { return outputs_; }      // elements of an output plane
  int64_t row() const { return axes_.back().positions; }
  int64_t rows() const { return outputs_ / (row() ? row() : 1); }
  int64_t room() const { return room_; }            // floats that a laid-out plane takes
  const std::vector<int64_t> &offsets() const { return offsets_; }  // of the window's places, in the order of weights

  // Lays a plane out; the padding is there already.
  void lay_out(const float *plane, float *room) const;
  // Where the first output of a row of outputs finds its first element.
  int64_t start_of(int64_t row) const;

 private:
  void find_offsets();
  int64_t padded_row_of(int64_t row) const;
  void lay_out_row(const float *from, float *to) const;

  std::vector<WindowAxis> axes_;
  int64_t plane_ = 1, outputs_ = 1, room_ = 0;
  int64_t phase_ = 0, pitch_ = 0;  // elements of a phase, and of a row
  std::vector<int64_t> offsets_;
};

}  // namespace xrt

#endif
