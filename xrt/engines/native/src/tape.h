// The native tape runs a Function whose kernels are all native, as one list of steps. Only xrt/engines/native/tape.py uses
// this interface; kernels do not see it.
//
// The caller describes a tape: its values, where each is stored, and the kernel of each step. A run is one call. It takes a
// frame (memory for the intermediate values, and the tensors that are passed to kernels), fills in the addresses of arguments
// and results, and runs the steps. Frames are reused; any number of threads may run a tape at once.
#ifndef XRT_TAPE_H
#define XRT_TAPE_H

#include "xrt/kernel.h"

extern "C" {

// Where a value is stored: the meaning of `xrt_tape_value.storage`.
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
  int64_t scratch;  // the offset of its scratch in the frame's memory; -1 for none
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

// Returns a tape, or NULL when there is no memory for it. The caller may free the layout afterwards, but not what its tensors
// and steps point to (shapes, strides, constants, kernels, states): that must stay until the tape is deleted.
XRT_EXPORT xrt_tape *xrt_tape_new(const xrt_tape_layout *layout);

// Runs the tape. Returns 0 on success, the number of the step that failed (counted from 1), or one of the codes below. Then
// xrt_tape_said returns the kernel's message.
XRT_EXPORT int32_t xrt_tape_run(xrt_tape *tape, void *const *arguments, void *const *results);

enum {
  XRT_NO_MEMORY = -1,  // not enough memory for another frame
  XRT_UNALIGNED = -2   // an argument is not aligned for its type; nothing was run
};

// Returns the message of the last failure on this thread.
XRT_EXPORT const char *xrt_tape_said(void);

// Returns the number of frames that the tape has allocated: the maximum number of simultaneous runs so far.
XRT_EXPORT int64_t xrt_tape_frames(const xrt_tape *tape);

// Frees everything except the states of kernels. No run may be in progress.
XRT_EXPORT void xrt_tape_delete(xrt_tape *tape);

// Returns the number of threads that the library has started itself.
XRT_EXPORT int32_t xrt_pool_workers(void);

}  // extern "C"

#endif
