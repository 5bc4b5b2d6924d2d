// The native tape: a Function whose kernels are all native, as a straight line. Between this file and xrt/engines/native/
// tape.py only; kernels and their authors see none of it.
//
// A tape is laid out by the caller: which values there are and where each lives, and which kernel each step runs. A run is
// one call: it takes a frame (memory for the values in between, and the tensors that kernels are given), fills in where
// arguments and results lie, and runs the steps. Frames are used again; any number of threads may run a tape at once.
#ifndef XRT_TAPE_H
#define XRT_TAPE_H

#include "xrt/kernel.h"

extern "C" {

// Where a value lives.
enum {
  XRT_ABSENT = 0,    // nowhere: an input that is left out, an output that nobody wants
  XRT_CONSTANT = 1,  // where its tensor says
  XRT_ARGUMENT = 2,  // `place` is its number among the arguments of a run
  XRT_RESULT = 3,    // likewise among the results
  XRT_INNER = 4      // `place` is its offset in the frame's memory
};

typedef struct xrt_tape_value {
  xrt_tensor tensor;
  int32_t home;
  int64_t place;
} xrt_tape_value;

typedef struct xrt_tape_step {
  const xrt_kernel *kernel;
  void *state;
  int64_t scratch;  // the offset of its scratch in the frame's memory; -1 for none
  int32_t n_inputs;
  const int32_t *inputs;  // numbers of values
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

// Returns a tape, or NULL when there is no memory for it. The layout may go afterwards; what its pointers in tensors and
// steps lead to (shapes, strides, constants, kernels, states) must stay until the tape is deleted.
XRT_EXPORT xrt_tape *xrt_tape_new(const xrt_tape_layout *layout);

// Runs the tape. Returns 0 when all is well; the number of the step that failed, counted from 1; or one of those below. What
// the kernel said is then read with xrt_tape_said.
XRT_EXPORT int32_t xrt_tape_run(xrt_tape *tape, void *const *arguments, void *const *results);

enum {
  XRT_NO_MEMORY = -1,  // for another frame
  XRT_UNALIGNED = -2   // an argument does not lie where its type may lie; nothing was run
};

// Returns the text of the last failure on this thread.
XRT_EXPORT const char *xrt_tape_said(void);

// Returns how many frames the tape has made so far: as many as runs were under way at once.
XRT_EXPORT int64_t xrt_tape_frames(const xrt_tape *tape);

// Gives everything back but the states of kernels. No run may be under way.
XRT_EXPORT void xrt_tape_delete(xrt_tape *tape);

// Returns how many threads of its own the library has started, beside those that call it.
XRT_EXPORT int32_t xrt_pool_workers(void);

}  // extern "C"

#endif
