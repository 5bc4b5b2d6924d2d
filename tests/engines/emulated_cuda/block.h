// CUDA C++, as far as TVM generates it, as C++ of the host: the threads of a block are fibers that run from barrier to barrier.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

using std::isinf;
using std::isnan;

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF double(INFINITY)
#define CUDART_NAN double(NAN)

struct Extent {
  unsigned x, y, z;
};
static Extent blockIdx, threadIdx, gridDim, blockDim;

namespace emulated {
constexpr unsigned kThreads = 1024, kStack = 1 << 16;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  bool done;
};
inline std::vector<Fiber> fibers(kThreads);
inline ucontext_t home;
inline unsigned current;
inline std::function<void()> body;
inline uint64_t lanes[kThreads];

inline unsigned threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline void barrier() { swapcontext(&fibers[current].context, &home); }
inline void start() {
  body();
  fibers[current].done = true;
}
inline void begin(Fiber& fiber) {
  fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &home;
  makecontext(&fiber.context, start, 0);
}
inline bool resumed(unsigned thread) {
  if (fibers[thread].done) return false;
  current = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
  swapcontext(&home, &fibers[thread].context);
  return !fibers[thread].done;
}
inline void run_block() {
  for (unsigned thread = 0; thread < threads(); ++thread) begin(fibers[thread]);
  for (bool left = true; left;) {
    left = false;
    for (unsigned thread = 0; thread < threads(); ++thread) left |= resumed(thread);
  }
}

template <class... A, size_t... I>
void set_body(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  body = [=] { kernel(*static_cast<A*>(arguments[I])...); };
}
template <class... A>
void run(void (*kernel)(A...), const Extent* grid, const Extent* block, void** arguments) {
  emulated::set_body(kernel, arguments, std::index_sequence_for<A...>{});
  gridDim = *grid, blockDim = *block;
  for (unsigned z = 0; z < grid->z; ++z)
    for (unsigned y = 0; y < grid->y; ++y)
      for (unsigned x = 0; x < grid->x; ++x) blockIdx = {x, y, z}, run_block();
}

// What another thread of the block has; all of them must ask.
template <class T>
T of_thread(T mine, unsigned other) {
  const unsigned me = current;
  memcpy(&lanes[me], &mine, sizeof mine);
  barrier();
  T value;
  memcpy(&value, &lanes[other < threads() ? other : me], sizeof value);
  barrier();
  return value;
}
}  // namespace emulated

template <class T>
T max(T a, T b) { return std::isnan(double(a)) || a < b ? b : a; }
template <class T>
T min(T a, T b) { return std::isnan(double(a)) || b < a ? b : a; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline void __syncthreads() { emulated::barrier(); }
inline unsigned __activemask() { return ~0u; }
template <class T>
T __shfl_down_sync(unsigned, T mine, unsigned by, int width) {
  return emulated::of_thread(mine, emulated::current % width + by < unsigned(width) ? emulated::current + by : emulated::current);
}
template <class T>
T __shfl_sync(unsigned, T mine, unsigned lane, int width) {
  return emulated::of_thread(mine, emulated::current / width * width + lane % width);
}

template <class T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
};
template <class T>
struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) Four {
  T x, y, z, w;
};
#define VECTORS(T, name)                                              \
  using name##2 = Two<T>;                                             \
  using name##4 = Four<T>;                                            \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }          \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(double, double)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(int64_t, longlong)
VECTORS(short, short)
VECTORS(unsigned short, ushort)
VECTORS(signed char, char)
VECTORS(unsigned char, uchar)
