// Matrix products by a BLAS that the caller names, in parts on XRT's own threads. Between this file and xrt/engines/native/
// bindings.py only.
//
// The threads of a BLAS may spin for a tenth of a second after a product, in case there is another. Those of the pool sleep.
#ifndef XRT_PRODUCTS_H
#define XRT_PRODUCTS_H

#include "xrt/kernel.h"

extern "C" {

// Every field below has 64 bits, so that a caller may hand over a row of numbers.

// A row of matrices, or one matrix for all products.
typedef struct xrt_matrices {
  char *data;
  int64_t next;     // bytes from one matrix to the next; 0 where all are the same
  int64_t leading;  // elements from one row, as it is stored, to the next
  int64_t flipped;  // whether its transpose is what is stored
} xrt_matrices;

// The calls of CBLAS for one type of elements.
typedef struct xrt_blas {
  void *gemm;
  void *gemv;
  int64_t bits;     // of an element: 32 or 64
  int64_t indices;  // the bits of an index: 32 or 64
} xrt_blas;

typedef struct xrt_products {
  xrt_blas blas;
  int64_t batch, m, n, k;  // c[i] = a[i] b[i], where c is m by n and its sums have k terms
  xrt_matrices a, b, c;    // c is not flipped
} xrt_products;

// Computes all products on at most that many threads. The BLAS itself must be held to one.
XRT_EXPORT void xrt_multiply(const xrt_products *products, int32_t threads);

}  // extern "C"

#endif
