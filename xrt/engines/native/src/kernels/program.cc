#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace xrt {
namespace {

struct Kind {
  Storage storage;
  int64_t onnx;  // TensorProto.DataType
  xrt_dtype dtype;
  Lane lane;
};

constexpr Kind kKinds[] = {
    {Storage::f32, 1, {XRT_FLOAT, 32, 1}, Lane::f32},    {Storage::f64, 11, {XRT_FLOAT, 64, 1}, Lane::f64},
    {Storage::i32, 6, {XRT_INT, 32, 1}, Lane::i32},      {Storage::i64, 7, {XRT_INT, 64, 1}, Lane::i64},
    {Storage::boolean, 9, {XRT_BOOL, 8, 1}, Lane::i32},  {Storage::f16, 10, {XRT_FLOAT, 16, 1}, Lane::f32},
    {Storage::bf16, 16, {XRT_BFLOAT, 16, 1}, Lane::f32}, {Storage::u8, 2, {XRT_UINT, 8, 1}, Lane::i32},
    {Storage::i8, 3, {XRT_INT, 8, 1}, Lane::i32},
};

const Kind &kind_of(Storage storage) {
  return *std::find_if(std::begin(kKinds), std::end(kKinds), [=](const Kind &kind) { return kind.storage == storage; });
}

// The storage in which a lane's values lie in slots.
Storage own_storage(Lane lane) {
  switch (lane) {
    case Lane::f64: return Storage::f64;
    case Lane::i32: return Storage::i32;
    case Lane::i64: return Storage::i64;
    default: return Storage::f32;
  }
}

bool is_narrow_float(Storage storage) { return storage == Storage::f16 || storage == Storage::bf16; }

// Lays a chain out as steps over one accumulator, and finds slots for what it cannot hold.
class Compiler {
 public:
  Compiler(const Chain &chain, const Machine &machine)
      : chain_(chain), machine_(machine), n_inputs_(chain.n_inputs()), slot_(chain.values.size(), -1) {
    const bool wide =
        std::any_of(chain.values.begin(), chain.values.end(), [](const ChainValue &value) { return is_wide(value.lane()); });
    tile_ = wide ? Tile::half : Tile::full;
    find_uses();
  }

  Program compile() {
    for (int i = 0; i < n_inputs_; ++i)
      if (needs_slot(i)) fill_slot(i);
    find_last_read();
    for (int t = 0; t < count(); ++t) emit_step(t);
    finish();
    return {code_, n_slots_, tile_ == Tile::full ? machine_.full_tile : machine_.full_tile / 2};
  }

 private:
  struct Use {
    int step, place;
  };

  int count() const { return static_cast<int>(chain_.steps.size()); }
  const ChainValue &value(int v) const { return chain_.values[static_cast<size_t>(v)]; }
  const ChainStep &step(int t) const { return chain_.steps[static_cast<size_t>(t)]; }
  int result_of(int t) const { return n_inputs_ + t; }

  void find_uses() {
    uses_.resize(chain_.values.size());
    for (int t = 0; t < count(); ++t)
      for (size_t place = 0; place < step(t).arguments.size(); ++place)
        uses_[static_cast<size_t>(step(t).arguments[place])].push_back({t, static_cast<int>(place)});
  }

  // The last step that reads an input where it lies: an output may have the memory of any input, so none is written before.
  void find_last_read() {
    for (int i = 0; i < n_inputs_; ++i) {
      if (value(i).is_scalar || slot_[static_cast<size_t>(i)] >= 0) continue;
      for (const Use &use : uses_[static_cast<size_t>(i)]) last_read_ = std::max(last_read_, use.step);
    }
  }

  // Whether a value is an output that must wait until the inputs have been read.
  bool waits(int v) const {
    if (v < n_inputs_) return false;
    const bool is_result = std::find(chain_.results.begin() + 1, chain_.results.end(), v) != chain_.results.end();
    return is_result && v - n_inputs_ < last_read_;
  }

  // Which argument a step finds in the accumulator: what the step before gave, where it can, else its first.
  int primary(int t) const {
    const std::vector<int> &arguments = step(t).arguments;
    const bool second = t > 0 && arguments.size() == 2 && arguments[1] == result_of(t - 1) && arguments[0] != arguments[1];
    return second ? 1 : 0;
  }
  int primary_value(int t) const { return step(t).arguments[static_cast<size_t>(primary(t))]; }
  bool is_held(int t) const { return t > 0 && primary_value(t) == result_of(t - 1); }

  // Whether a value must lie in memory beside the accumulator.
  bool needs_slot(int v) const {
    const std::vector<Use> &uses = uses_[static_cast<size_t>(v)];
    if (v < n_inputs_) {
      if (value(v).is_scalar || value(v).storage == own_storage(value(v).lane())) return false;
      return uses.size() != 1 || uses[0].place != primary(uses[0].step);
    }
    if ((v == chain_.results[0] && v != result_of(count() - 1)) || waits(v)) return true;
    return std::any_of(uses.begin(), uses.end(),
                       [&](const Use &use) { return result_of(use.step - 1) != v || use.place != primary(use.step); });
  }

  void emit(Code code, const std::string &what, int a = 0, int b = 0, double p = 0, double q = 0) {
    if (!code) throw std::invalid_argument("the elementwise machine cannot do " + what);
    code_.push_back({code, a, b, p, q});
  }

  int input_lane(int v) const { return v; }
  int output_lane(size_t k) const { return n_inputs_ + static_cast<int>(k); }
  int slot_lane(int slot) const { return output_lane(chain_.results.size()) + slot; }

  // Puts the accumulator into a slot.
  void keep(int v) {
    int &slot = slot_[static_cast<size_t>(v)];
    if (free_.empty()) {
      slot = n_slots_++;
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    emit(machine_.store(own_storage(value(v).lane()), tile_), "a store", slot_lane(slot));
  }

  void fill_slot(int v) {
    emit(machine_.load(value(v).storage, tile_), "a load", input_lane(v));
    keep(v);
  }

  void emit_load(int v) {
    if (value(v).is_scalar) return emit(machine_.load_scalar(value(v).lane(), tile_), "a scalar", v);
    const int slot = slot_[static_cast<size_t>(v)];
    if (slot >= 0) return emit(machine_.load(own_storage(value(v).lane()), tile_), "a load", slot_lane(slot));
    emit(machine_.load(value(v).storage, tile_), "a load", input_lane(v));
  }

  int operand_index(int v) const {
    const int slot = slot_[static_cast<size_t>(v)];
    return value(v).is_scalar || slot < 0 ? v : slot_lane(slot);
  }

  void emit_step(int t) {
    if (!is_held(t)) emit_load(primary_value(t));
    emit_operation(t);
    const int v = result_of(t);
    if (is_narrow_float(value(v).storage)) emit(machine_.round(value(v).storage, tile_), "a rounding");
    release(t);
    if (needs_slot(v)) keep(v);
    for (size_t k = 1; k < chain_.results.size(); ++k)
      if (chain_.results[k] == v && !waits(v)) emit_output(k);
  }

  void emit_operation(int t) {
    const ChainStep &own = step(t);
    const Lane from = value(own.arguments.back()).lane(), to = value(result_of(t)).lane();
    if (own.name == "Cast") {
      if (from != to) emit(machine_.cast(from, to, tile_), "this cast");
      return;
    }
    int a = 0, b = 0;
    const Form form = form_of(t, &a, &b);
    emit(machine_.operation(own.name.c_str(), from, form, tile_), own.name + " of that type", a, b, own.p, own.q);
  }

  Form form_of(int t, int *a, int *b) const {
    const std::vector<int> &arguments = step(t).arguments;
    if (arguments.size() == 1) return Form::lane;
    const bool mirrored = primary(t) == 1;
    const int first = arguments[mirrored ? 0 : 1];
    *a = operand_index(first);
    if (arguments.size() == 2) {
      if (value(first).is_scalar) return mirrored ? Form::scalar_mirrored : Form::scalar;
      return mirrored ? Form::lane_mirrored : Form::lane;
    }
    *b = operand_index(arguments[2]);
    if (value(first).is_scalar) return value(arguments[2]).is_scalar ? Form::scalar : Form::scalar_mirrored;
    return value(arguments[2]).is_scalar ? Form::lane_mirrored : Form::lane;
  }

  // Gives back the slots of values that the step was the last to read.
  void release(int t) {
    for (int v : step(t).arguments) {
      int &slot = slot_[static_cast<size_t>(v)];
      if (slot < 0 || uses_[static_cast<size_t>(v)].back().step != t || v == chain_.results[0] || waits(v)) continue;
      free_.push_back(slot);
      slot = -1;
    }
  }

  void emit_output(size_t k) {
    emit(machine_.store(value(chain_.results[k]).storage, tile_), "a store", output_lane(k));
  }

  // What has waited comes last, since the inputs have been read by then; what the accumulator holds comes before it is lost.
  void finish() {
    const int last = result_of(count() - 1);
    if (chain_.results[0] == last) emit_output(0);
    for (size_t k = 1; k < chain_.results.size(); ++k) {
      if (!waits(chain_.results[k])) continue;
      emit_load(chain_.results[k]);
      emit_output(k);
    }
    if (chain_.results[0] != last) {
      emit_load(chain_.results[0]);
      emit_output(0);
    }
    emit(machine_.stop(), "a stop");
  }

  const Chain &chain_;
  const Machine &machine_;
  const int n_inputs_;
  Tile tile_;
  std::vector<std::vector<Use>> uses_;
  std::vector<int> slot_;  // of each value, -1 for none
  std::vector<int> free_;
  int n_slots_ = 0;
  int last_read_ = -1;
  std::vector<Step> code_;
};

}  // namespace

Lane ChainValue::lane() const { return kind_of(storage).lane; }

bool storage_of(xrt_dtype dtype, Storage *storage) {
  for (const Kind &kind : kKinds)
    if (kind.dtype == dtype) return *storage = kind.storage, true;
  return false;
}

bool storage_of_onnx(int64_t number, Storage *storage) {
  for (const Kind &kind : kKinds)
    if (kind.onnx == number) return *storage = kind.storage, true;
  return false;
}

xrt_dtype dtype_of(Storage storage) { return kind_of(storage).dtype; }

size_t bytes_of(Storage storage) { return bytes_of(dtype_of(storage)); }

int arity_of(const std::string &name) {
  static const char *const kTwo[] = {"Add",  "Sub",         "Mul",     "Div",            "Max",        "Min",       "PRelu",
                                     "Pow",  "Equal",       "Less",    "LessOrEqual",    "Greater",    "GreaterOrEqual",
                                     "And",  "Or",          "Xor",     "BitwiseAnd",     "BitwiseOr",  "BitwiseXor"};
  if (name == "Where") return 3;
  return std::find(std::begin(kTwo), std::end(kTwo), name) == std::end(kTwo) ? 1 : 2;
}

Program compile(const Chain &chain, const Machine &machine) { return Compiler(chain, machine).compile(); }

}  // namespace xrt
