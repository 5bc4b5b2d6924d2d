// Selects the code for the processor: the loops and the elementwise machine are compiled once per instruction set.
#pragma once

#include "loops.h"
#include "machine.h"

namespace xrt {

struct Variant {
  const char *name;
  const Machine *machine;
  const Loops *loops;
};

// The best variant that the processor supports, or the one that the environment variable XRT_NATIVE_ISA names. Chosen once.
const Variant &variant();

}  // namespace xrt
