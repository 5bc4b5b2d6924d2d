// The variants of the loops, one per instruction set, and the choice between them.
#ifndef XRT_KERNELS_VARIANTS_H
#define XRT_KERNELS_VARIANTS_H

#include "loops.h"
#include "machine.h"

namespace xrt {

struct Variant {
  const char *name;
  const Machine *machine;
  const Loops *loops;
};

// The best one that this processor runs; XRT_NATIVE_ISA in the environment names a lesser one. Chosen once.
const Variant &variant();

}  // namespace xrt

#endif
