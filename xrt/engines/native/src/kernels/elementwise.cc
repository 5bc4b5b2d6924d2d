// The kernel of `xrt.Elementwise`: a chain of elementwise operators over one shape, evaluated tile by tile.
//
// The node's attributes hold the chain (xrt/engines/native/fusion.py writes them): `operators`, one name per step;
// `arguments`, the numbers of the values that each step reads, one list after the other; `types`, the ONNX type of what
// each gives; `parameters`, two per step; `results`, the numbers of the values that are outputs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "program.h"
#include "table.h"
#include "variants.h"

namespace xrt {
namespace {

// ---------------------------------------------------------------- inputs that are broadcast

// How an input lies in the shape of the result: axes that can be stepped over as one are one.
struct Layout {
  Shape extents, steps;  // steps in elements, 0 along axes that are broadcast; the last is 0 or 1
  bool is_whole() const { return extents.empty() || (extents.size() == 1 && steps[0] == 1); }
};

Layout layout_of(const Shape &own, const Shape &result) {
  if (own.size() > result.size()) throw std::invalid_argument("an input has more axes than the result");
  Layout layout;
  int64_t step = 1;
  for (size_t axis = result.size(), left = own.size(); axis-- > 0;) {
    const int64_t extent = result[axis], given = left ? own[--left] : 1;
    if (given != extent && given != 1) throw std::invalid_argument("an input does not broadcast to the result's shape");
    const int64_t own_step = given == 1 ? 0 : step;
    step *= given;
    if (extent == 1) continue;
    if (!layout.extents.empty() && own_step == layout.steps.front() * layout.extents.front()) {
      layout.extents.front() *= extent;
      continue;
    }
    layout.extents.insert(layout.extents.begin(), extent);
    layout.steps.insert(layout.steps.begin(), own_step);
  }
  return layout;
}

void fill(char *to, const char *element, size_t bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + static_cast<size_t>(i) * bytes, element, bytes);
}

// Brings a broadcast input's elements at one tile side by side.
class Spread {
 public:
  Spread(const Layout &layout, size_t bytes, const char *data, char *room)
      : layout_(layout), bytes_(bytes), data_(data), room_(room) {}

  // Where the elements [begin, begin + count) lie; `whole` is how many may be read there.
  char *at(int64_t begin, int64_t count, int64_t whole) {
    seek(begin);
    const size_t last = layout_.extents.size() - 1;
    const bool in_one_run = layout_.extents[last] - place_[last] >= count;
    if (in_one_run && layout_.steps[last] == 1 && count == whole) return const_cast<char *>(data_) + offset_ * bytes_;
    if (in_one_run && layout_.steps[last] == 0) return repeat();
    filled_ = nullptr;
    gather(count);
    return room_;
  }

  // How many elements `repeat` fills.
  int64_t tile = 0;

 private:
  void seek(int64_t index) {
    offset_ = 0;
    for (size_t axis = layout_.extents.size(); axis-- > 0;) {
      place_[axis] = index % layout_.extents[axis];
      index /= layout_.extents[axis];
      offset_ += static_cast<size_t>(place_[axis] * layout_.steps[axis]);
    }
  }

  // All of the tile is one element: the tile before was often the same.
  char *repeat() {
    const char *element = data_ + offset_ * bytes_;
    if (filled_ != element) fill(room_, element, bytes_, tile);
    filled_ = element;
    return room_;
  }

  void gather(int64_t count) {
    const size_t last = layout_.extents.size() - 1;
    char *to = room_;
    while (count > 0) {
      const int64_t left = layout_.extents[last] - place_[last], run = left < count ? left : count;
      const char *from = data_ + offset_ * bytes_;
      const size_t bytes = static_cast<size_t>(run) * bytes_;
      if (layout_.steps[last] == 1) {
        std::memcpy(to, from, bytes);
      } else {
        fill(to, from, bytes_, run);
      }
      to += bytes;
      count -= run;
      advance(run);
    }
  }

  void advance(int64_t run) {
    size_t axis = layout_.extents.size() - 1;
    place_[axis] += run;
    offset_ += static_cast<size_t>(run * layout_.steps[axis]);
    while (axis > 0 && place_[axis] == layout_.extents[axis]) {
      offset_ -= static_cast<size_t>(layout_.extents[axis] * layout_.steps[axis]);
      place_[axis--] = 0;
      ++place_[axis];
      offset_ += static_cast<size_t>(layout_.steps[axis]);
    }
  }

  const Layout &layout_;
  const size_t bytes_;
  const char *const data_;
  char *const room_;
  const char *filled_ = nullptr;
  int64_t place_[XRT_MAX_RANK] = {};
  size_t offset_ = 0;
};

// ---------------------------------------------------------------- the kernel

struct State {
  Chain chain;
  Program prompt;   // stores outputs at once: for calls in which none lies where an input is still to be read
  Program patient;  // for any call
  Shape shape;
  int64_t size;
  std::vector<Layout> layouts;  // of the inputs
};

// Memory that one thread works in: from the stack where it is little.
class Room {
 public:
  explicit Room(size_t bytes) {
    if (bytes > sizeof own_) more_.resize(bytes + 64);
    char *const start = bytes > sizeof own_ ? more_.data() : own_;
    data = start + (64 - reinterpret_cast<uintptr_t>(start) % 64) % 64;
    std::memset(data, 0, bytes);
  }
  char *data;

 private:
  alignas(64) char own_[1 << 14];
  std::vector<char> more_;
};

// What one thread needs for a part of a call's tiles.
class Part {
 public:
  Part(const State &state, const Program &program, const xrt_call *call, const uint64_t *scalars)
      : state_(state),
        program_(program),
        call_(call),
        pitch_(static_cast<size_t>(variant().machine->full_tile) * 4),
        room_((n_inputs() + n_outputs() + static_cast<size_t>(program.slots)) * pitch_),
        lanes_(n_inputs() + n_outputs() + static_cast<size_t>(program.slots)),
        frame_{lanes_.data(), scalars} {
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i] = own(i);
    for (size_t i = 0; i < n_inputs(); ++i) add_input(i);
    for (size_t k = 0; k < n_outputs(); ++k)
      outputs_.push_back({n_inputs() + k, data_of<char>(call->outputs[k]), bytes_of(call->outputs[k].dtype)});
  }

  void run(int64_t begin, int64_t end) {
    const int64_t whole = std::min(end, state_.size / program_.tile);
    if (begin < whole) run_whole(begin, whole);
    if (whole < end) run_rest(whole * program_.tile, state_.size - whole * program_.tile);
  }

 private:
  // A tensor whose elements are those of the result, one for one.
  struct Whole {
    size_t lane;
    char *data;
    size_t bytes;  // of an element
    char *at(int64_t element) const { return data + static_cast<size_t>(element) * bytes; }
  };
  struct Broadcast {
    size_t lane;
    Spread spread;
  };

  size_t n_inputs() const { return state_.layouts.size(); }
  size_t n_outputs() const { return state_.chain.results.size(); }
  char *own(size_t lane) { return room_.data + lane * pitch_; }

  void add_input(size_t i) {
    const ChainValue &value = state_.chain.values[i];
    char *const data = data_of<char>(call_->inputs[i]);
    if (value.is_scalar) return;
    if (state_.layouts[i].is_whole()) return inputs_.push_back({i, data, bytes_of(value.storage)});
    broadcasts_.push_back({i, Spread(state_.layouts[i], bytes_of(value.storage), data, own(i))});
    broadcasts_.back().spread.tile = program_.tile;
  }

  void run_whole(int64_t begin, int64_t end) {
    const int64_t tile = program_.tile;
    std::vector<Whole> moving(inputs_);
    moving.insert(moving.end(), outputs_.begin(), outputs_.end());
    for (const Whole &whole : moving) lanes_[whole.lane] = whole.at(begin * tile);
    for (int64_t index = begin; index < end; ++index) {
      for (Broadcast &one : broadcasts_) lanes_[one.lane] = one.spread.at(index * tile, tile, tile);
      variant().machine->run(program_.code.data(), frame_);
      for (const Whole &whole : moving) lanes_[whole.lane] += static_cast<size_t>(tile) * whole.bytes;
    }
  }

  // The last tile is not full: inputs come from copies, outputs go by way of copies.
  void run_rest(int64_t first, int64_t count) {
    for (const Whole &input : inputs_) {
      lanes_[input.lane] = own(input.lane);
      std::memcpy(own(input.lane), input.at(first), static_cast<size_t>(count) * input.bytes);
    }
    for (Broadcast &one : broadcasts_) lanes_[one.lane] = one.spread.at(first, count, program_.tile);
    for (const Whole &output : outputs_) lanes_[output.lane] = own(output.lane);
    variant().machine->run(program_.code.data(), frame_);
    for (const Whole &output : outputs_)
      std::memcpy(output.at(first), own(output.lane), static_cast<size_t>(count) * output.bytes);
  }

  const State &state_;
  const Program &program_;
  const xrt_call *const call_;
  const size_t pitch_;
  Room room_;
  std::vector<char *> lanes_;
  std::vector<Whole> inputs_, outputs_;
  std::vector<Broadcast> broadcasts_;
  Frame frame_;
};

// ---------------------------------------------------------------- reading the node

ChainValue value_of(const xrt_tensor &tensor) {
  ChainValue value{};
  if (!storage_of(tensor.dtype, &value.storage)) throw std::invalid_argument("it does not take " + name_of(tensor.dtype));
  return value;
}

void require(bool holds) {
  if (!holds) throw std::invalid_argument("the node's attributes do not describe a chain");
}

std::vector<ChainStep> steps_of(const xrt_node &node) {
  const std::vector<std::string> operators = strings_of(node, "operators");
  const std::vector<int64_t> arguments = ints_of(node, "arguments");
  const std::vector<double> parameters = floats_of(node, "parameters");
  require(!operators.empty() && parameters.size() == 2 * operators.size());
  std::vector<ChainStep> steps;
  size_t next = 0;
  for (size_t t = 0; t < operators.size(); ++t) {
    ChainStep step{operators[t], {}, parameters[2 * t], parameters[2 * t + 1]};
    for (int left = arity_of(step.name); left > 0; --left) {
      require(next < arguments.size() && arguments[next] >= 0 &&
              arguments[next] < node.n_inputs + static_cast<int64_t>(t));
      step.arguments.push_back(static_cast<int>(arguments[next++]));
    }
    steps.push_back(step);
  }
  require(next == arguments.size());
  return steps;
}

Chain chain_of(const xrt_node &node) {
  Chain chain;
  for (int32_t i = 0; i < node.n_inputs; ++i) chain.values.push_back(value_of(node.inputs[i]));
  chain.steps = steps_of(node);
  const std::vector<int64_t> types = ints_of(node, "types"), results = ints_of(node, "results");
  require(types.size() == chain.steps.size() && results.size() == static_cast<size_t>(node.n_outputs) && !results.empty());
  for (int64_t type : types) {
    ChainValue value{};
    require(storage_of_onnx(type, &value.storage));
    chain.values.push_back(value);
  }
  for (int64_t result : results) {
    require(result >= node.n_inputs && result < static_cast<int64_t>(chain.values.size()));
    chain.results.push_back(static_cast<int>(result));
  }
  return chain;
}

Shape broadcast_shape(const xrt_node &node) {
  Shape result;
  for (int32_t i = 0; i < node.n_inputs; ++i) {
    const Shape own = shape_of(node.inputs[i]);
    if (own.size() > result.size()) result.insert(result.begin(), own.size() - result.size(), 1);
    for (size_t k = 0; k < own.size(); ++k) {
      int64_t &extent = result[result.size() - own.size() + k];
      if (extent == 1) extent = own[k];
    }
  }
  return result;
}

int32_t why_not(const xrt_node *node, xrt_text why) {
  return guarded(why, [&] {
    try {
      compile(chain_of(*node), *variant().machine, Stores::after_reads);
      return static_cast<int32_t>(XRT_OK);
    } catch (const std::invalid_argument &error) {
      return refuse(why, error.what());
    }
  });
}

int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return guarded(why, [&] {
    auto state = std::make_unique<State>();
    state->chain = chain_of(*node);
    state->shape = broadcast_shape(*node);
    state->size = product(state->shape);
    for (int32_t i = 0; i < node->n_inputs; ++i) {
      state->layouts.push_back(layout_of(shape_of(node->inputs[i]), state->shape));
      state->chain.values[static_cast<size_t>(i)].is_scalar = size_of(node->inputs[i]) == 1;
    }
    state->prompt = compile(state->chain, *variant().machine, Stores::at_once);
    state->patient = compile(state->chain, *variant().machine, Stores::after_reads);
    for (size_t k = 0; k < state->chain.results.size(); ++k) {
      const ChainValue &value = state->chain.values[static_cast<size_t>(state->chain.results[k])];
      announce(plan->outputs[k], dtype_of(value.storage), state->shape);
    }
    plan->state = state.release();
    return static_cast<int32_t>(XRT_OK);
  });
}

// A scalar input's element as bits of its lane: the machine itself converts it, as it does in any tile.
uint64_t scalar_of(const xrt_tensor &tensor, Storage storage, Lane lane) {
  alignas(64) char from[1024] = {}, to[1024] = {};
  std::memcpy(from, tensor.data, bytes_of(storage));
  char *const lanes[] = {from, to};
  const Machine &machine = *variant().machine;
  Storage own = storage;
  if (lane == Lane::f32) own = Storage::f32;
  if (lane == Lane::i32) own = Storage::i32;
  const Step program[] = {{machine.load(storage, Tile::half), 0, 0, 0, 0},
                          {machine.store(own, Tile::half), 1, 0, 0, 0},
                          {machine.stop(), 0, 0, 0, 0}};
  machine.run(program, {lanes, nullptr});
  uint64_t bits = 0;
  std::memcpy(&bits, to, bytes_of(own));
  return bits;
}

bool overlap(const xrt_tensor &one, const xrt_tensor &other) {
  const char *const a = data_of<char>(one), *const b = data_of<char>(other);
  const auto bytes = [](const xrt_tensor &tensor) { return static_cast<size_t>(size_of(tensor)) * bytes_of(tensor.dtype); };
  return a < b + bytes(other) && b < a + bytes(one);
}

const Program &choose_program(const State &state, const xrt_call *call) {
  for (const auto &[output, input] : state.prompt.conflicts)
    if (overlap(call->outputs[output], call->inputs[input])) return state.patient;
  return state.prompt;
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return guarded(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    std::vector<uint64_t> scalars(state.layouts.size());
    for (size_t i = 0; i < scalars.size(); ++i) {
      const ChainValue &value = state.chain.values[i];
      if (value.is_scalar) scalars[i] = scalar_of(call->inputs[i], value.storage, value.lane());
    }
    const Program &program = choose_program(state, call);
    const int64_t tile = program.tile, tiles = (state.size + tile - 1) / tile;
    const int64_t cost = tile * static_cast<int64_t>(program.code.size()) / 4;
    return each_part(call, tiles, cost, why,
                     [&](int64_t begin, int64_t end) { Part(state, program, call, scalars.data()).run(begin, end); });
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

}  // namespace

const xrt_kernel kElementwise = {"elementwise", "xrt", "Elementwise", 1, 0, 1, XRT_CPU,
                                 XRT_KERNEL_MODEL_UPDATE | XRT_KERNEL_ELEMENTWISE, ~uint64_t{0},
                                 why_not, prepare, run, destroy};

}  // namespace xrt
