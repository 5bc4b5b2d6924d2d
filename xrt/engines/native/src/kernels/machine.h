// The machine that evaluates chains of elementwise operators: what its programs are made of, the same for all variants.
//
// A program works on a tile of elements at a time. One value, the accumulator, lies in eight vector registers; each step
// does something to it and jumps to the next step's code with the registers as arguments, so a straight chain of
// operators never touches memory. Other values lie in lanes: an input or output at the tile's place, or a slot of its own.
#ifndef XRT_KERNELS_MACHINE_H
#define XRT_KERNELS_MACHINE_H

#include <cstdint>

namespace xrt {

// How elements are held while they are computed with. Narrow floats are float32, rounded after each operator; booleans
// are int32, 0 or 1.
enum class Lane : uint8_t { f32, f64, i32, i64 };
constexpr int kLaneKinds = 4;
constexpr bool is_wide(Lane lane) { return lane == Lane::f64 || lane == Lane::i64; }

// How elements are stored in tensors.
enum class Storage : uint8_t { f32, f64, i32, i64, boolean, f16, bf16, u8, i8 };

// Where the operands beside the accumulator come from.
enum class Form : uint8_t {
  lane,            // one operand in a lane; of ternary operators, both
  scalar,          // one operand that is the same for all elements; of ternary operators, both
  lane_mirrored,   // the accumulator is the second operand; of ternary operators: lane, scalar
  scalar_mirrored  // likewise; of ternary operators: scalar, lane
};
constexpr int kForms = 4;

// How many elements a tile has: all that fit where every value is of four bytes, else half as many.
enum class Tile : uint8_t { full, half };

// Code of a step; its real type has the variant's vectors as parameters.
using Code = void (*)();

struct Step {
  Code code;
  int32_t a, b;  // indices of lanes or scalars
  double p, q;   // the operator's own parameters
};

// What a program reads and writes at one tile.
struct Frame {
  char *const *lanes;
  const uint64_t *scalars;  // each as bits of its lane's type, in the low bytes
};

// One variant's machine.
struct Machine {
  int full_tile;  // elements
  // Return the code of a step, or NULL where the machine has none.
  Code (*operation)(const char *name, Lane lane, Form form, Tile tile);
  Code (*cast)(Lane from, Lane to, Tile tile);
  Code (*load)(Storage from, Tile tile);
  Code (*load_scalar)(Lane lane, Tile tile);
  Code (*store)(Storage to, Tile tile);
  Code (*round)(Storage to, Tile tile);  // of f32 lanes to what a narrow float holds
  Code (*stop)();
  void (*join)(Step *program, int count);  // lets one code do the steps of each sequence that is known
  void (*run)(const Step *program, const Frame &frame);
};

}  // namespace xrt

#endif
