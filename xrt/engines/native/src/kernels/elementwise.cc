// The kernel of `xrt.Elementwise`: a chain of elementwise operators over one shape, evaluated tile by tile.
//
// The attributes of the node, which xrt/engines/native/fusion.py writes, describe the steps of the chain: `operators` has the
// name of each step, `arguments` the indices of the values that it reads (concatenated), `types` the ONNX type of its result,
// `parameters` two numbers per step. `results` has the indices of the values that are outputs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "program.h"
#include "table.h"
#include "variants.h"

namespace xrt {
namespace {

// ---------------------------------------------------------------- broadcast inputs

// How to read an input in the order of the result. Adjacent axes are merged if one step covers both.
struct Layout {
  Shape extents, steps;  // steps in elements; 0 for broadcast axes; the last is 0 or 1
  bool has_result_shape() const { return extents.empty() || (extents.size() == 1 && steps[0] == 1); }
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

// Copies the elements of a broadcast input for one tile to contiguous memory.
class BroadcastReader {
 public:
  BroadcastReader(const Layout &layout, size_t bytes, const char *data, char *buffer, int64_t tile)
      : layout_(layout), bytes_(bytes), data_(data), buffer_(buffer), tile_(tile) {}

  // Returns the address of the elements [begin, begin + count), from which `readable` elements may be read.
  char *at(int64_t begin, int64_t count, int64_t readable) {
    seek(begin);
    const size_t last = layout_.extents.size() - 1;
    const bool in_one_run = layout_.extents[last] - place_[last] >= count;
    if (in_one_run && layout_.steps[last] == 1 && count == readable) return const_cast<char *>(data_) + offset_ * bytes_;
    if (in_one_run && layout_.steps[last] == 0) return repeat();
    filled_ = nullptr;
    gather(count);
    return buffer_;
  }

 private:
  void seek(int64_t index) {
    offset_ = 0;
    for (size_t axis = layout_.extents.size(); axis-- > 0;) {
      place_[axis] = index % layout_.extents[axis];
      index /= layout_.extents[axis];
      offset_ += static_cast<size_t>(place_[axis] * layout_.steps[axis]);
    }
  }

  // The whole tile is a single element. It is often the same as in the previous tile.
  char *repeat() {
    const char *element = data_ + offset_ * bytes_;
    if (filled_ != element) fill(buffer_, element, bytes_, tile_);
    filled_ = element;
    return buffer_;
  }

  void gather(int64_t count) {
    const size_t last = layout_.extents.size() - 1;
    char *to = buffer_;
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
  char *const buffer_;
  const int64_t tile_;
  const char *filled_ = nullptr;
  int64_t place_[XRT_MAX_RANK] = {};
  size_t offset_ = 0;
};

// ---------------------------------------------------------------- the kernel

struct State {
  Chain chain;
  Program early_stores;  // for calls in which no output overwrites an input that is read later
  Program late_stores;   // for all other calls
  Shape shape;
  int64_t size;
  std::vector<Layout> layouts;  // of the inputs
};

// Temporary memory of one thread, on the stack if it is small.
class TemporaryMemory {
 public:
  explicit TemporaryMemory(size_t bytes) {
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

// Runs a program for a range of tiles on one thread.
class TileRunner {
 public:
  TileRunner(const State &state, const Program &program, const xrt_call *call, const uint64_t *scalars)
      : state_(state),
        program_(program),
        call_(call),
        pitch_(static_cast<size_t>(variant().machine->full_tile) * 4),
        memory_((n_inputs() + n_outputs() + static_cast<size_t>(program.slots)) * pitch_),
        lanes_(n_inputs() + n_outputs() + static_cast<size_t>(program.slots)),
        frame_{lanes_.data(), scalars} {
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i] = own(i);
    for (size_t i = 0; i < n_inputs(); ++i) add_input(i);
    for (size_t k = 0; k < n_outputs(); ++k)
      outputs_.push_back({n_inputs() + k, data_of<char>(call->outputs[k]), bytes_of(call->outputs[k].dtype)});
  }

  void run(int64_t begin, int64_t end) {
    const int64_t full_end = std::min(end, state_.size / program_.tile);
    if (begin < full_end) run_full_tiles(begin, full_end);
    if (full_end < end) run_last_tile(full_end * program_.tile, state_.size - full_end * program_.tile);
  }

 private:
  // A tensor with the shape of the result.
  struct DenseTensor {
    size_t lane;
    char *data;
    size_t bytes;  // of an element
    char *at(int64_t element) const { return data + static_cast<size_t>(element) * bytes; }
  };
  struct Broadcast {
    size_t lane;
    BroadcastReader reader;
  };

  size_t n_inputs() const { return state_.layouts.size(); }
  size_t n_outputs() const { return state_.chain.results.size(); }
  char *own(size_t lane) { return memory_.data + lane * pitch_; }

  void add_input(size_t i) {
    const ChainValue &value = state_.chain.values[i];
    char *const data = data_of<char>(call_->inputs[i]);
    if (value.is_scalar) return;
    if (state_.layouts[i].has_result_shape()) return inputs_.push_back({i, data, bytes_of(value.storage)});
    broadcasts_.push_back({i, BroadcastReader(state_.layouts[i], bytes_of(value.storage), data, own(i), program_.tile)});
  }

  void run_full_tiles(int64_t begin, int64_t end) {
    const int64_t tile = program_.tile;
    std::vector<DenseTensor> tensors(inputs_);
    tensors.insert(tensors.end(), outputs_.begin(), outputs_.end());
    for (const DenseTensor &tensor : tensors) lanes_[tensor.lane] = tensor.at(begin * tile);
    for (int64_t index = begin; index < end; ++index) {
      for (Broadcast &input : broadcasts_) lanes_[input.lane] = input.reader.at(index * tile, tile, tile);
      variant().machine->run(program_.code.data(), frame_);
      for (const DenseTensor &tensor : tensors) lanes_[tensor.lane] += static_cast<size_t>(tile) * tensor.bytes;
    }
  }

  // The last tile is incomplete. Inputs and outputs are copied, so that the program can process a full tile.
  void run_last_tile(int64_t first, int64_t count) {
    for (const DenseTensor &input : inputs_) {
      lanes_[input.lane] = own(input.lane);
      std::memcpy(own(input.lane), input.at(first), static_cast<size_t>(count) * input.bytes);
    }
    for (Broadcast &input : broadcasts_) lanes_[input.lane] = input.reader.at(first, count, program_.tile);
    for (const DenseTensor &output : outputs_) lanes_[output.lane] = own(output.lane);
    variant().machine->run(program_.code.data(), frame_);
    for (const DenseTensor &output : outputs_)
      std::memcpy(output.at(first), own(output.lane), static_cast<size_t>(count) * output.bytes);
  }

  const State &state_;
  const Program &program_;
  const xrt_call *const call_;
  const size_t pitch_;
  TemporaryMemory memory_;
  std::vector<char *> lanes_;
  std::vector<DenseTensor> inputs_, outputs_;
  std::vector<Broadcast> broadcasts_;
  Frame frame_;
};

// ---------------------------------------------------------------- reading the node

ChainValue value_of(const xrt_tensor &tensor) {
  ChainValue value{};
  const bool is_supported = storage_of(tensor.dtype, &value.storage);
  if (!is_supported) throw std::invalid_argument("the elementwise machine does not support " + name_of(tensor.dtype));
  return value;
}

void require(bool holds) {
  if (!holds) throw std::invalid_argument("the attributes of the node do not describe a chain");
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
  return catch_errors(why, [&] {
    try {
      compile(chain_of(*node), *variant().machine, Stores::after_reads);
      return static_cast<int32_t>(XRT_OK);
    } catch (const std::invalid_argument &error) {
      return refuse(why, error.what());
    }
  });
}

int32_t prepare(const xrt_node *node, xrt_plan *plan, xrt_text why) {
  return catch_errors(why, [&] {
    auto state = std::make_unique<State>();
    state->chain = chain_of(*node);
    state->shape = broadcast_shape(*node);
    state->size = product(state->shape);
    for (int32_t i = 0; i < node->n_inputs; ++i) {
      state->layouts.push_back(layout_of(shape_of(node->inputs[i]), state->shape));
      state->chain.values[static_cast<size_t>(i)].is_scalar = size_of(node->inputs[i]) == 1;
    }
    state->early_stores = compile(state->chain, *variant().machine, Stores::at_once);
    state->late_stores = compile(state->chain, *variant().machine, Stores::after_reads);
    for (size_t k = 0; k < state->chain.results.size(); ++k) {
      const ChainValue &value = state->chain.values[static_cast<size_t>(state->chain.results[k])];
      set_output(plan->outputs[k], dtype_of(value.storage), state->shape);
    }
    plan->state = state.release();
    return static_cast<int32_t>(XRT_OK);
  });
}

// Returns the bits of a scalar input in the type of its lane. The machine converts it, so that scalars and tensors agree.
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

bool overlap(const xrt_tensor &first, const xrt_tensor &second) {
  const char *const a = data_of<char>(first), *const b = data_of<char>(second);
  const auto bytes = [](const xrt_tensor &tensor) { return static_cast<size_t>(size_of(tensor)) * bytes_of(tensor.dtype); };
  return a < b + bytes(second) && b < a + bytes(first);
}

const Program &choose_program(const State &state, const xrt_call *call) {
  for (const auto &[output, input] : state.early_stores.conflicts)
    if (overlap(call->outputs[output], call->inputs[input])) return state.late_stores;
  return state.early_stores;
}

int32_t run(void *opaque, const xrt_call *call, xrt_text why) {
  return catch_errors(why, [&] {
    const State &state = *static_cast<const State *>(opaque);
    std::vector<uint64_t> scalars(state.layouts.size());
    for (size_t i = 0; i < scalars.size(); ++i) {
      const ChainValue &value = state.chain.values[i];
      if (value.is_scalar) scalars[i] = scalar_of(call->inputs[i], value.storage, value.lane());
    }
    const Program &program = choose_program(state, call);
    const int64_t tile = program.tile, tiles = (state.size + tile - 1) / tile;
    const int64_t cost = tile * static_cast<int64_t>(program.code.size()) / 4;
    return run_in_parallel(call, tiles, cost, why,
                     [&](int64_t begin, int64_t end) { TileRunner(state, program, call, scalars.data()).run(begin, end); });
  });
}

void destroy(void *state) { delete static_cast<State *>(state); }

}  // namespace

const xrt_kernel kElementwise = {"elementwise", "xrt", "Elementwise", 1, 0, 1, XRT_CPU,
                                 XRT_KERNEL_MODEL_UPDATE | XRT_KERNEL_ELEMENTWISE, ~uint64_t{0},
                                 why_not, prepare, run, destroy};

}  // namespace xrt
