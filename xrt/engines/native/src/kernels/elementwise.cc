// The kernel of `xrt.Elementwise`: a chain of elementwise operators over one shape, evaluated tile by tile.
//
// The node's attributes hold the chain (xrt/engines/native/chains.py writes them): `operators`, one name per step;
// `arguments`, the numbers of the values that each step reads, one list after the other; `types`, the ONNX type of what
// each gives; `parameters`, two per step; `results`, the numbers of the values that are outputs.
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
  Program program;
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

constexpr size_t kAhead = 1024;            // bytes
constexpr int64_t kFarElements = 1 << 18;  // from which on the inputs are taken to lie beyond the processor's own caches

// What one thread needs for a part of a call's tiles.
class Part {
 public:
  Part(const State &state, const xrt_call *call, const uint64_t *scalars)
      : state_(state),
        call_(call),
        n_inputs_(state.layouts.size()),
        n_outputs_(state.chain.results.size()),
        pitch_(static_cast<size_t>(variant().machine->full_tile) * 4),
        room_((n_inputs_ + n_outputs_ + static_cast<size_t>(state.program.slots)) * pitch_),
        lanes_(n_inputs_ + n_outputs_ + static_cast<size_t>(state.program.slots)),
        frame_{lanes_.data(), scalars} {
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i] = own(i);
    spreads_.reserve(n_inputs_);
    for (size_t i = 0; i < n_inputs_; ++i) {
      spreads_.emplace_back(state.layouts[i], input_bytes(i), data_of<char>(call->inputs[i]), own(i));
      spreads_.back().tile = state.program.tile;
    }
  }

  void run(int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t first = index * state_.program.tile, left = state_.size - first;
      if (left >= state_.program.tile) {
        run_whole(first);
      } else {
        run_rest(first, left);
      }
    }
  }

 private:
  char *own(size_t lane) { return room_.data + lane * pitch_; }
  size_t input_bytes(size_t i) const { return bytes_of(state_.chain.values[i].storage); }
  size_t output_bytes(size_t k) const { return bytes_of(call_->outputs[k].dtype); }
  char *output(size_t k, int64_t first) const {
    return data_of<char>(call_->outputs[k]) + static_cast<size_t>(first) * output_bytes(k);
  }

  void run_whole(int64_t first) {
    for (size_t i = 0; i < n_inputs_; ++i) {
      if (state_.chain.values[i].is_scalar) continue;
      if (state_.layouts[i].is_whole()) {
        lanes_[i] = data_of<char>(call_->inputs[i]) + static_cast<size_t>(first) * input_bytes(i);
        if (state_.size >= kFarElements) fetch(lanes_[i], input_bytes(i) * static_cast<size_t>(state_.program.tile));
      } else {
        lanes_[i] = spreads_[i].at(first, state_.program.tile, state_.program.tile);
      }
    }
    for (size_t k = 0; k < n_outputs_; ++k) lanes_[n_inputs_ + k] = output(k, first);
    variant().machine->run(state_.program.code.data(), frame_);
  }

  // Asks for the tile some way ahead: the processor's own prefetching ends at each page, and a tile's operators leave it no time.
  static void fetch(const char *lane, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(lane + kAhead + line);
  }

  // The last tile is not full: inputs come from copies, outputs go by way of copies.
  void run_rest(int64_t first, int64_t count) {
    for (size_t i = 0; i < n_inputs_; ++i) {
      if (state_.chain.values[i].is_scalar) continue;
      lanes_[i] = own(i);
      if (state_.layouts[i].is_whole()) {
        std::memcpy(own(i), data_of<char>(call_->inputs[i]) + static_cast<size_t>(first) * input_bytes(i),
                    static_cast<size_t>(count) * input_bytes(i));
      } else {
        lanes_[i] = spreads_[i].at(first, count, state_.program.tile);
      }
    }
    for (size_t k = 0; k < n_outputs_; ++k) lanes_[n_inputs_ + k] = own(n_inputs_ + k);
    variant().machine->run(state_.program.code.data(), frame_);
    for (size_t k = 0; k < n_outputs_; ++k)
      std::memcpy(output(k, first), own(n_inputs_ + k), static_cast<size_t>(count) * output_bytes(k));
  }

  const State &state_;
  const xrt_call *const call_;
  const size_t n_inputs_, n_outputs_, pitch_;
  Room room_;
  std::vector<char *> lanes_;
  std::vector<Spread> spreads_;
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
      compile(chain_of(*node), *variant().machine);
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
    state->program = compile(state->chain, *variant().machine);
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

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return guarded(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    std::vector<uint64_t> scalars(state.layouts.size());
    for (size_t i = 0; i < scalars.size(); ++i) {
      const ChainValue &value = state.chain.values[i];
      if (value.is_scalar) scalars[i] = scalar_of(call->inputs[i], value.storage, value.lane());
    }
    const int64_t tile = state.program.tile, tiles = (state.size + tile - 1) / tile;
    const int64_t cost = tile * static_cast<int64_t>(state.program.code.size()) / 4;
    return each_part(call, tiles, cost, why,
                     [&](int64_t begin, int64_t end) { Part(state, call, scalars.data()).run(begin, end); });
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

}  // namespace

const xrt_kernel kElementwise = {"elementwise", "xrt", "Elementwise", 1, 0, 1, XRT_CPU,
                                 XRT_KERNEL_MODEL_UPDATE | XRT_KERNEL_ELEMENTWISE, ~uint64_t{0},
                                 why_not, prepare, run, destroy};

}  // namespace xrt
