#include "variants.h"

#include <cstdlib>
#include <cstring>

namespace xrt {

#define XRT_VARIANT(ISA)          \
  namespace ISA {                 \
  extern const Machine machine;   \
  extern const Loops loops;       \
  }

XRT_VARIANT(base)
#ifdef XRT_HAS_AVX2
XRT_VARIANT(avx2)
#endif
#ifdef XRT_HAS_AVX512
XRT_VARIANT(avx512)
#endif

namespace {

struct Choice {
  Variant variant;
  bool (*runs_here)();
};

// Best first.
const Choice kChoices[] = {
#ifdef XRT_HAS_AVX512
    {{"avx512", &avx512::machine, &avx512::loops},
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2");
     }},
#endif
#ifdef XRT_HAS_AVX2
    {{"avx2", &avx2::machine, &avx2::loops},
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"); }},
#endif
    {{"base", &base::machine, &base::loops}, [] { return true; }},
};

const Variant &choose() {
  const char *wanted = std::getenv("XRT_NATIVE_ISA");
  const Choice *best = nullptr;
  for (const Choice &choice : kChoices) {
    if (!choice.runs_here()) continue;
    if (!best) best = &choice;
    if (wanted && std::strcmp(wanted, choice.variant.name) == 0) return choice.variant;
  }
  return best->variant;
}

}  // namespace

const Variant &variant() {
  static const Variant &chosen = choose();
  return chosen;
}

}  // namespace xrt
