#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace xrt {
namespace {

// The properties of a storage type.
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

// The storage type of a lane's values in slots, which needs no conversion.
Storage own_storage(Lane lane) {
  switch (lane) {
    case Lane::f64: return Storage::f64;
    case Lane::i32: return Storage::i32;
    case Lane::i64: return Storage::i64;
    default: return Storage::f32;
  }
}

bool is_narrow_float(Storage storage) { return storage == Storage::f16 || storage == Storage::bf16; }

// ---------------------------------------------------------------- sums with a product

// Merges the two steps of `a + x * s`, `a - x * s` and `x * s - a` into one, if x is in memory and needs no conversion, and s is
// a scalar. As separate steps they would need a slot for the product or for `a`. Both operations still round.
class ProductMerger {
 public:
  explicit ProductMerger(const Chain &chain) : chain_(chain), uses_(chain.values.size()), product_(chain.steps.size(), -1) {
    for (const ChainStep &step : chain.steps)
      for (int v : step.arguments) ++uses_[static_cast<size_t>(v)];
    for (int v : chain.results) ++uses_[static_cast<size_t>(v)];
  }

  Chain merge() {
    for (size_t t = 0; t < chain_.steps.size(); ++t) find(t);
    Chain merged{{chain_.values.begin(), chain_.values.begin() + chain_.n_inputs()}, {}, {}};
    std::vector<int> number(chain_.values.size(), -1);
    for (int i = 0; i < chain_.n_inputs(); ++i) number[static_cast<size_t>(i)] = i;
    for (size_t t = 0; t < chain_.steps.size(); ++t) {
      if (is_merged(result_of(t))) continue;
      ChainStep step = product_[t] < 0 ? chain_.steps[t] : sum_of(t);
      for (int &v : step.arguments) v = number[static_cast<size_t>(v)];
      number[static_cast<size_t>(result_of(t))] = static_cast<int>(merged.values.size());
      merged.values.push_back(chain_.values[static_cast<size_t>(result_of(t))]);
      merged.steps.push_back(step);
    }
    for (int v : chain_.results) merged.results.push_back(number[static_cast<size_t>(v)]);
    return merged;
  }

 private:
  int result_of(size_t t) const { return chain_.n_inputs() + static_cast<int>(t); }
  const ChainValue &value(int v) const { return chain_.values[static_cast<size_t>(v)]; }
  const ChainStep &step_of(int v) const { return chain_.steps[static_cast<size_t>(v - chain_.n_inputs())]; }
  bool is_merged(int v) const { return std::find(product_.begin(), product_.end(), v) != product_.end(); }

  // Whether a value is in memory and needs no conversion.
  bool is_lane(int v) const {
    const bool is_kept = v < chain_.n_inputs() ? !value(v).is_scalar : uses_[static_cast<size_t>(v)] > 1;
    return is_kept && value(v).storage == own_storage(value(v).lane());
  }
  bool is_scalar(int v) const { return v < chain_.n_inputs() && value(v).is_scalar; }

  bool is_product(int v) const {
    if (v < chain_.n_inputs() || uses_[static_cast<size_t>(v)] != 1 || step_of(v).name != "Mul") return false;
    if (value(v).storage != Storage::f32 && value(v).storage != Storage::f64) return false;
    const std::vector<int> &factors = step_of(v).arguments;
    return (is_lane(factors[0]) && is_scalar(factors[1])) || (is_scalar(factors[0]) && is_lane(factors[1]));
  }

  void find(size_t t) {
    const ChainStep &step = chain_.steps[t];
    if (step.name != "Add" && step.name != "Sub") return;
    for (size_t place : {1, 0}) {
      if (!is_product(step.arguments[place]) || is_scalar(step.arguments[1 - place])) continue;
      product_[t] = step.arguments[place];
      return;
    }
  }

  ChainStep sum_of(size_t t) const {
    const ChainStep &step = chain_.steps[t];
    const bool is_second = step.arguments[1] == product_[t];
    const std::vector<int> &factors = step_of(product_[t]).arguments;
    const bool is_mirrored = is_scalar(factors[0]);
    const char *const name = step.name == "Add" ? "AddProduct" : is_second ? "SubProduct" : "ProductSub";
    return {name, {step.arguments[is_second ? 0 : 1], factors[is_mirrored ? 1 : 0], factors[is_mirrored ? 0 : 1]}};
  }

  const Chain &chain_;
  std::vector<int> uses_;     // for each value the number of steps and outputs that use it
  std::vector<int> product_;  // for each step the product to merge into it; -1 for none
};

// ---------------------------------------------------------------- the program

// Converts a chain to steps that use one accumulator, and assigns slots to values that must be kept in memory.
class Compiler {
 public:
  Compiler(const Chain &chain, const Machine &machine, Stores stores)
      : chain_(chain), machine_(machine), stores_(stores), n_inputs_(chain.n_inputs()), lane_(chain.values.size(), -1) {
    const bool wide =
        std::any_of(chain.values.begin(), chain.values.end(), [](const ChainValue &value) { return is_wide(value.lane()); });
    tile_ = wide ? Tile::half : Tile::full;
    find_uses();
  }

  Program compile() {
    for (int i = 0; i < n_inputs_; ++i)
      if (needs_slot(i)) fill_slot(i);
    find_last_reads();
    for (int t = 0; t < count(); ++t) emit_step(t);
    finish();
    return {code_, n_slots_, tile_ == Tile::full ? machine_.full_tile : machine_.full_tile / 2, conflicts()};
  }

 private:
  struct Use {
    int step, place;
  };

  int count() const { return static_cast<int>(chain_.steps.size()); }
  const ChainValue &value(int v) const { return chain_.values[static_cast<size_t>(v)]; }
  const ChainStep &step(int t) const { return chain_.steps[static_cast<size_t>(t)]; }
  const std::vector<Use> &uses(int v) const { return uses_[static_cast<size_t>(v)]; }
  int lane(int v) const { return lane_[static_cast<size_t>(v)]; }
  int result_of(int t) const { return n_inputs_ + t; }
  bool is_own(int v) const { return value(v).storage == own_storage(value(v).lane()); }

  void find_uses() {
    uses_.resize(chain_.values.size());
    for (int t = 0; t < count(); ++t)
      for (size_t place = 0; place < step(t).arguments.size(); ++place)
        uses_[static_cast<size_t>(step(t).arguments[place])].push_back({t, static_cast<int>(place)});
  }

  // Finds the last step that reads each input from its own memory; -1 if no step does.
  void find_last_reads() {
    last_read_.assign(static_cast<size_t>(n_inputs_), -1);
    for (int i = 0; i < n_inputs_; ++i)
      if (!value(i).is_scalar && lane(i) < 0 && !uses(i).empty()) last_read_[static_cast<size_t>(i)] = uses(i).back().step;
  }

  bool is_result(int v) const { return std::find(chain_.results.begin(), chain_.results.end(), v) != chain_.results.end(); }

  // Whether a value is an output that is stored only at the end of the tile.
  bool waits(int v) const {
    if (stores_ == Stores::at_once || !is_result(v)) return false;
    return v == chain_.results[0] || v - n_inputs_ < *std::max_element(last_read_.begin(), last_read_.end());
  }

  // Returns the (output, input) pairs where the input is read after the output has been stored.
  std::vector<std::pair<int, int>> conflicts() const {
    std::vector<std::pair<int, int>> found;
    if (stores_ == Stores::after_reads) return found;
    for (size_t k = 0; k < chain_.results.size(); ++k)
      for (int i = 0; i < n_inputs_; ++i)
        if (last_read_[static_cast<size_t>(i)] > chain_.results[k] - n_inputs_) found.emplace_back(static_cast<int>(k), i);
    return found;
  }

  // The argument that a step reads from the accumulator: the result of the previous step if possible, else the first argument.
  int primary(int t) const {
    const std::vector<int> &arguments = step(t).arguments;
    const bool second = t > 0 && arguments.size() == 2 && arguments[1] == result_of(t - 1) && arguments[0] != arguments[1];
    return second ? 1 : 0;
  }
  int primary_value(int t) const { return step(t).arguments[static_cast<size_t>(primary(t))]; }
  bool is_held(int t) const { return t > 0 && primary_value(t) == result_of(t - 1); }

  // Whether a value must be stored in a slot, because a step reads it when it is no longer in the accumulator.
  bool needs_slot(int v) const {
    if (v < n_inputs_) {
      if (value(v).is_scalar || is_own(v)) return false;
      return uses(v).size() != 1 || uses(v)[0].place != primary(uses(v)[0].step);
    }
    if (waits(v)) return v != chain_.results[0] || v != result_of(count() - 1);
    if (is_result(v) && is_own(v)) return false;  // it can be read from the output
    return std::any_of(uses(v).begin(), uses(v).end(),
                       [&](const Use &use) { return result_of(use.step - 1) != v || use.place != primary(use.step); });
  }

  void emit(Code code, const std::string &what, int a = 0, int b = 0, double p = 0, double q = 0) {
    if (!code) throw std::invalid_argument("the elementwise machine does not support " + what);
    code_.push_back({code, a, b, p, q});
  }

  int output_lane(size_t k) const { return n_inputs_ + static_cast<int>(k); }
  int first_slot() const { return output_lane(chain_.results.size()); }

  // Stores the accumulator in a slot.
  void keep(int v) {
    int &lane = lane_[static_cast<size_t>(v)];
    if (free_.empty()) {
      lane = first_slot() + n_slots_++;
    } else {
      lane = free_.back();
      free_.pop_back();
    }
    emit(machine_.store(own_storage(value(v).lane()), tile_), "a store", lane);
  }

  void fill_slot(int v) {
    emit(machine_.load(value(v).storage, tile_), "a load", v);
    keep(v);
  }

  void emit_load(int v) {
    if (value(v).is_scalar) return emit(machine_.load_scalar(value(v).lane(), tile_), "a scalar", v);
    const Storage storage = lane(v) < 0 ? value(v).storage : own_storage(value(v).lane());
    emit(machine_.load(storage, tile_), "a load", operand_index(v));
  }

  int operand_index(int v) const { return value(v).is_scalar || lane(v) < 0 ? v : lane(v); }

  void emit_step(int t) {
    if (!is_held(t)) emit_load(primary_value(t));
    emit_operation(t);
    const int v = result_of(t);
    if (is_narrow_float(value(v).storage)) emit(machine_.round(value(v).storage, tile_), "a rounding");
    release(t);
    if (needs_slot(v)) keep(v);
    if (!waits(v)) emit_outputs(v);
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

  // Releases the slots of values that no later step reads.
  void release(int t) {
    for (int v : step(t).arguments) {
      if (lane(v) < first_slot() || uses(v).back().step != t || waits(v)) continue;
      free_.push_back(lane(v));
      lane_[static_cast<size_t>(v)] = -1;
    }
  }

  // Stores the accumulator as an output, from which later steps can read it again.
  void emit_outputs(int v) {
    for (size_t k = 0; k < chain_.results.size(); ++k) {
      if (chain_.results[k] != v) continue;
      emit(machine_.store(value(v).storage, tile_), "a store", output_lane(k));
      if (lane(v) < 0 && is_own(v)) lane_[static_cast<size_t>(v)] = output_lane(k);
    }
  }

  // Stores the outputs that had to wait until all inputs were read. The one in the accumulator is first, before a load replaces
  // it.
  void finish() {
    const int first = chain_.results[0], last = result_of(count() - 1);
    if (waits(first) && first == last) emit_outputs(first);
    for (int v = n_inputs_; v < last; ++v) {
      if (!waits(v)) continue;
      emit_load(v);
      emit_outputs(v);
    }
    emit(machine_.stop(), "a stop");
  }

  const Chain &chain_;
  const Machine &machine_;
  const Stores stores_;
  const int n_inputs_;
  Tile tile_;
  std::vector<std::vector<Use>> uses_;
  std::vector<int> lane_;  // the lane of each value that is in a slot or an output; -1 for other values
  std::vector<int> free_;  // lanes of free slots
  int n_slots_ = 0;
  std::vector<int> last_read_;  // for each input the last step that reads it
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

Program compile(const Chain &chain, const Machine &machine, Stores stores) {
  return Compiler(ProductMerger(chain).merge(), machine, stores).compile();
}

}  // namespace xrt
