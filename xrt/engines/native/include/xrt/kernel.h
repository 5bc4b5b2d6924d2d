/* The interface between XRT and native kernels. Authors of kernels in C or C++ include only this file.
 *
 * A library exports one function, `xrt_library_entry`, which returns a table of kernels. A kernel computes one operator, of
 * ONNX or of another domain. XRT calls its functions in this order:
 *  1. `why_not` asks whether the kernel supports a node.
 *  2. `prepare` is called once, with the shapes of the model.
 *  3. `run` is called for every run of the model, from any thread, possibly from several at once.
 *  4. `destroy` is called once, if `prepare` returned XRT_OK.
 *
 * Rules:
 *  - `xrt_tensor` has the layout of DLPack's DLTensor, so a pointer to one may be cast to the other. The tensors of `run` are
 *    in host memory and C-contiguous, with `strides` set and `byte_offset` 0. A boolean is one byte, 0 or 1.
 *  - XRT owns every tensor, string and array that it passes. They stay valid until the called function returns. The `xrt_node`
 *    of `prepare`, with its attributes and constants, stays valid until `destroy` returns.
 *  - `run` writes every element of every output, and nothing else. It keeps no data of a call in the kernel's state.
 *  - An input that is left out, or an output that is not used, has `data` NULL and `ndim` -1.
 *  - No function of the table throws a C++ exception. On failure it returns XRT_FAILED and writes an error message.
 *
 * The interface is plain C11 and C++17. XRT_KERNEL_ABI changes whenever a structure in this file does. XRT does not load a
 * library with another number, and reports it. `xrt_call.parallel` may be called only during `run`.
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

/* DLPack's codes of element types. A code and `bits` determine the type; `lanes` is 1. */
enum { XRT_INT = 0, XRT_UINT = 1, XRT_FLOAT = 2, XRT_BFLOAT = 4, XRT_COMPLEX = 5, XRT_BOOL = 6 };

/* DLPack's device types. */
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
  int64_t *shape;   /* ndim sizes, in elements */
  int64_t *strides; /* ndim strides, in elements */
  uint64_t byte_offset;
} xrt_tensor;

enum {
  XRT_ATTR_INT = 1,
  XRT_ATTR_FLOAT = 2,
  XRT_ATTR_STRING = 3,
  XRT_ATTR_TENSOR = 4,
  XRT_ATTR_INTS = 5,
  XRT_ATTR_FLOATS = 6,
  XRT_ATTR_STRINGS = 7
};

/* One attribute. `kind` determines which member holds its value. Attributes that are graphs are not passed. A string is UTF-8
 * and has `count` bytes before the zero byte at its end; of a list, `count` is the length. */
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

/* A node, as passed to `why_not` and `prepare`. `inputs[k].data` is NULL unless that input is a constant of the model. An input
 * that is left out has `ndim` -1 and `dtype.bits` 0. For `prepare` all shapes and types are known. For `why_not` a size may be
 * unknown (-1), or the rank (`ndim` -2), and with it also the element type (`dtype.bits` 0). */
typedef struct xrt_node {
  const char *domain; /* "" for the ONNX domain */
  const char *op_type;
  int64_t version; /* of the domain's operator set, as declared in the model */
  const char *name;
  int32_t n_attributes;
  const xrt_attribute *attributes;
  int32_t n_inputs;
  const xrt_tensor *inputs;
  int32_t n_outputs;
} xrt_node;

enum {
  XRT_OK = 0,
  XRT_REFUSED = 1, /* from why_not and prepare: another kernel or engine may support the node */
  XRT_FAILED = 2
};

/* Buffer for the reason why a function does not return XRT_OK: at most `capacity` bytes, including the zero byte at the end. */
typedef struct xrt_text {
  char *data;
  size_t capacity;
} xrt_text;

/* Maximum rank of an output. */
#define XRT_MAX_RANK 16

/* Type and shape of one output. `prepare` writes them, and XRT compares them with those in the model. */
typedef struct xrt_output {
  xrt_dtype dtype;
  int32_t ndim;
  int64_t shape[XRT_MAX_RANK];
} xrt_output;

/* `prepare` fills this in. All bytes are zero before. */
typedef struct xrt_plan {
  void *state;          /* of the kernel, passed to `run` and `destroy`; may stay NULL */
  uint64_t scratch;     /* bytes of temporary memory for each `run`, aligned to 64 */
  xrt_output *outputs;  /* an array of n_outputs */
} xrt_plan;

/* Processes the items from `begin` to `end`, without `end`. */
typedef void (*xrt_body)(void *argument, int64_t begin, int64_t end);

/* One run. */
typedef struct xrt_call {
  const xrt_tensor *inputs;
  xrt_tensor *outputs;
  void *scratch;   /* NULL if `prepare` requested none */
  int32_t threads; /* maximum number of threads that `parallel` uses, including the calling one */
  /* Splits [0, items) into ranges of at least `grain` items (the last may be shorter), calls `body` for each on several threads,
   * and returns when all are done. A body must not call it. */
  void (*parallel)(const struct xrt_call *call, int64_t items, int64_t grain, xrt_body body, void *argument);
  void *host; /* private to XRT */
} xrt_call;

enum {
  XRT_KERNEL_TRAINING = 1,     /* also supports the operator's training mode */
  XRT_KERNEL_MODEL_UPDATE = 2, /* may be used for an operator that updates the state of the model */
  /* Every output, also several at once, may use the memory of an input in `in_place` with the same type and shape. So the kernel
   * must write an element only after it has read the elements of that index from all inputs, and no other may depend on them. */
  XRT_KERNEL_ELEMENTWISE = 4,
};

typedef struct xrt_kernel {
  const char *name; /* for error messages, such as "softmax_f32" */
  const char *domain;
  const char *op_type;
  int64_t since;    /* the first supported version of the operator set */
  int64_t until;    /* the last supported version; 0 if there is none */
  int32_t priority; /* the kernel with the highest priority is used; kernels in Python have 0 */
  int32_t device_type;
  uint32_t flags;
  uint64_t in_place; /* bit k: output 0 may use the memory of input k, if they have the same type and size */

  /* Returns XRT_OK if the kernel supports the node, else XRT_REFUSED and the reason. It has no side effects. NULL: any node. */
  int32_t (*why_not)(const xrt_node *node, xrt_text why);
  int32_t (*prepare)(const xrt_node *node, xrt_plan *plan, xrt_text why);
  int32_t (*run)(void *state, const xrt_call *call, xrt_text why);
  void (*destroy)(void *state); /* NULL if there is nothing to free */
} xrt_kernel;

typedef struct xrt_library {
  uint32_t abi; /* XRT_KERNEL_ABI */
  const char *name;
  const char *version; /* part of the signature of compiled models: change it when results may change */
  int32_t n_kernels;
  const xrt_kernel *const *kernels;
} xrt_library;

/* Every library exports this function. `abi` is that of the calling XRT. The table must stay valid as long as the library. */
XRT_EXPORT const xrt_library *xrt_library_entry(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
