#include "tape.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "pool.h"

namespace {

constexpr size_t kAlignment = 64;

thread_local char last_error[1024];

void run_parallel(const xrt_call *call, int64_t items, int64_t grain, xrt_body body, void *argument) {
  xrt::parallel(call->threads, items, grain, body, argument);
}

struct FreeDeleter {
  void operator()(char *memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, FreeDeleter>;

Memory allocate_aligned(uint64_t bytes) {
  // aligned_alloc requires a multiple of the alignment.
  const uint64_t rounded_up = (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void *memory = std::aligned_alloc(kAlignment, rounded_up);
  if (memory == nullptr) throw std::bad_alloc();
  return Memory(static_cast<char *>(memory));
}

// The memory of one run: the intermediate values, and the tensors and the call structure of each step.
struct Frame {
  Memory memory;
  std::vector<xrt_tensor> tensors;
  std::vector<xrt_call> calls;
};

// The idle frames of a tape. It has no lock, because a child that is forked while another thread holds a lock could never acquire
// it. There are always at least `count_` frames in the slots, so a thread that has decremented `count_` will find one.
class FramePool {
 public:
  // Removes a frame and returns it; nullptr if there is none.
  std::unique_ptr<Frame> acquire() {
    int count = count_.load(std::memory_order_relaxed);
    do {
      if (count == 0) return nullptr;
    } while (!count_.compare_exchange_weak(count, count - 1, std::memory_order_acquire, std::memory_order_relaxed));
    for (size_t i = 0;; i = (i + 1) % kMaxIdleFrames) {
      if (Frame *frame = slots_[i].exchange(nullptr, std::memory_order_acquire)) return std::unique_ptr<Frame>(frame);
    }
  }

  // Adds a frame, or deletes it if all slots are full.
  void release(std::unique_ptr<Frame> frame) {
    for (std::atomic<Frame *> &slot : slots_) {
      Frame *empty = nullptr;
      if (!slot.compare_exchange_strong(empty, frame.get(), std::memory_order_release, std::memory_order_relaxed)) continue;
      frame.release();
      count_.fetch_add(1, std::memory_order_release);
      return;
    }
  }

  ~FramePool() {
    for (std::atomic<Frame *> &slot : slots_) delete slot.load();
  }

 private:
  static constexpr size_t kMaxIdleFrames = 64;
  std::atomic<Frame *> slots_[kMaxIdleFrames] = {};
  std::atomic<int> count_{0};
};

// The tensors of a frame that are views of the same argument or result, by index.
struct Binding {
  std::vector<size_t> tensors;
  uintptr_t alignment = 1;
};

uintptr_t alignment_of(const xrt_dtype &type) {
  // A complex number has the alignment of its real part.
  const uintptr_t bytes = type.bits / 8u * type.lanes;
  return std::max<uintptr_t>(type.code == XRT_COMPLEX ? bytes / 2 : bytes, 1);
}

}  // namespace

struct xrt_tape {
 public:
  explicit xrt_tape(const xrt_tape_layout &layout)
      : memory_(layout.memory), threads_(layout.threads), arguments_(layout.n_arguments), results_(layout.n_results) {
    steps_.reserve(layout.n_steps);
    for (int32_t i = 0; i < layout.n_steps; ++i) add(layout, layout.steps[i]);
  }

  int32_t run(void *const *arguments, void *const *results) {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (reinterpret_cast<uintptr_t>(arguments[i]) % arguments_[i].alignment != 0) return XRT_UNALIGNED;
    }
    std::unique_ptr<Frame> frame = frames_.acquire();
    if (frame == nullptr) frame = make_frame();
    bind(*frame, arguments_, arguments);
    bind(*frame, results_, results);
    const int32_t status = run_steps(*frame);
    frames_.release(std::move(frame));
    return status;
  }

 private:
  struct Step {
    const xrt_kernel *kernel;
    void *state;
    int64_t scratch;
    size_t first_tensor;  // its tensors are in this order: inputs, outputs
    int32_t n_inputs;
  };
  struct Inner {
    size_t tensor;
    int64_t offset;
  };

  void add(const xrt_tape_layout &layout, const xrt_tape_step &step) {
    steps_.push_back({step.kernel, step.state, step.scratch, tensors_.size(), step.n_inputs});
    for (int32_t i = 0; i < step.n_inputs; ++i) add(layout.values[step.inputs[i]]);
    for (int32_t i = 0; i < step.n_outputs; ++i) add(layout.values[step.outputs[i]]);
  }

  void add(const xrt_tape_value &value) {
    const size_t index = tensors_.size();
    if (value.storage == XRT_ARGUMENT) {
      arguments_[value.location].tensors.push_back(index);
      arguments_[value.location].alignment = alignment_of(value.tensor.dtype);
    }
    if (value.storage == XRT_RESULT) results_[value.location].tensors.push_back(index);
    if (value.storage == XRT_INNER) inner_.push_back({index, value.location});
    tensors_.push_back(value.tensor);
  }

  std::unique_ptr<Frame> make_frame() {
    auto frame = std::make_unique<Frame>();
    frame->memory = allocate_aligned(memory_);
    frame->tensors = tensors_;
    char *memory = frame->memory.get();
    for (const Inner &inner : inner_) frame->tensors[inner.tensor].data = memory + inner.offset;
    frame->calls.reserve(steps_.size());
    for (const Step &step : steps_) {
      xrt_tensor *first = frame->tensors.data() + step.first_tensor;
      char *scratch = step.scratch < 0 ? nullptr : memory + step.scratch;
      frame->calls.push_back({first, first + step.n_inputs, scratch, threads_, run_parallel, nullptr});
    }
    return frame;
  }

  static void bind(Frame &frame, const std::vector<Binding> &bindings, void *const *addresses) {
    for (size_t i = 0; i < bindings.size(); ++i) {
      for (const size_t tensor : bindings[i].tensors) frame.tensors[tensor].data = addresses[i];
    }
  }

  int32_t run_steps(const Frame &frame) const {
    for (size_t i = 0; i < steps_.size(); ++i) {
      const int32_t status = steps_[i].kernel->run(steps_[i].state, &frame.calls[i], {last_error, sizeof last_error});
      if (status != XRT_OK) return static_cast<int32_t>(i) + 1;
    }
    return 0;
  }

  const uint64_t memory_;
  const int32_t threads_;
  std::vector<Binding> arguments_;
  std::vector<Binding> results_;
  std::vector<Step> steps_;
  std::vector<xrt_tensor> tensors_;
  std::vector<Inner> inner_;
  FramePool frames_;
};

xrt_tape *xrt_tape_new(const xrt_tape_layout *layout) {
  try {
    return new xrt_tape(*layout);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

int32_t xrt_tape_run(xrt_tape *tape, void *const *arguments, void *const *results) {
  last_error[0] = '\0';
  try {
    return tape->run(arguments, results);
  } catch (const std::bad_alloc &) {
    return XRT_NO_MEMORY;
  }
}

const char *xrt_tape_said(void) { return last_error; }

void xrt_tape_delete(xrt_tape *tape) { delete tape; }

int32_t xrt_pool_workers(void) { return xrt::workers(); }
