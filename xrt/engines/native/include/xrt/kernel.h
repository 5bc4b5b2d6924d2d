/* The interface between XRT and native kernels: what a C or C++ author includes, and all that XRT knows of a library.
 *
 * A library exports one function, `xrt_library_entry`, that returns a table of kernels. A kernel computes one operator of
 * ONNX or of a domain of your own. XRT asks `why_not` whether it can serve a node, calls `prepare` once for the shapes
 * that a model has, `run` as often as the model is called, from any thread and from several at once, and, where `prepare`
 * returned XRT_OK, `destroy` once.
 *
 * Rules:
 *  - Tensors are DLPack's: `xrt_tensor` is laid out as its DLTensor, so a pointer to one may be cast to the other. Those given
 *    to `run` lie in host memory, C-contiguous, with `strides` filled in and `byte_offset` 0. Booleans take a byte, 0 or 1.
 *  - XRT owns every tensor, and every string and array behind a pointer; they live as long as the call they are given to,
 *    except that `xrt_node` as given to `prepare` (attributes and constants too) lives until after `destroy`.
 *  - `run` writes every element of every output, writes to nothing else, and keeps nothing of a call in the kernel's state.
 *  - Inputs that are left out have `data` NULL and `ndim` -1; outputs that nobody wants likewise.
 *  - No C++ exception leaves a function of the table. What fails returns XRT_FAILED with a text for a person.
 *
 * The interface is plain C11 and C++17. XRT_KERNEL_ABI changes whenever a structure here does; a library of another
 * number is refused, and named. Functions that XRT gives (`xrt_call.parallel`) may be called only during `run`.
 */
#ifndef XRT_KERNEL_H
#define XRT_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XRT_KERNEL_ABI 1

#if defined(_WIN32)
#define XRT_EXPORT __declspec(dllexport)
#else
#define XRT_EXPORT __attribute__((visibility("default")))
#endif

/* ---------------------------------------------------------------- tensors: DLPack's layout */

/* Codes of DLPack: the kind of an element; with `bits` (and `lanes` 1) they name its type. */
enum { XRT_INT = 0, XRT_UINT = 1, XRT_FLOAT = 2, XRT_BFLOAT = 4, XRT_COMPLEX = 5, XRT_BOOL = 6 };

/* Kinds of device of DLPack. */
enum { XRT_CPU = 1, XRT_CUDA = 2 };

typedef struct xrt_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} xrt_dtype;

typedef struct xrt_tensor {
  void *data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  xrt_dtype dtype;
  int64_t *shape;   /* ndim extents, in elements */
  int64_t *strides; /* ndim steps, in elements */
  uint64_t byte_offset;
} xrt_tensor;

/* ---------------------------------------------------------------- what a kernel is told of its node */

enum {
  XRT_ATTR_INT = 1,
  XRT_ATTR_FLOAT = 2,
  XRT_ATTR_STRING = 3,
  XRT_ATTR_TENSOR = 4,
  XRT_ATTR_INTS = 5,
  XRT_ATTR_FLOATS = 6,
  XRT_ATTR_STRINGS = 7
};

/* One attribute. `kind` says which member holds it; attributes that are graphs are not shown. A string is UTF-8, ends with
 * a zero byte, and has `count` bytes before that; for lists `count` is their length. */
typedef struct xrt_attribute {
  const char *name;
  int32_t kind;
  int64_t count;
  int64_t i;
  double f;
  const char *s;
  const int64_t *ints;
  const double *floats;
  const char *const *strings;
  const xrt_tensor *tensor;
} xrt_attribute;

/* A node as `why_not` and `prepare` see it. `inputs[k].data` is NULL unless that input is a constant of the model. For
 * `why_not` an extent may be -1 (not known yet), `ndim` -2 (not even the rank is), and with it `dtype.bits` 0 (nor the type
 * of an element); for `prepare` all are known. An input that is left out has `ndim` -1 and `dtype.bits` 0. */
typedef struct xrt_node {
  const char *domain; /* "" for ONNX's own */
  const char *op_type;
  int64_t version; /* of the domain's operator set, as the model declares it */
  const char *name;
  int32_t n_attributes;
  const xrt_attribute *attributes;
  int32_t n_inputs;
  const xrt_tensor *inputs;
  int32_t n_outputs;
} xrt_node;

/* ---------------------------------------------------------------- what a kernel answers */

enum {
  XRT_OK = 0,
  XRT_REFUSED = 1, /* by why_not and prepare: another kernel or engine may serve the node */
  XRT_FAILED = 2
};

/* Where a function writes why it does not return XRT_OK: at most `capacity` bytes, the closing zero among them. */
typedef struct xrt_text {
  char *data;
  size_t capacity;
} xrt_text;

/* The longest shape that a kernel may announce. */
#define XRT_MAX_RANK 16

/* The type of one output, which `prepare` writes. XRT compares it with what the model says. */
typedef struct xrt_output {
  xrt_dtype dtype;
  int32_t ndim;
  int64_t shape[XRT_MAX_RANK];
} xrt_output;

/* What `prepare` fills in. It is all zeroes before. */
typedef struct xrt_plan {
  void *state;          /* the kernel's own, given to `run` and `destroy`; may stay NULL */
  uint64_t scratch;     /* bytes that `run` wants for itself, aligned to 64 and shared with nobody during the call */
  xrt_output *outputs;  /* n_outputs of them */
} xrt_plan;

/* Part of a piece of work: the items from `begin` up to, not including, `end`. */
typedef void (*xrt_body)(void *argument, int64_t begin, int64_t end);

/* One run. */
typedef struct xrt_call {
  const xrt_tensor *inputs;
  xrt_tensor *outputs;
  void *scratch;   /* NULL where `prepare` asked for none */
  int32_t threads; /* the budget: how many threads `parallel` uses at most, the calling one among them */
  /* Calls `body` on parts of [0, items) that together are all of it, each at least `grain` long but for the last, on several
   * threads; returns when all are done. Not from within a body. */
  void (*parallel)(const struct xrt_call *call, int64_t items, int64_t grain, xrt_body body, void *argument);
  void *host; /* XRT's own */
} xrt_call;

enum {
  XRT_KERNEL_TRAINING = 1,     /* also serves the operator's training form */
  XRT_KERNEL_MODEL_UPDATE = 2, /* may serve an operator that updates the model's own state */
  /* Every output may be given the memory of an input of `in_place` that has its type and shape, several at once: an element is
   * written after the elements at its place have been read from all inputs, and no other element depends on these. */
  XRT_KERNEL_ELEMENTWISE = 4,
};

typedef struct xrt_kernel {
  const char *name; /* for messages, such as "softmax_f32" */
  const char *domain;
  const char *op_type;
  int64_t since;    /* the first version of the operator set that it serves */
  int64_t until;    /* the last one; 0 for no end */
  int32_t priority; /* of several kernels that can serve a node the one of highest priority does; Python kernels have 0 */
  int32_t device_type;
  uint32_t flags;
  uint64_t in_place; /* bit k: output 0 may be given the memory of input k, when that has its type and size */

  /* Returns XRT_OK where the kernel serves the node, else XRT_REFUSED with the reason. NULL: it serves every node. Pure. */
  int32_t (*why_not)(const xrt_node *node, xrt_text why);
  int32_t (*prepare)(const xrt_node *node, xrt_plan *plan, xrt_text why);
  int32_t (*run)(void *state, const xrt_call *call, xrt_text why);
  void (*destroy)(void *state); /* NULL where there is nothing to give back */
} xrt_kernel;

typedef struct xrt_library {
  uint32_t abi; /* XRT_KERNEL_ABI */
  const char *name;
  const char *version; /* part of the signature of everything that is compiled with it: change it when results may change */
  int32_t n_kernels;
  const xrt_kernel *const *kernels;
} xrt_library;

/* What a library exports. `abi` is that of the XRT that asks. The table lives as long as the library. */
XRT_EXPORT const xrt_library *xrt_library_entry(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
