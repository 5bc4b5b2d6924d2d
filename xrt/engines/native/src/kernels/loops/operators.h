// What each elementwise operator does to a vector. An operator without parameters is a function. An operator with parameters is
// a class that is constructed from its step, which holds the parameters. The semantics are those of ONNX;
// xrt/engines/kernels/elementwise.py implements the same operators in Python.
#pragma once

#include "../machine.h"
#include "functions.h"

namespace xrt {
namespace XRT_ISA {

// ---------------------------------------------------------------- arithmetic

template <class T>
constexpr bool kIsInteger = static_cast<T>(0.5) == 0;

// Integers are computed as unsigned numbers, for which overflow is defined: it wraps around.
template <class T>
struct Wrapping {
  using type = T;
};
template <>
struct Wrapping<int32_t> {
  using type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
  using type = uint64_t;
};
template <class T>
using Arithmetic = Vec<typename Wrapping<T>::type>;

template <class T>
Vec<T> add(Vec<T> a, Vec<T> b) {
  return bits<Vec<T>>(bits<Arithmetic<T>>(a) + bits<Arithmetic<T>>(b));
}

template <class T>
Vec<T> subtract(Vec<T> a, Vec<T> b) {
  return bits<Vec<T>>(bits<Arithmetic<T>>(a) - bits<Arithmetic<T>>(b));
}

template <class T>
Vec<T> multiply(Vec<T> a, Vec<T> b) {
  return bits<Vec<T>>(bits<Arithmetic<T>>(a) * bits<Arithmetic<T>>(b));
}

// Not as a subtraction from zero for floats, which would give 0 instead of -0.
template <class T>
Vec<T> negate(Vec<T> x) {
  if constexpr (kIsInteger<T>) {
    return bits<Vec<T>>(Arithmetic<T>{} - bits<Arithmetic<T>>(x));
  } else {
    return -x;
  }
}

// Integers are divided as in NumPy: rounded towards zero, x / 0 is 0, and the lowest number divided by -1 is itself. The
// processor would raise an exception for the last two.
template <class T>
Vec<T> divide(Vec<T> a, Vec<T> b) {
  if constexpr (kIsInteger<T>) {
    const auto is_special = (b == 0) | (b == -1);
    const Vec<T> quotient = a / select(is_special, splat<T>(1), b);
    return select(b == 0, Vec<T>{}, select(b == -1, negate<T>(a), quotient));
  } else {
    return a / b;
  }
}

template <class T>
Vec<T> magnitude(Vec<T> x) {
  if constexpr (kIsInteger<T>) {
    return select(x < 0, negate<T>(x), x);
  } else {
    return absolute<T>(x);
  }
}

template <class T>
Vec<T> square_root(Vec<T> x) {
  return root(x);
}

template <class T>
Vec<T> reciprocal(Vec<T> x) {
  return 1 / x;
}

// ---------------------------------------------------------------- sums with a product, which is rounded too

template <class T>
Vec<T> add_product(Vec<T> a, Vec<T> x, Vec<T> scale) {
  return a + rounded(x * scale);
}

template <class T>
Vec<T> subtract_product(Vec<T> a, Vec<T> x, Vec<T> scale) {
  return a - rounded(x * scale);
}

template <class T>
Vec<T> subtract_from_product(Vec<T> a, Vec<T> x, Vec<T> scale) {
  return rounded(x * scale) - a;
}

// ---------------------------------------------------------------- bits

template <class T>
Vec<T> bitwise_and(Vec<T> a, Vec<T> b) {
  return a & b;
}

template <class T>
Vec<T> bitwise_or(Vec<T> a, Vec<T> b) {
  return a | b;
}

template <class T>
Vec<T> bitwise_xor(Vec<T> a, Vec<T> b) {
  return a ^ b;
}

template <class T>
Vec<T> bitwise_not(Vec<T> x) {
  return ~x;
}

inline VecI logical_not(VecI x) { return x ^ 1; }

// ---------------------------------------------------------------- predicates, which return masks

template <class T>
Mask<T> is_equal(Vec<T> a, Vec<T> b) {
  return a == b;
}

template <class T>
Mask<T> is_less(Vec<T> a, Vec<T> b) {
  return a < b;
}

template <class T>
Mask<T> is_less_or_equal(Vec<T> a, Vec<T> b) {
  return a <= b;
}

template <class T>
Mask<T> is_greater(Vec<T> a, Vec<T> b) {
  return a > b;
}

template <class T>
Mask<T> is_greater_or_equal(Vec<T> a, Vec<T> b) {
  return a >= b;
}

// True for NaN.
template <class T>
Mask<T> is_nonzero(Vec<T> x) {
  return x != 0;
}

template <class T>
Mask<T> is_nan(Vec<T> x) {
  return x != x;
}

// p and q: whether negative and positive infinity count.
template <class T>
struct IsInf {
  explicit IsInf(const Step &step) : negative(step.p != 0), positive(step.q != 0) {}
  Mask<T> operator()(Vec<T> x) const {
    constexpr T inf = std::numeric_limits<T>::infinity();
    const Mask<T> nowhere = {};
    return (negative ? x == -inf : nowhere) | (positive ? x == inf : nowhere);
  }
  bool negative, positive;
};

// ---------------------------------------------------------------- activations without transcendental functions

// Zero and NaN are their own sign.
template <class T>
Vec<T> sign(Vec<T> x) {
  return select(x > 0, splat<T>(1), select(x < 0, splat<T>(-1), x));
}

template <class T>
Vec<T> relu(Vec<T> x) {
  return select(x <= 0, Vec<T>{}, x);
}

template <class T>
Vec<T> prelu(Vec<T> x, Vec<T> slope) {
  return select(x < 0, slope * x, x);
}

template <class T>
Vec<T> softsign(Vec<T> x) {
  return x / (1 + absolute<T>(x));
}

template <class T>
Vec<T> clamp_to_unit(Vec<T> x) {
  return lesser<T>(greater<T>(x, Vec<T>{}), splat<T>(1));
}

template <class T>
Vec<T> hard_swish(Vec<T> x) {
  return x * clamp_to_unit<T>(static_cast<T>(1.0 / 6) * x + static_cast<T>(0.5));
}

// Up to two parameters, converted to the type of the lane.
template <class T>
struct Parameters {
  explicit Parameters(const Step &step) : p(static_cast<T>(step.p)), q(static_cast<T>(step.q)) {}
  T p, q;
};

// The bounds are p and q. If p > q, the result is q.
template <class T>
struct Clip : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const { return lesser<T>(greater<T>(x, splat(this->p)), splat(this->q)); }
};

template <class T>
struct DivideBy : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const { return x / this->p; }
};

template <class T>
struct LeakyRelu : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const { return select(x < 0, this->p * x, x); }
};

template <class T>
struct ThresholdedRelu : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const { return select(x > this->p, x, Vec<T>{}); }
};

// p: alpha, q: beta.
template <class T>
struct HardSigmoid : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const { return clamp_to_unit<T>(this->p * x + this->q); }
};

// p: bias, q: lambd.
template <class T>
struct Shrink : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const {
    return select(x < -this->q, x + this->p, select(x > this->q, x - this->p, Vec<T>{}));
  }
};

// ---------------------------------------------------------------- activations with exp, erf or tanh, for float32 only

struct Elu : Parameters<float> {
  using Parameters::Parameters;
  VecF operator()(VecF x) const { return select(x < 0.0F, p * expm1(x), x); }
};

// p: alpha, q: gamma.
struct Selu : Parameters<float> {
  using Parameters::Parameters;
  VecF operator()(VecF x) const { return q * select(x <= 0.0F, p * expm1(x), x); }
};

struct Celu : Parameters<float> {
  using Parameters::Parameters;
  VecF operator()(VecF x) const { return select(x < 0.0F, p * expm1(x / p), x); }
};

struct Swish : Parameters<float> {
  using Parameters::Parameters;
  VecF operator()(VecF x) const { return x / (1.0F + exp(-p * x)); }
};

inline VecF mish(VecF x) { return x * tanh(softplus(x)); }

inline VecF gelu(VecF x) { return 0.5F * x * (1.0F + erf(x * 0.707106781F)); }

inline VecF gelu_by_tanh(VecF x) { return 0.5F * x * (1.0F + tanh(0.797884561F * (x + 0.044715F * (x * x * x)))); }

}  // namespace XRT_ISA
}  // namespace xrt
