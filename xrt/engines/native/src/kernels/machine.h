// The elementwise machine, which evaluates chains of elementwise operators: the elements of its programs.
//
// A program processes one tile of elements at a time. One value, the accumulator, is held in eight vector registers. The code of
// a step updates it and jumps to the code of the next step with the registers as arguments, so a chain of unary operators needs
// no memory. Other values are in lanes: the memory of an input or output at the tile, or a temporary slot.
#pragma once

#include <cstdint>

namespace xrt {

// The type of elements in registers. Narrow floats are float32 there, rounded after each operator. Booleans are int32, 0 or 1.
enum class Lane : uint8_t { f32, f64, i32, i64 };
constexpr int kLaneKinds = 4;
constexpr bool is_wide(Lane lane) { return lane == Lane::f64 || lane == Lane::i64; }

// The type of elements in tensors.
enum class Storage : uint8_t { f32, f64, i32, i64, boolean, f16, bf16, u8, i8 };

// The operands of an operator in addition to the accumulator.
enum class Form : uint8_t {
  // Binary operators: the second operand is a lane, or a scalar that is the same for all elements. In a mirrored form the
  // accumulator is the second operand, and the lane or scalar the first.
  // Ternary operators: the second and third operand are two lanes, two scalars, a lane and a scalar, or a scalar and a lane.
  lane,
  scalar,
  lane_mirrored,
  scalar_mirrored
};
constexpr int kForms = 4;

// The size of a tile: `half`, if a value of the program has eight bytes per element.
enum class Tile : uint8_t { full, half };

// The code of a step. It is cast to its real type, whose parameters are vectors of the instruction set.
using Code = void (*)();

struct Step {
  Code code;
  int32_t a, b;  // indices of lanes or scalars
  double p, q;   // parameters of the operator
};

// The memory that a program reads and writes for one tile.
struct Frame {
  char *const *lanes;
  const uint64_t *scalars;  // the bits of each, in the type of its lane, in the low bytes
};

// The machine for one instruction set.
struct Machine {
  int full_tile;  // elements
  // These return the code of a step, or NULL if the machine does not support it.
  Code (*operation)(const char *name, Lane lane, Form form, Tile tile);
  Code (*cast)(Lane from, Lane to, Tile tile);
  Code (*load)(Storage from, Tile tile);
  Code (*load_scalar)(Lane lane, Tile tile);
  Code (*store)(Storage to, Tile tile);
  Code (*round)(Storage to, Tile tile);  // rounds float32 to the precision of a narrow float
  Code (*stop)();
  void (*run)(const Step *program, const Frame &frame);
};

}  // namespace xrt
