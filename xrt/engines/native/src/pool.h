// XRT's thread pool, one per process. Its workers sleep while there is no work.
#pragma once

#include <cstdint>

#include "xrt/kernel.h"

namespace xrt {

// Divides [0, items) into ranges and calls `body` for each, on at most `threads` threads including the calling one. Returns when
// all are done. The length of each range except the last is a multiple of `grain`. Several threads may call it at the same time
// and share the workers; a caller processes ranges that no worker is free for. A call from within a body uses only its own
// thread.
void parallel(int threads, int64_t items, int64_t grain, xrt_body body, void *argument);

// Returns the number of workers. A call with a budget of n threads increases it to n - 1 if it is smaller.
int workers();

}  // namespace xrt
