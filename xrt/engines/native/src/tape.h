// The native tape: a list of steps, each with a native kernel, that runs as one call. xrt/engines/native/tape.py is the only user
// of this interface.
//
// The caller describes a tape by its values, their storage, and the kernel of each step. A run uses a frame: memory for the
// intermediate values, and the tensors that are passed to kernels. It sets the addresses of arguments and results in the frame
// and runs the steps. Frames are reused, and several threads may run a tape at the same time.
#pragma once

#include "xrt/kernel.h"

extern "C" {

// The values of `xrt_tape_value.storage`: where a value is stored.
enum {
  XRT_ABSENT = 0,    // nowhere: an input that is left out, or an output that is not used
  XRT_CONSTANT = 1,  // at the address in its tensor
  XRT_ARGUMENT = 2,  // `location` is its index among the arguments of a run
  XRT_RESULT = 3,    // `location` is its index among the results of a run
  XRT_INNER = 4      // `location` is its offset in the frame's memory
};

typedef struct xrt_tape_value {
  xrt_tensor tensor;
  int32_t storage;
  int64_t location;
} xrt_tape_value;

typedef struct xrt_tape_step {
  const xrt_kernel *kernel;
  void *state;
  int64_t scratch;  // the offset of its scratch memory in the frame's memory; -1 for none
  int32_t n_inputs;
  const int32_t *inputs;  // indices of values
  int32_t n_outputs;
  const int32_t *outputs;
} xrt_tape_step;

typedef struct xrt_tape_layout {
  int32_t n_values;
  const xrt_tape_value *values;
  int32_t n_steps;
  const xrt_tape_step *steps;
  int32_t n_arguments;
  int32_t n_results;
  uint64_t memory;  // bytes of a frame, aligned to 64
  int32_t threads;
} xrt_tape_layout;

typedef struct xrt_tape xrt_tape;

// Creates a tape; returns NULL if there is not enough memory. The caller may free the layout afterwards. The memory that its
// tensors and steps point to (shapes, strides, constants, kernels, states) must stay valid until the tape is deleted.
XRT_EXPORT xrt_tape *xrt_tape_new(const xrt_tape_layout *layout);

// Runs the tape. Returns 0 on success, the 1-based index of the step that failed, or one of the codes below. If a step failed,
// xrt_tape_said returns the message of its kernel.
XRT_EXPORT int32_t xrt_tape_run(xrt_tape *tape, void *const *arguments, void *const *results);

enum {
  XRT_NO_MEMORY = -1,  // not enough memory for another frame
  XRT_UNALIGNED = -2   // an argument is not aligned for its type; no step was run
};

// Returns the error message of the last run on this thread; empty if no kernel wrote one.
XRT_EXPORT const char *xrt_tape_said(void);

// Deletes the tape, but not the states of kernels. No run may be in progress.
XRT_EXPORT void xrt_tape_delete(xrt_tape *tape);

// Returns the number of threads that the library has started.
XRT_EXPORT int32_t xrt_pool_workers(void);

}  // extern "C"
