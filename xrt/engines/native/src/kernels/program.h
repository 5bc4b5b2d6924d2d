// Compiles a chain of elementwise operators to a program of the elementwise machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "machine.h"
#include "node.h"

namespace xrt {

// A value of a chain: an input or the result of a step.
struct ChainValue {
  Storage storage;
  bool is_scalar = false;  // whether it is an input with a single element
  Lane lane() const;
};

// One operator. Its arguments are indices of values: first come the inputs of the chain, then the results of its steps.
struct ChainStep {
  std::string name;
  std::vector<int> arguments;
  double p = 0, q = 0;
};

struct Chain {
  std::vector<ChainValue> values;
  std::vector<ChainStep> steps;
  std::vector<int> results;  // indices of the values that are outputs
  int n_inputs() const { return static_cast<int>(values.size() - steps.size()); }
};

// When a program stores its outputs. `at_once`: when they are computed. `after_reads`: at the end of the tile, and in slots until
// then, so that an output may share the memory of any input.
enum class Stores : uint8_t { after_reads, at_once };

// The indices of lanes are those of inputs, then of outputs, then of slots. A scalar has the index of its input.
struct Program {
  std::vector<Step> code;
  int slots = 0;
  int tile = 0;  // elements
  std::vector<std::pair<int, int>> conflicts;  // (output, input) pairs that must not share memory
};

// Find the storage of an element type. They return false if the machine does not support it.
bool storage_of(xrt_dtype dtype, Storage *storage);
bool storage_of_onnx(int64_t number, Storage *storage);  // number: TensorProto.DataType
xrt_dtype dtype_of(Storage storage);
size_t bytes_of(Storage storage);

// Returns the number of arguments of an operator.
int arity_of(const std::string &name);

// Throws std::invalid_argument if the machine does not support a step.
Program compile(const Chain &chain, const Machine &machine, Stores stores);

}  // namespace xrt
