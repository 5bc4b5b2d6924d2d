// Vectors of the widest registers that this variant may use, on GCC's and Clang's vector extensions.
//
// Every file of this folder is compiled once per variant, with XRT_ISA as the name of its namespace. To keep code of one
// variant out of the others, nothing here uses templates of the standard library: the linker would keep one copy of each.
#ifndef XRT_KERNELS_LOOPS_VEC_H
#define XRT_KERNELS_LOOPS_VEC_H

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

// N elements of T side by side.
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

// The integer that compares of T give, element by element: all ones or zero.
template <class T>
struct MaskOf {
  using type = int32_t;
};
template <>
struct MaskOf<double> {
  using type = int64_t;
};
template <>
struct MaskOf<int64_t> {
  using type = int64_t;
};
template <class T>
using Mask = Vec<typename MaskOf<T>::type>;

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
// Zero plus minus zero is zero: the sign needs another way.
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

// The first `count` elements, and zeroes.
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

// The value itself, as one that no later operation is contracted with: what made it has been rounded.
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

// Two registers' worth of a wider type, the lower elements first.
template <class T>
struct Pair {
  Vec<T> low, high;
};

template <class T>
using Half = typename VecOf<T, kLanes<T> / 2>::type;

// Four-byte elements as eight-byte ones, and back.
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

// Added up, multiplied, ... within the register, in a fixed order: halves, quarters, and so on.
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

#endif
