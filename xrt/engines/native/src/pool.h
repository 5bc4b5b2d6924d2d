// XRT's own threads: one pool for the process, whose workers sleep when there is nothing to do.
#ifndef XRT_POOL_H
#define XRT_POOL_H

#include <cstdint>

#include "xrt/kernel.h"

namespace xrt {

// Calls `body` on parts of [0, items) that together are all of it, each a multiple of `grain` long but for the last, on at
// most `threads` threads, the calling one among them. Returns when all are done. Any number of threads may call at once:
// they share the workers, and each does its own work where no worker is free. From within a body it does the work in one.
void parallel(int threads, int64_t items, int64_t grain, xrt_body body, void *argument);

// Returns how many threads the pool has beside those that call it: one less than the largest budget that was ever used.
int workers();

}  // namespace xrt

#endif
