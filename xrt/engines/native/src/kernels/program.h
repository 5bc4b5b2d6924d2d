// Chains of elementwise operators: from what a node says to a program of the machine.
#ifndef XRT_KERNELS_PROGRAM_H
#define XRT_KERNELS_PROGRAM_H

#include <string>
#include <utility>
#include <vector>

#include "machine.h"
#include "node.h"

namespace xrt {

// A value of a chain: an input, or what an operator gives.
struct ChainValue {
  Storage storage;
  bool is_scalar = false;  // of inputs: one element for all
  Lane lane() const;
};

// One operator; its arguments are numbers of values: first the inputs, then the operators in order.
struct ChainStep {
  std::string name;
  std::vector<int> arguments;
  double p = 0, q = 0;
};

struct Chain {
  std::vector<ChainValue> values;
  std::vector<ChainStep> steps;
  std::vector<int> results;  // numbers of the values that are outputs
  int n_inputs() const { return static_cast<int>(values.size() - steps.size()); }
};

// When a program stores its outputs: in a slot first and to where they go at the end of a tile, so that each may have the
// memory of any input; or as soon as they are known.
enum class Stores : uint8_t { after_reads, at_once };

// Lanes are numbered: inputs, outputs, slots. Scalars have the numbers of their inputs.
struct Program {
  std::vector<Step> code;
  int slots = 0;
  int tile = 0;  // elements
  std::vector<std::pair<int, int>> conflicts;  // outputs and inputs that must not share memory
};

// Whether elements of that type can be read and written.
bool storage_of(xrt_dtype dtype, Storage *storage);
size_t bytes_of(Storage storage);

// The dtype of an ONNX number (TensorProto.DataType), as far as chains know it.
bool storage_of_onnx(int64_t number, Storage *storage);
xrt_dtype dtype_of(Storage storage);

// How many arguments the operator takes.
int arity_of(const std::string &name);

// Throws std::invalid_argument where the machine has no code for a step.
Program compile(const Chain &chain, const Machine &machine, Stores stores);

}  // namespace xrt

#endif
