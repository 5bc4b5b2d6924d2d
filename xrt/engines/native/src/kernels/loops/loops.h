// What each variant offers, to be collected in its table.
#ifndef XRT_KERNELS_LOOPS_LOOPS_H
#define XRT_KERNELS_LOOPS_LOOPS_H

#include "../machine.h"

namespace xrt {
namespace XRT_ISA {

extern const Machine machine;

}  // namespace XRT_ISA
}  // namespace xrt

#endif
