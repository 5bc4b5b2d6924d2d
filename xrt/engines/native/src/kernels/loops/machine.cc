// The code of the machine's steps: each operator, for each type, form of its operands and size of the tile.

#include "../machine.h"
#include "operators.h"

namespace xrt {
namespace XRT_ISA {
namespace {

// The accumulator: eight registers, which the calling convention passes as they are. They are of float32 by name only.
// clang-format off
#define XRT_REGISTERS VecF r0, VecF r1, VecF r2, VecF r3, VecF r4, VecF r5, VecF r6, VecF r7
#define XRT_NEXT(step, frame) \
  return reinterpret_cast<Run>((step)[1].code)(r0, r1, r2, r3, r4, r5, r6, r7, (step) + 1, frame)
// The first COUNT registers, each with its number.
#define XRT_EACH(COUNT, DO)                                       \
  DO(r0, 0) DO(r1, 1) DO(r2, 2) DO(r3, 3)                         \
  if constexpr ((COUNT) > 4) { DO(r4, 4) DO(r5, 5) DO(r6, 6) DO(r7, 7) }
// clang-format on

using Run = void (*)(XRT_REGISTERS, const Step *, const Frame *);

template <class T>
struct LaneOf;
template <>
struct LaneOf<float> {
  static constexpr Lane value = Lane::f32;
};
template <>
struct LaneOf<double> {
  static constexpr Lane value = Lane::f64;
};
template <>
struct LaneOf<int32_t> {
  static constexpr Lane value = Lane::i32;
};
template <>
struct LaneOf<int64_t> {
  static constexpr Lane value = Lane::i64;
};

// How many registers a value of T takes.
template <class T, Tile tile>
constexpr int kCount = sizeof(T) == 8 || tile == Tile::full ? 8 : 4;

// ---------------------------------------------------------------- operands

// Reads its own part of a lane for each register.
template <class T>
struct InLane {
  InLane(const Frame *frame, int32_t index) : data(frame->lanes[index]) {}
  Vec<T> operator()(int i) const { return load<Vec<T>>(data + i * kBytes); }
  const char *data;
};

// Is the same for all registers.
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

// Two registers of eight-byte masks as one of booleans.
VecF booleans(VecF low, VecF high) { return bits<VecF>(narrow<int32_t, int64_t>(bits<VecL>(low), bits<VecL>(high)) & 1); }

// What a step does in the end: where its operator tells true from false, registers hold masks of T, and are made booleans.
#define XRT_FINISH(T, tile, is_predicate, step, frame)                                                         \
  if constexpr (is_predicate && sizeof(T) == 8) {                                                              \
    r0 = booleans(r0, r1), r1 = booleans(r2, r3), r2 = booleans(r4, r5), r3 = booleans(r6, r7);                \
  } else if constexpr (is_predicate) {                                                                         \
    XRT_EACH((kCount<T, tile>), XRT_BOOLEAN)                                                                   \
  }                                                                                                            \
  XRT_NEXT(step, frame)
#define XRT_BOOLEAN(r, i) r = bits<VecF>(bits<VecI>(r) & 1);

// What a step does to one register: it is built from the step, and called with the register and its number.
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

// With the product of a lane and a scalar.
template <class Op, class T>
struct WithProduct {
  using Held = T;
  WithProduct(const Step *step, const Frame *frame) : op(*step), factor(frame, step->a), scale(frame, step->b) {}
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
  XRT_EACH((kCount<T, tile>), XRT_DO)
#undef XRT_DO
  XRT_FINISH(T, tile, is_predicate, step, frame);
}

// The accumulator holds booleans, which choose between two operands.
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
    XRT_EACH((kCount<T, tile>), XRT_DO)
#undef XRT_DO
  }
  XRT_NEXT(step, frame);
}

// ---------------------------------------------------------------- casts

template <class From, class To, Tile tile>
void cast_alike(XRT_REGISTERS, const Step *step, const Frame *frame) {
#define XRT_DO(r, i) r = bits<VecF>(__builtin_convertvector(bits<Vec<From>>(r), Vec<To>));
  XRT_EACH((kCount<From, tile>), XRT_DO)
#undef XRT_DO
  XRT_NEXT(step, frame);
}

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

template <class From, class To>
void cast_narrower(XRT_REGISTERS, const Step *step, const Frame *frame) {
  const auto join = [](VecF low, VecF high) {
    return bits<VecF>(narrow<To, From>(bits<Vec<From>>(low), bits<Vec<From>>(high)));
  };
  r0 = join(r0, r1), r1 = join(r2, r3), r2 = join(r4, r5), r3 = join(r6, r7);
  XRT_NEXT(step, frame);
}

// ---------------------------------------------------------------- memory

// A storage says how a register's worth of its elements becomes a vector, and back.
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

// ---------------------------------------------------------------- sequences

// The mirrored operator of a lane that the sequence's step of that number stores: it is still in a register.
template <class Op, int place>
struct OfStored {
  OfStored(const Step *step, const Frame *) : op(*step) {}
  const Op op;
};

template <class Work>
VecF apply(const Work &work, VecF r, int i, const VecF *) {
  return work(r, i);
}
template <class Op, int place>
VecF apply(const OfStored<Op, place> &work, VecF r, int, const VecF *stored) {
  return work.op(stored[place], r);
}

// Several steps in a row, done to one register after the other. What they store is stored last: addresses that are alike in
// their lower bits, as those of large arrays are, make the processor wait with a load for a store before it.
template <int place, class... Works>
struct Sequence {
  Sequence(const Step *, const Frame *) {}
  VecF operator()(VecF r, int, VecF *) const { return r; }
};
template <int place, class First, class... Rest>
struct Sequence<place, First, Rest...> {
  Sequence(const Step *step, const Frame *frame) : first(step, frame), rest(step + 1, frame) {}
  VecF operator()(VecF r, int i, VecF *stored) const { return rest(rounded(apply(first, r, i, stored)), i, stored); }
  const First first;
  const Sequence<place + 1, Rest...> rest;
};
template <int place, class Kind, class... Rest>
struct Sequence<place, Store<Kind>, Rest...> {
  Sequence(const Step *step, const Frame *frame) : first(step, frame), rest(step + 1, frame) {}
  VecF operator()(VecF r, int i, VecF *stored) const {
    stored[place] = r;
    const VecF last = rest(r, i, stored);
    first(r, i);
    return last;
  }
  const Store<Kind> first;
  const Sequence<place + 1, Rest...> rest;
};

template <class... Works>
void many_steps(XRT_REGISTERS, const Step *step, const Frame *frame) {
  const Sequence<0, Works...> work(step, frame);
  VecF stored[sizeof...(Works)];
#define XRT_DO(r, i) r = work(r, i, stored);
  XRT_EACH(8, XRT_DO)
#undef XRT_DO
  XRT_NEXT(step + sizeof...(Works) - 1, frame);
}

// ---------------------------------------------------------------- the table

Code code_of(Run run) { return reinterpret_cast<Code>(run); }

struct Entry {
  const char *name;
  Lane lane;
  Run code[kForms][2];  // by form of the operands, and tile
};

// Eight-byte values never meet full tiles.
#define XRT_BOTH_TILES(T, ...) \
  { sizeof(T) == 4 ? __VA_ARGS__(Tile::full) : nullptr, __VA_ARGS__(Tile::half) }

template <class Op, class T, bool is_predicate = false>
constexpr Entry one(const char *name) {
#define XRT_CODE(tile) &one_step<Unary<Op, T>, tile, is_predicate>
  return {name, LaneOf<T>::value, {XRT_BOTH_TILES(T, XRT_CODE)}};
#undef XRT_CODE
}

template <class Op, class T, bool is_predicate = false, bool is_commutative = false>
constexpr Entry two(const char *name) {
#define XRT_LANE(tile) &one_step<Binary<Op, T, InLane, false>, tile, is_predicate>
#define XRT_SCALAR(tile) &one_step<Binary<Op, T, Scalar, false>, tile, is_predicate>
#define XRT_MIRRORED(tile) &one_step<Binary<Op, T, InLane, !is_commutative>, tile, is_predicate>
#define XRT_SCALAR_MIRRORED(tile) &one_step<Binary<Op, T, Scalar, !is_commutative>, tile, is_predicate>
  return {name,
          LaneOf<T>::value,
          {XRT_BOTH_TILES(T, XRT_LANE), XRT_BOTH_TILES(T, XRT_SCALAR), XRT_BOTH_TILES(T, XRT_MIRRORED),
           XRT_BOTH_TILES(T, XRT_SCALAR_MIRRORED)}};
#undef XRT_LANE
#undef XRT_SCALAR
#undef XRT_MIRRORED
#undef XRT_SCALAR_MIRRORED
}

template <class Op, class T>
constexpr Entry sum(const char *name) {
#define XRT_LANE_SCALAR(tile) &one_step<WithProduct<Op, T>, tile>
  return {name, LaneOf<T>::value, {{nullptr, nullptr}, {nullptr, nullptr}, XRT_BOTH_TILES(T, XRT_LANE_SCALAR)}};
#undef XRT_LANE_SCALAR
}

template <class T>
constexpr Entry choice() {
#define XRT_LANES(tile) &where<T, tile, InLane, InLane>
#define XRT_SCALARS(tile) &where<T, tile, Scalar, Scalar>
#define XRT_LANE_SCALAR(tile) &where<T, tile, InLane, Scalar>
#define XRT_SCALAR_LANE(tile) &where<T, tile, Scalar, InLane>
  return {"Where",
          LaneOf<T>::value,
          {XRT_BOTH_TILES(T, XRT_LANES), XRT_BOTH_TILES(T, XRT_SCALARS), XRT_BOTH_TILES(T, XRT_LANE_SCALAR),
           XRT_BOTH_TILES(T, XRT_SCALAR_LANE)}};
#undef XRT_LANES
#undef XRT_SCALARS
#undef XRT_LANE_SCALAR
#undef XRT_SCALAR_LANE
}

// What all numbers have, what floats have, and what integers have.
#define XRT_NUMBERS(T)                                                                                             \
  two<Add<T>, T, false, true>("Add"), two<Sub<T>, T>("Sub"), two<Mul<T>, T, false, true>("Mul"), two<Div<T>, T>("Div"), two<Max<T>, T>("Max"), \
      two<Min<T>, T>("Min"), two<PRelu<T>, T>("PRelu"), two<Equal<T>, T, true>("Equal"),                            \
      two<Less<T>, T, true>("Less"), two<LessOrEqual<T>, T, true>("LessOrEqual"),                                   \
      two<Greater<T>, T, true>("Greater"), two<GreaterOrEqual<T>, T, true>("GreaterOrEqual"),                       \
      one<Truth<T>, T, true>("Truth"), one<Neg<T>, T>("Neg"), one<Abs<T>, T>("Abs"), one<Sign<T>, T>("Sign"),       \
      one<Relu<T>, T>("Relu"), choice<T>()
#define XRT_FLOATS(T)                                                                                              \
  XRT_NUMBERS(T), one<Sqrt<T>, T>("Sqrt"), one<Reciprocal<T>, T>("Reciprocal"), one<Floor<T>, T>("Floor"),          \
      one<Ceil<T>, T>("Ceil"), one<Round<T>, T>("Round"), one<Softsign<T>, T>("Softsign"), one<Clip<T>, T>("Clip"), \
      one<DivideBy<T>, T>("DivideBy"), one<LeakyRelu<T>, T>("LeakyRelu"),                                           \
      one<ThresholdedRelu<T>, T>("ThresholdedRelu"), one<HardSigmoid<T>, T>("HardSigmoid"),                         \
      one<HardSwish<T>, T>("HardSwish"), one<Shrink<T>, T>("Shrink"), one<IsNaN<T>, T, true>("IsNaN"),              \
      one<IsInf<T>, T, true>("IsInf"), sum<AddProduct<T>, T>("AddProduct"), sum<SubProduct<T>, T>("SubProduct"),      \
      sum<ProductSub<T>, T>("ProductSub")
#define XRT_INTEGERS(T)                                                                           \
  XRT_NUMBERS(T), two<BitwiseAnd<T>, T>("BitwiseAnd"), two<BitwiseOr<T>, T>("BitwiseOr"),          \
      two<BitwiseXor<T>, T>("BitwiseXor"), one<BitwiseNot<T>, T>("BitwiseNot")

template <VecF (*f)(VecF)>
constexpr Entry function(const char *name) {
  return one<Function<f>, float>(name);
}

constexpr Entry kOperations[] = {
    XRT_FLOATS(float),
    XRT_FLOATS(double),
    XRT_INTEGERS(int32_t),
    XRT_INTEGERS(int64_t),
    two<BitwiseAnd<int32_t>, int32_t>("And"),
    two<BitwiseOr<int32_t>, int32_t>("Or"),
    two<BitwiseXor<int32_t>, int32_t>("Xor"),
    one<Not<int32_t>, int32_t>("Not"),
    two<Pow<float>, float>("Pow"),
    function<exp>("Exp"),
    function<log>("Log"),
    function<tanh>("Tanh"),
    function<sigmoid>("Sigmoid"),
    function<erf>("Erf"),
    function<softplus>("Softplus"),
    function<mish>("Mish"),
    function<gelu>("Gelu"),
    function<gelu_by_tanh>("GeluTanh"),
    one<Elu, float>("Elu"),
    one<Selu, float>("Selu"),
    one<Celu, float>("Celu"),
    one<Swish, float>("Swish"),
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
      case Lane::f64: return code_of(&cast_alike<From, double, Tile::half>);
      case Lane::i64: return code_of(&cast_alike<From, int64_t, Tile::half>);
    }
  } else {
    switch (to) {
      case Lane::f32: return code_of(full ? &cast_alike<From, float, Tile::full> : &cast_alike<From, float, Tile::half>);
      case Lane::i32: return code_of(full ? &cast_alike<From, int32_t, Tile::full> : &cast_alike<From, int32_t, Tile::half>);
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

// The code of a template over storages, for one that is chosen at run time.
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

// ---------------------------------------------------------------- known sequences

// How a step of a sequence is done alone, whether it stores, and which step's lane it reads from a register.
template <class Work>
struct Alone {
  static constexpr Run code = &one_step<Work, Tile::full>;
  static constexpr bool stores = false;
  static constexpr int reads = -1;
};
template <class Kind>
struct Alone<Store<Kind>> {
  static constexpr Run code = &one_step<Store<Kind>, Tile::full>;
  static constexpr bool stores = true;
  static constexpr int reads = -1;
};
template <class Op, int place>
struct Alone<OfStored<Op, place>> {
  static constexpr Run code = &one_step<Binary<Op, float, InLane, true>, Tile::full>;
  static constexpr bool stores = false;
  static constexpr int reads = place;
};

struct Known {
  Run code;
  int count;
  const Run *alone;
  const bool *stores;
  const int *reads;

  bool begins(const Step *program, int left) const {
    if (left < count) return false;
    for (int i = 0; i < count; ++i) {
      if (program[i].code != code_of(alone[i])) return false;
      // What is stored late must not be read early.
      for (int before = 0; before < i; ++before)
        if (stores[before] && (program[before].a == program[i].a) != (reads[i] == before)) return false;
    }
    return true;
  }
};

template <class... Works>
struct Join {
  static constexpr Run alone[] = {Alone<Works>::code...};
  static constexpr bool stores[] = {Alone<Works>::stores...};
  static constexpr int reads[] = {Alone<Works>::reads...};
  static constexpr Known known = {&many_steps<Works...>, sizeof...(Works), alone, stores, reads};
};

using Fetch = Load<AsIs<float>>;
using Put = Store<AsIs<float>>;
template <class Op>
using ByLane = Binary<Op, float, InLane, false>;
template <class Op>
using OfLane = Binary<Op, float, InLane, true>;
template <class Op>
using ByScalar = Binary<Op, float, Scalar, false>;
template <class Op>
using ByProduct = WithProduct<Op, float>;

// Adam's two moments and their ratio, and what is left of the update.
template <class... Rest>
using Adam = Join<Fetch, ByScalar<Mul<float>>, ByProduct<AddProduct<float>>, Put,                                        //
                  Fetch, ByLane<Mul<float>>, ByScalar<Mul<float>>, ByProduct<AddProduct<float>>, Put,                    //
                  Unary<Sqrt<float>, float>, ByScalar<Mul<float>>, ByScalar<Add<float>>, OfStored<Div<float>, 3>, Rest...>;

// Longest first.
constexpr Known kKnown[] = {
    Adam<ByScalar<Mul<float>>, OfLane<Sub<float>>, Put>::known,
    Adam<ByScalar<Mul<float>>, ByProduct<ProductSub<float>>, Put>::known,  // with the decay of AdamW
    Adam<>::known,
};

void join(Step *program, int count) {
  for (int i = 0; i < count; ++i) {
    for (const Known &known : kKnown) {
      if (!known.begins(program + i, count - i)) continue;
      program[i].code = code_of(known.code);
      i += known.count - 1;
      break;
    }
  }
}

void run(const Step *program, const Frame &frame) {
  const VecF none = {};
  reinterpret_cast<Run>(program->code)(none, none, none, none, none, none, none, none, program, &frame);
}

}  // namespace

extern const Machine machine;
const Machine machine = {
    2 * kBytes, operation, cast, load_code, load_scalar_code, store_code, round_code, stop_code, join, run};

}  // namespace XRT_ISA
}  // namespace xrt
