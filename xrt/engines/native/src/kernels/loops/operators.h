// What each elementwise operator does to a vector. An operator is built from its step, which holds its parameters, and
// is then called with one, two or three vectors. Semantics are ONNX's; see xrt/engines/toy/kernels for the same in NumPy.
#ifndef XRT_KERNELS_LOOPS_OPERATORS_H
#define XRT_KERNELS_LOOPS_OPERATORS_H

#include "../machine.h"
#include "functions.h"

namespace xrt {
namespace XRT_ISA {

// ---------------------------------------------------------------- integers wrap: they are computed as unsigned

template <class T>
struct Wrapped {
  using type = T;
};
template <>
struct Wrapped<int32_t> {
  using type = uint32_t;
};
template <>
struct Wrapped<int64_t> {
  using type = uint64_t;
};
template <class T>
using Arith = Vec<typename Wrapped<T>::type>;

struct Plain {
  explicit Plain(const Step &) {}
};

template <class T>
struct Add : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return bits<Vec<T>>(bits<Arith<T>>(a) + bits<Arith<T>>(b)); }
};

template <class T>
struct Sub : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return bits<Vec<T>>(bits<Arith<T>>(a) - bits<Arith<T>>(b)); }
};

template <class T>
struct Mul : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return bits<Vec<T>>(bits<Arith<T>>(a) * bits<Arith<T>>(b)); }
};

template <class T>
struct Div : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return a / b; }
};

// Towards zero; by zero gives zero, and the least number by -1 itself, as in NumPy: the hardware would trap.
template <class T>
struct IntegerDiv : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const {
    const auto unsafe = (b == 0) | (b == -1);
    const Vec<T> quotient = a / select(unsafe, splat<T>(1), b);
    const Vec<T> negated = bits<Vec<T>>(Arith<T>{} - bits<Arith<T>>(a));
    return select(b == 0, Vec<T>{}, select(b == -1, negated, quotient));
  }
};
template <>
struct Div<int32_t> : IntegerDiv<int32_t> {
  using IntegerDiv::IntegerDiv;
};
template <>
struct Div<int64_t> : IntegerDiv<int64_t> {
  using IntegerDiv::IntegerDiv;
};

template <class T>
struct Max : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return greater<T>(a, b); }
};

template <class T>
struct Min : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return lesser<T>(a, b); }
};

template <class T>
struct PRelu : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x, Vec<T> slope) const { return select(x < 0, slope * x, x); }
};

template <class T>
struct Pow : Plain {
  using Plain::Plain;
  VecF operator()(VecF x, VecF y) const { return pow(x, y); }
};

template <class T>
struct BitwiseAnd : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return a & b; }
};

template <class T>
struct BitwiseOr : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return a | b; }
};

template <class T>
struct BitwiseXor : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> b) const { return a ^ b; }
};

// ---------------------------------------------------------------- sums with a product: both are rounded

template <class T>
struct AddProduct : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> x, Vec<T> scale) const { return a + rounded(x * scale); }
};

template <class T>
struct SubProduct : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> x, Vec<T> scale) const { return a - rounded(x * scale); }
};

template <class T>
struct ProductSub : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> a, Vec<T> x, Vec<T> scale) const { return rounded(x * scale) - a; }
};

// ---------------------------------------------------------------- comparisons: masks

template <class T>
struct Equal : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> a, Vec<T> b) const { return a == b; }
};

template <class T>
struct Less : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> a, Vec<T> b) const { return a < b; }
};

template <class T>
struct LessOrEqual : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> a, Vec<T> b) const { return a <= b; }
};

template <class T>
struct Greater : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> a, Vec<T> b) const { return a > b; }
};

template <class T>
struct GreaterOrEqual : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> a, Vec<T> b) const { return a >= b; }
};

// Whether an element is not zero; NaN is not.
template <class T>
struct Truth : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> x) const { return x != 0; }
};

template <class T>
struct IsNaN : Plain {
  using Plain::Plain;
  Mask<T> operator()(Vec<T> x) const { return x != x; }
};

// p, q: whether negative and positive infinity count.
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

// ---------------------------------------------------------------- one tensor

template <class T>
struct Neg : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return bits<Vec<T>>(Arith<T>{} - bits<Arith<T>>(x)); }
};
template <>
struct Neg<float> : Plain {
  using Plain::Plain;
  VecF operator()(VecF x) const { return -x; }
};
template <>
struct Neg<double> : Plain {
  using Plain::Plain;
  VecD operator()(VecD x) const { return -x; }
};

template <class T>
struct Abs : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return absolute<T>(x); }
};
template <class T>
struct IntegerAbs : Neg<T> {
  using Neg<T>::Neg;
  Vec<T> operator()(Vec<T> x) const { return select(x < 0, Neg<T>::operator()(x), x); }
};
template <>
struct Abs<int32_t> : IntegerAbs<int32_t> {
  using IntegerAbs::IntegerAbs;
};
template <>
struct Abs<int64_t> : IntegerAbs<int64_t> {
  using IntegerAbs::IntegerAbs;
};

template <class T>
struct Not : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return x ^ 1; }
};

template <class T>
struct BitwiseNot : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return ~x; }
};

template <class T>
struct Sign : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const {
    const Vec<T> one = splat<T>(1), minus = splat<T>(-1);
    return select(x > 0, one, select(x < 0, minus, x));  // zero, and NaN, are themselves
  }
};

template <class T>
struct Relu : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return select(x <= 0, Vec<T>{}, x); }
};

template <class T>
struct Sqrt : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return root(x); }
};

template <class T>
struct Reciprocal : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return 1 / x; }
};

template <class T>
struct Floor : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return floored<T>(x); }
};

template <class T>
struct Ceil : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return ceiled<T>(x); }
};

template <class T>
struct Round : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return nearest<T>(x); }
};

template <class T>
struct Softsign : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const { return x / (1 + absolute<T>(x)); }
};

// One or two parameters, as numbers of the lane.
template <class T>
struct Parameters {
  explicit Parameters(const Step &step) : p(static_cast<T>(step.p)), q(static_cast<T>(step.q)) {}
  T p, q;
};

// Between p and q; the upper bound wins where they cross.
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

template <class T>
struct HardSigmoid : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const {
    return lesser<T>(greater<T>(this->p * x + this->q, Vec<T>{}), splat<T>(1));
  }
};

template <class T>
struct HardSwish : Plain {
  using Plain::Plain;
  Vec<T> operator()(Vec<T> x) const {
    const Vec<T> gate = static_cast<T>(1.0 / 6) * x + static_cast<T>(0.5);
    return x * lesser<T>(greater<T>(gate, Vec<T>{}), splat<T>(1));
  }
};

// p: bias, q: lambd.
template <class T>
struct Shrink : Parameters<T> {
  using Parameters<T>::Parameters;
  Vec<T> operator()(Vec<T> x) const {
    return select(x < -this->q, x + this->p, select(x > this->q, x - this->p, Vec<T>{}));
  }
};

// ---------------------------------------------------------------- functions of float32

template <VecF (*F)(VecF)>
struct Function : Plain {
  using Plain::Plain;
  VecF operator()(VecF x) const { return F(x); }
};

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

#endif
