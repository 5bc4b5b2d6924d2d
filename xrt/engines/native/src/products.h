// Matrix products with the functions of a BLAS library, divided between the threads of XRT's pool.
// xrt/engines/native/bindings.py is the only user of this interface.
//
// The threads of a BLAS library may spin for 0.1 s after a product. The threads of the pool sleep.
#pragma once

#include "xrt/kernel.h"

extern "C" {

// All fields below have 64 bits, so that a caller can pass them as an array of integers.

// A batch of matrices, or one matrix that all products share.
typedef struct xrt_matrices {
  char *data;
  int64_t stride;      // bytes between matrices; 0 if all products share one matrix
  int64_t leading;     // elements between stored rows (BLAS's leading dimension)
  int64_t transposed;  // whether the transpose of each matrix is stored
} xrt_matrices;

// The CBLAS functions for one element type.
typedef struct xrt_blas {
  void *gemm;
  void *gemv;
  int64_t bits;        // bits of an element: 32 or 64
  int64_t index_bits;  // bits of sizes and strides: 32 or 64
} xrt_blas;

typedef struct xrt_products {
  xrt_blas blas;
  int64_t batch, m, n, k;  // c[i] = a[i] b[i] for i < batch; a[i] is m by k, b[i] is k by n, c[i] is m by n
  xrt_matrices a, b, c;    // c is not transposed
} xrt_products;

// Computes all products on at most `threads` threads. The BLAS library must be limited to one thread.
XRT_EXPORT void xrt_multiply(const xrt_products *products, int32_t threads);

}  // extern "C"
