// The code of the elementwise machine: a function for each operator, type, form of the operands and size of the tile.

#include "../machine.h"
#include "operators.h"

namespace xrt {
namespace XRT_ISA {
namespace {

// The accumulator: eight vector registers, which every step passes to the next as arguments. Their C++ type is a vector of
// float32, but they may hold elements of any type.
// clang-format off
#define XRT_REGISTERS VecF r0, VecF r1, VecF r2, VecF r3, VecF r4, VecF r5, VecF r6, VecF r7
#define XRT_NEXT(step, frame) \
  return reinterpret_cast<Run>((step)[1].code)(r0, r1, r2, r3, r4, r5, r6, r7, (step) + 1, frame)
// Expands DO(register, index) for the first COUNT registers, 4 or 8.
#define XRT_EACH(COUNT, DO)                                       \
  DO(r0, 0) DO(r1, 1) DO(r2, 2) DO(r3, 3)                         \
  if constexpr ((COUNT) > 4) { DO(r4, 4) DO(r5, 5) DO(r6, 6) DO(r7, 7) }
// clang-format on

using Run = void (*)(XRT_REGISTERS, const Step *, const Frame *);

template <class T>
constexpr Lane kLane = kIsInteger<T> ? (sizeof(T) == 8 ? Lane::i64 : Lane::i32) : (sizeof(T) == 8 ? Lane::f64 : Lane::f32);

// The number of registers that a tile of elements of type T fills.
template <class T, Tile tile>
constexpr int kRegisters = sizeof(T) == 8 || tile == Tile::full ? 8 : 4;

// ---------------------------------------------------------------- operands

// An operand in memory: loads the vector that corresponds to a register.
template <class T>
struct InLane {
  InLane(const Frame *frame, int32_t index) : data(frame->lanes[index]) {}
  Vec<T> operator()(int i) const { return load<Vec<T>>(data + i * kBytes); }
  const char *data;
};

// An operand that is equal for all elements.
template <class T>
struct Scalar {
  Scalar(const Frame *frame, int32_t index) : value(splat(value_of(frame->scalars[index]))) {}
  static T value_of(uint64_t raw) {
    T value;
    std::memcpy(&value, &raw, sizeof value);
    return value;
  }
  Vec<T> operator()(int) const { return value; }
  const Vec<T> value;
};

// ---------------------------------------------------------------- steps

void stop(XRT_REGISTERS, const Step *, const Frame *) {
  (void)r0, (void)r1, (void)r2, (void)r3, (void)r4, (void)r5, (void)r6, (void)r7;
}

// Converts two registers of eight-byte masks to one register of booleans.
VecF to_booleans(VecF low, VecF high) { return bits<VecF>(narrow<int32_t, int64_t>(bits<VecL>(low), bits<VecL>(high)) & 1); }

// Ends a step. The result of a predicate is a mask of all ones or zeroes in elements of type T; it is converted to booleans.
#define XRT_FINISH(T, tile, is_predicate, step, frame)                                                         \
  if constexpr (is_predicate && sizeof(T) == 8) {                                                              \
    r0 = to_booleans(r0, r1), r1 = to_booleans(r2, r3), r2 = to_booleans(r4, r5), r3 = to_booleans(r6, r7);                \
  } else if constexpr (is_predicate) {                                                                         \
    XRT_EACH((kRegisters<T, tile>), XRT_BOOLEAN)                                                                   \
  }                                                                                                            \
  XRT_NEXT(step, frame)
#define XRT_BOOLEAN(r, i) r = bits<VecF>(bits<VecI>(r) & 1);

// An operator without parameters, which is a function.
template <auto function>
struct Stateless {
  explicit Stateless(const Step &) {}
  template <class... Vectors>
  auto operator()(Vectors... vectors) const {
    return function(vectors...);
  }
};

// The computation of a step on one register. It is constructed from the step, and called with the register and its index.

template <class Op, class T>
struct Unary {
  using Held = T;
  Unary(const Step *step, const Frame *) : op(*step) {}
  VecF operator()(VecF r, int) const { return bits<VecF>(op(bits<Vec<T>>(r))); }
  const Op op;
};

template <class Op, class T, template <class> class Operand, bool mirrored>
struct Binary {
  using Held = T;
  Binary(const Step *step, const Frame *frame) : op(*step), other(frame, step->a) {}
  VecF operator()(VecF r, int i) const {
    return bits<VecF>(mirrored ? op(other(i), bits<Vec<T>>(r)) : op(bits<Vec<T>>(r), other(i)));
  }
  const Op op;
  const Operand<T> other;
};

// A ternary operator of the accumulator, a lane and a scalar.
template <class Op, class T>
struct Ternary {
  using Held = T;
  Ternary(const Step *step, const Frame *frame) : op(*step), factor(frame, step->a), scale(frame, step->b) {}
  VecF operator()(VecF r, int i) const { return bits<VecF>(op(bits<Vec<T>>(r), factor(i), scale(i))); }
  const Op op;
  const InLane<T> factor;
  const Scalar<T> scale;
};

template <class Work, Tile tile, bool is_predicate = false>
void one_step(XRT_REGISTERS, const Step *step, const Frame *frame) {
  using T = typename Work::Held;
  const Work work(step, frame);
#define XRT_DO(r, i) r = bits<VecF>(work(r, i));
  XRT_EACH((kRegisters<T, tile>), XRT_DO)
#undef XRT_DO
  XRT_FINISH(T, tile, is_predicate, step, frame);
}

// The operator Where: the accumulator holds booleans, which select between two operands.
template <class T, Tile tile, template <class> class Yes, template <class> class No>
void where(XRT_REGISTERS, const Step *step, const Frame *frame) {
  const Yes<T> yes(frame, step->a);
  const No<T> no(frame, step->b);
  if constexpr (sizeof(T) == 8) {
    const VecF held[4] = {r0, r1, r2, r3};
    const auto chosen = [&](int i) {
      const Pair<int64_t> mask = widen<int64_t, int32_t>(bits<VecI>(held[i / 2]));
      return bits<VecF>(select((i % 2 ? mask.high : mask.low) != 0, yes(i), no(i)));
    };
#define XRT_DO(r, i) r = chosen(i);
    XRT_EACH(8, XRT_DO)
#undef XRT_DO
  } else {
#define XRT_DO(r, i) r = bits<VecF>(select(bits<VecI>(r) != 0, yes(i), no(i)));
    XRT_EACH((kRegisters<T, tile>), XRT_DO)
#undef XRT_DO
  }
  XRT_NEXT(step, frame);
}

// ---------------------------------------------------------------- casts

// Between types of the same size.
template <class From, class To, Tile tile>
void cast_direct(XRT_REGISTERS, const Step *step, const Frame *frame) {
#define XRT_DO(r, i) r = bits<VecF>(__builtin_convertvector(bits<Vec<From>>(r), Vec<To>));
  XRT_EACH((kRegisters<From, tile>), XRT_DO)
#undef XRT_DO
  XRT_NEXT(step, frame);
}

// From four to eight bytes per element.
template <class From, class To>
void cast_wider(XRT_REGISTERS, const Step *step, const Frame *frame) {
  const VecF held[4] = {r0, r1, r2, r3};
  const auto part = [&](int i) {
    const Pair<To> both = widen<To, From>(bits<Vec<From>>(held[i / 2]));
    return bits<VecF>(i % 2 ? both.high : both.low);
  };
#define XRT_DO(r, i) r = part(i);
  XRT_EACH(8, XRT_DO)
#undef XRT_DO
  XRT_NEXT(step, frame);
}

// From eight to four bytes per element.
template <class From, class To>
void cast_narrower(XRT_REGISTERS, const Step *step, const Frame *frame) {
  const auto join = [](VecF low, VecF high) {
    return bits<VecF>(narrow<To, From>(bits<Vec<From>>(low), bits<Vec<From>>(high)));
  };
  r0 = join(r0, r1), r1 = join(r2, r3), r2 = join(r4, r5), r3 = join(r6, r7);
  XRT_NEXT(step, frame);
}

// ---------------------------------------------------------------- memory

// The storage classes below convert between one register and the corresponding elements in memory.
template <class T>
struct AsIs {
  using Held = T;
  static constexpr int bytes = kBytes;
  static Vec<T> read(const char *from) { return load<Vec<T>>(from); }
  static void write(char *to, Vec<T> v) { store(to, v); }
};

template <class T>
struct Byte {
  using Held = int32_t;
  static constexpr int bytes = kLanes<int32_t>;
  using Packed = typename VecOf<T, bytes>::type;
  static VecI read(const char *from) { return __builtin_convertvector(load<Packed>(from), VecI); }
  static void write(char *to, VecI v) { store(to, __builtin_convertvector(v, Packed)); }
};

template <VecF (*decode)(VecU), VecU (*encode)(VecF)>
struct Narrow {
  using Held = float;
  static constexpr int bytes = kBytes / 2;
  using Shorts = typename VecOf<uint16_t, kLanes<float>>::type;
  static VecF read(const char *from) { return decode(__builtin_convertvector(load<Shorts>(from), VecU)); }
  static void write(char *to, VecF v) { store(to, __builtin_convertvector(encode(v), Shorts)); }
  static VecF round(VecF v) { return decode(encode(v)); }
};

using HalfFloat = Narrow<float_of_half, half_of_float>;
using BrainFloat = Narrow<float_of_bfloat, bfloat_of_float>;

template <class Kind>
struct Load {
  using Held = typename Kind::Held;
  Load(const Step *step, const Frame *frame) : from(frame->lanes[step->a]) {}
  VecF operator()(VecF, int i) const { return bits<VecF>(Kind::read(from + i * Kind::bytes)); }
  const char *const from;
};

template <class Kind>
struct Store {
  using Held = typename Kind::Held;
  Store(const Step *step, const Frame *frame) : to(frame->lanes[step->a]) {}
  VecF operator()(VecF r, int i) const {
    Kind::write(to + i * Kind::bytes, bits<Vec<Held>>(r));
    return r;
  }
  char *const to;
};

template <class T>
struct LoadScalar {
  using Held = T;
  LoadScalar(const Step *step, const Frame *frame) : scalar(frame, step->a) {}
  VecF operator()(VecF, int i) const { return bits<VecF>(scalar(i)); }
  const Scalar<T> scalar;
};

template <class Kind>
struct RoundTo {
  using Held = float;
  RoundTo(const Step *, const Frame *) {}
  VecF operator()(VecF r, int) const { return Kind::round(r); }
};

// ---------------------------------------------------------------- the table

Code code_of(Run run) { return reinterpret_cast<Code>(run); }

struct Entry {
  const char *name;
  Lane lane;
  Run code[kForms][2];  // by form of the operands and size of the tile; nullptr if the combination does not occur
};

// A program with an eight-byte value always uses half tiles, so no code for full tiles is needed.
#define XRT_BOTH_TILES(T, ...) \
  { sizeof(T) == 4 ? __VA_ARGS__(Tile::full) : nullptr, __VA_ARGS__(Tile::half) }

template <class Op, class T, bool is_predicate = false>
constexpr Entry make_entry(const char *name) {
#define XRT_CODE(tile) &one_step<Unary<Op, T>, tile, is_predicate>
  return {name, kLane<T>, {XRT_BOTH_TILES(T, XRT_CODE)}};
#undef XRT_CODE
}

template <auto function, class T, bool is_predicate = false>
constexpr Entry one(const char *name) {
  return make_entry<Stateless<function>, T, is_predicate>(name);
}

// The mirrored code of a commutative operator is the plain code, so that it is compiled once.
template <auto function, class T, bool is_predicate = false, bool is_commutative = false>
constexpr Entry two(const char *name) {
  using Op = Stateless<function>;
#define XRT_LANE(tile) &one_step<Binary<Op, T, InLane, false>, tile, is_predicate>
#define XRT_SCALAR(tile) &one_step<Binary<Op, T, Scalar, false>, tile, is_predicate>
#define XRT_MIRRORED(tile) &one_step<Binary<Op, T, InLane, !is_commutative>, tile, is_predicate>
#define XRT_SCALAR_MIRRORED(tile) &one_step<Binary<Op, T, Scalar, !is_commutative>, tile, is_predicate>
  return {name,
          kLane<T>,
          {XRT_BOTH_TILES(T, XRT_LANE), XRT_BOTH_TILES(T, XRT_SCALAR), XRT_BOTH_TILES(T, XRT_MIRRORED),
           XRT_BOTH_TILES(T, XRT_SCALAR_MIRRORED)}};
#undef XRT_LANE
#undef XRT_SCALAR
#undef XRT_MIRRORED
#undef XRT_SCALAR_MIRRORED
}

template <auto function, class T>
constexpr Entry three(const char *name) {
#define XRT_LANE_SCALAR(tile) &one_step<Ternary<Stateless<function>, T>, tile>
  return {name, kLane<T>, {{nullptr, nullptr}, {nullptr, nullptr}, XRT_BOTH_TILES(T, XRT_LANE_SCALAR)}};
#undef XRT_LANE_SCALAR
}

template <class T>
constexpr Entry where_entry() {
#define XRT_LANES(tile) &where<T, tile, InLane, InLane>
#define XRT_SCALARS(tile) &where<T, tile, Scalar, Scalar>
#define XRT_LANE_SCALAR(tile) &where<T, tile, InLane, Scalar>
#define XRT_SCALAR_LANE(tile) &where<T, tile, Scalar, InLane>
  return {"Where",
          kLane<T>,
          {XRT_BOTH_TILES(T, XRT_LANES), XRT_BOTH_TILES(T, XRT_SCALARS), XRT_BOTH_TILES(T, XRT_LANE_SCALAR),
           XRT_BOTH_TILES(T, XRT_SCALAR_LANE)}};
#undef XRT_LANES
#undef XRT_SCALARS
#undef XRT_LANE_SCALAR
#undef XRT_SCALAR_LANE
}

// The operators of all numbers, of floats, and of integers.
// clang-format off
#define XRT_NUMBERS(T)                                                                                              \
  two<add<T>, T, false, true>("Add"), two<subtract<T>, T>("Sub"), two<multiply<T>, T, false, true>("Mul"),          \
  two<divide<T>, T>("Div"), two<greater<T>, T>("Max"), two<lesser<T>, T>("Min"), two<prelu<T>, T>("PRelu"),         \
  two<is_equal<T>, T, true>("Equal"), two<is_less<T>, T, true>("Less"),                                             \
  two<is_less_or_equal<T>, T, true>("LessOrEqual"), two<is_greater<T>, T, true>("Greater"),                         \
  two<is_greater_or_equal<T>, T, true>("GreaterOrEqual"), one<is_nonzero<T>, T, true>("Truth"),                     \
  one<negate<T>, T>("Neg"), one<magnitude<T>, T>("Abs"), one<sign<T>, T>("Sign"), one<relu<T>, T>("Relu"),          \
  where_entry<T>()
#define XRT_FLOATS(T)                                                                                               \
  XRT_NUMBERS(T), one<square_root<T>, T>("Sqrt"), one<reciprocal<T>, T>("Reciprocal"), one<floored<T>, T>("Floor"), \
  one<ceiled<T>, T>("Ceil"), one<nearest<T>, T>("Round"), one<softsign<T>, T>("Softsign"),                          \
  one<hard_swish<T>, T>("HardSwish"), one<is_nan<T>, T, true>("IsNaN"), make_entry<IsInf<T>, T, true>("IsInf"),     \
  make_entry<Clip<T>, T>("Clip"), make_entry<DivideBy<T>, T>("DivideBy"), make_entry<LeakyRelu<T>, T>("LeakyRelu"), \
  make_entry<ThresholdedRelu<T>, T>("ThresholdedRelu"), make_entry<HardSigmoid<T>, T>("HardSigmoid"),               \
  make_entry<Shrink<T>, T>("Shrink"), three<add_product<T>, T>("AddProduct"),                                       \
  three<subtract_product<T>, T>("SubProduct"), three<subtract_from_product<T>, T>("ProductSub")
#define XRT_INTEGERS(T)                                                                                             \
  XRT_NUMBERS(T), two<bitwise_and<T>, T>("BitwiseAnd"), two<bitwise_or<T>, T>("BitwiseOr"),                         \
  two<bitwise_xor<T>, T>("BitwiseXor"), one<bitwise_not<T>, T>("BitwiseNot")
// clang-format on

constexpr Entry kOperations[] = {
    XRT_FLOATS(float),
    XRT_FLOATS(double),
    XRT_INTEGERS(int32_t),
    XRT_INTEGERS(int64_t),
    // Booleans are int32 in registers.
    two<bitwise_and<int32_t>, int32_t>("And"),
    two<bitwise_or<int32_t>, int32_t>("Or"),
    two<bitwise_xor<int32_t>, int32_t>("Xor"),
    one<logical_not, int32_t>("Not"),
    two<pow, float>("Pow"),
    one<exp, float>("Exp"),
    one<log, float>("Log"),
    one<tanh, float>("Tanh"),
    one<sigmoid, float>("Sigmoid"),
    one<erf, float>("Erf"),
    one<softplus, float>("Softplus"),
    one<mish, float>("Mish"),
    one<gelu, float>("Gelu"),
    one<gelu_by_tanh, float>("GeluTanh"),
    make_entry<Elu, float>("Elu"),
    make_entry<Selu, float>("Selu"),
    make_entry<Celu, float>("Celu"),
    make_entry<Swish, float>("Swish"),
};

Code operation(const char *name, Lane lane, Form form, Tile tile) {
  for (const Entry &entry : kOperations)
    if (entry.lane == lane && std::strcmp(entry.name, name) == 0)
      return code_of(entry.code[static_cast<int>(form)][static_cast<int>(tile)]);
  return nullptr;
}

template <class From>
Code cast_from(Lane to, Tile tile) {
  constexpr bool wide = sizeof(From) == 8;
  const bool full = tile == Tile::full;
  if constexpr (wide) {
    switch (to) {
      case Lane::f32: return code_of(&cast_narrower<From, float>);
      case Lane::i32: return code_of(&cast_narrower<From, int32_t>);
      case Lane::f64: return code_of(&cast_direct<From, double, Tile::half>);
      case Lane::i64: return code_of(&cast_direct<From, int64_t, Tile::half>);
    }
  } else {
    switch (to) {
      case Lane::f32: return code_of(full ? &cast_direct<From, float, Tile::full> : &cast_direct<From, float, Tile::half>);
      case Lane::i32: return code_of(full ? &cast_direct<From, int32_t, Tile::full> : &cast_direct<From, int32_t, Tile::half>);
      case Lane::f64: return code_of(&cast_wider<From, double>);
      case Lane::i64: return code_of(&cast_wider<From, int64_t>);
    }
  }
  return nullptr;
}

Code cast(Lane from, Lane to, Tile tile) {
  switch (from) {
    case Lane::f32: return cast_from<float>(to, tile);
    case Lane::f64: return cast_from<double>(to, tile);
    case Lane::i32: return cast_from<int32_t>(to, tile);
    case Lane::i64: return cast_from<int64_t>(to, tile);
  }
  return nullptr;
}

// The code of a class template for a storage and a tile that are known only at run time.
#define XRT_BY_STORAGE(TEMPLATE, storage, tile)                                       \
  switch (storage) {                                                                  \
    case Storage::f32: return XRT_BY_TILE(TEMPLATE, AsIs<float>, tile);               \
    case Storage::i32: return XRT_BY_TILE(TEMPLATE, AsIs<int32_t>, tile);             \
    case Storage::f64: return code_of(&one_step<TEMPLATE<AsIs<double>>, Tile::half>); \
    case Storage::i64: return code_of(&one_step<TEMPLATE<AsIs<int64_t>>, Tile::half>);\
    case Storage::boolean:                                                            \
    case Storage::u8: return XRT_BY_TILE(TEMPLATE, Byte<uint8_t>, tile);              \
    case Storage::i8: return XRT_BY_TILE(TEMPLATE, Byte<int8_t>, tile);               \
    case Storage::f16: return XRT_BY_TILE(TEMPLATE, HalfFloat, tile);                 \
    case Storage::bf16: return XRT_BY_TILE(TEMPLATE, BrainFloat, tile);               \
  }                                                                                   \
  return nullptr
#define XRT_BY_TILE(TEMPLATE, KIND, tile) \
  code_of((tile) == Tile::full ? &one_step<TEMPLATE<KIND>, Tile::full> : &one_step<TEMPLATE<KIND>, Tile::half>)

Code load_code(Storage from, Tile tile) { XRT_BY_STORAGE(Load, from, tile); }

Code store_code(Storage to, Tile tile) { XRT_BY_STORAGE(Store, to, tile); }

Code load_scalar_code(Lane lane, Tile tile) {
  switch (lane) {
    case Lane::f32: return XRT_BY_TILE(LoadScalar, float, tile);
    case Lane::i32: return XRT_BY_TILE(LoadScalar, int32_t, tile);
    case Lane::f64: return code_of(&one_step<LoadScalar<double>, Tile::half>);
    case Lane::i64: return code_of(&one_step<LoadScalar<int64_t>, Tile::half>);
  }
  return nullptr;
}

Code round_code(Storage to, Tile tile) {
  if (to == Storage::f16) return XRT_BY_TILE(RoundTo, HalfFloat, tile);
  return to == Storage::bf16 ? XRT_BY_TILE(RoundTo, BrainFloat, tile) : nullptr;
}

Code stop_code() { return code_of(&stop); }

void run(const Step *program, const Frame &frame) {
  const VecF none = {};
  reinterpret_cast<Run>(program->code)(none, none, none, none, none, none, none, none, program, &frame);
}

}  // namespace

extern const Machine machine;
const Machine machine = {
    2 * kBytes, operation, cast, load_code, load_scalar_code, store_code, round_code, stop_code, run};

}  // namespace XRT_ISA
}  // namespace xrt
