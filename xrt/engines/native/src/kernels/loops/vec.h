// Vectors as wide as the registers of the instruction set, with the vector extensions of GCC and Clang.
//
// Each file of this folder is compiled once per instruction set, in a namespace that is named by XRT_ISA. The files use no
// function templates of the standard library: the linker would keep only one copy, which an older processor may not support.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef XRT_ISA
#error "XRT_ISA names the variant; see CMakeLists.txt"
#endif

namespace xrt {
namespace XRT_ISA {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif

// A vector of N elements of type T.
template <class T, int N>
struct VecOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

template <class T>
constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));

// A full register of T.
template <class T>
using Vec = typename VecOf<T, kLanes<T>>::type;

using VecF = Vec<float>;
using VecD = Vec<double>;
using VecI = Vec<int32_t>;
using VecU = Vec<uint32_t>;
using VecL = Vec<int64_t>;

// The result of a comparison: integers of the size of T, all ones for true and zero for false.
template <class T>
using Mask = Vec<decltype((Vec<T>{} < Vec<T>{})[0] + 0)>;

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits under another type");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
inline Vec<T> splat(T value) {
  return Vec<T>{} + value;
}
// For floats 0 + -0 is 0, so the bits are copied instead.
template <>
inline VecF splat<float>(float value) {
  return bits<VecF>(splat<int32_t>(bits<int32_t>(value)));
}
template <>
inline VecD splat<double>(double value) {
  return bits<VecD>(splat<int64_t>(bits<int64_t>(value)));
}

template <class V>
inline V load(const void *from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
inline void store(void *to, V v) {
  std::memcpy(to, &v, sizeof v);
}

// Loads `count` elements; the others are zero.
template <class T>
inline Vec<T> load_some(const T *from, int64_t count) {
  Vec<T> v = {};
  std::memcpy(&v, from, static_cast<size_t>(count) * sizeof(T));
  return v;
}

template <class T>
inline void store_some(T *to, Vec<T> v, int64_t count) {
  std::memcpy(to, &v, static_cast<size_t>(count) * sizeof(T));
}

template <class V, class M>
inline V select(M mask, V yes, V no) {
  return mask ? yes : no;
}

// Returns the value. The compiler cannot fuse the operation that computed it with a later one, so it is rounded.
template <class V>
inline V rounded(V v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  asm("" : "+m"(v));
#endif
  return v;
}

// The elements of one register, converted to a type of twice the size: the first half, and the second half.
template <class T>
struct Pair {
  Vec<T> low, high;
};

template <class T>
using Half = typename VecOf<T, kLanes<T> / 2>::type;

// Convert between four-byte and eight-byte elements.
template <class Wide, class Narrow>
inline Pair<Wide> widen(Vec<Narrow> v) {
  Half<Narrow> half[2];
  std::memcpy(half, &v, sizeof v);
  return {__builtin_convertvector(half[0], Vec<Wide>), __builtin_convertvector(half[1], Vec<Wide>)};
}

template <class Narrow, class Wide>
inline Vec<Narrow> narrow(Vec<Wide> low, Vec<Wide> high) {
  const Half<Narrow> half[2] = {__builtin_convertvector(low, Half<Narrow>), __builtin_convertvector(high, Half<Narrow>)};
  Vec<Narrow> v;
  std::memcpy(&v, half, sizeof v);
  return v;
}

// Combines all elements of a vector, in a fixed order: first its halves, then their halves, and so on.
template <class T, class F>
inline T fold(Vec<T> v, F combine) {
  T part[kLanes<T>];
  std::memcpy(part, &v, sizeof v);
  for (int width = kLanes<T> / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = combine(part[i], part[i + width]);
  return part[0];
}

}  // namespace XRT_ISA
}  // namespace xrt
