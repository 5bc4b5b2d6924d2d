#include "products.h"

#include <algorithm>

#include "pool.h"

namespace {

constexpr int kRowMajor = 101;
constexpr int kNotTransposed = 111;
constexpr int kTransposed = 112;
// A piece is a multiple of this many rows or columns. The block sizes of most BLAS kernels divide it.
constexpr int64_t kGrain = 48;

int encode_transpose(bool transposed) { return transposed ? kTransposed : kNotTransposed; }

// The products of matrices with elements T by a BLAS library with indices of type Index.
template <class T, class Index>
struct Products {
  using Gemm = void (*)(int, int, int, Index, Index, Index, T, const T *, Index, const T *, Index, T, T *, Index);
  using Gemv = void (*)(int, int, Index, Index, T, const T *, Index, const T *, Index, T, T *, Index);

  // Computes a block of one result: `rows` by `columns` elements from `row` and `column` on.
  static void compute_block(const xrt_products &p, int64_t item, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const T *a = at(p.a, item, row, 0), *b = at(p.b, item, 0, column);
    T *c = at(p.c, item, row, column);
    const auto index = [](int64_t i) { return static_cast<Index>(i); };
    const bool transpose_a = p.a.transposed != 0, transpose_b = p.b.transposed != 0;
    const Index lda = index(p.a.leading), ldb = index(p.b.leading), ldc = index(p.c.leading), k = index(p.k);
    const auto gemv = reinterpret_cast<Gemv>(p.blas.gemv);
    if (p.n == 1) {  // b is a vector
      const Index stored_rows = transpose_a ? k : index(rows), stored_columns = transpose_a ? index(rows) : k;
      gemv(kRowMajor, encode_transpose(transpose_a), stored_rows, stored_columns, 1, a, lda, b, transpose_b ? 1 : ldb, 0, c, ldc);
    } else if (p.m == 1) {  // a is a vector: c = b^T a
      const Index stored_rows = transpose_b ? index(columns) : k, stored_columns = transpose_b ? k : index(columns);
      gemv(kRowMajor, encode_transpose(!transpose_b), stored_rows, stored_columns, 1, b, ldb, a, transpose_a ? lda : 1, 0, c, 1);
    } else {
      const auto gemm = reinterpret_cast<Gemm>(p.blas.gemm);
      gemm(kRowMajor, encode_transpose(transpose_a), encode_transpose(transpose_b), index(rows), index(columns), k, 1, a, lda, b,
           ldb, 0, c, ldc);
    }
  }

 private:
  static T *at(const xrt_matrices &x, int64_t item, int64_t row, int64_t column) {
    T *matrix = reinterpret_cast<T *>(x.data + item * x.stride);
    return matrix + (x.transposed != 0 ? column * x.leading + row : row * x.leading + column);
  }
};

using ComputeBlock = void (*)(const xrt_products &, int64_t, int64_t, int64_t, int64_t, int64_t);

ComputeBlock choose_function(const xrt_blas &blas) {
  const bool short_index = blas.index_bits == 32;
  if (blas.bits == 32) return short_index ? Products<float, int32_t>::compute_block : Products<float, int64_t>::compute_block;
  return short_index ? Products<double, int32_t>::compute_block : Products<double, int64_t>::compute_block;
}

// The division of the work into pieces: whole products if there are enough of them, else parts of their longer side.
struct Division {
  const xrt_products *products;
  ComputeBlock compute_block;
  int64_t pieces;  // pieces per product
  int64_t length;  // rows or columns per piece
  bool by_rows;
};

void compute_pieces(void *argument, int64_t begin, int64_t end) {
  const Division &division = *static_cast<const Division *>(argument);
  const xrt_products &p = *division.products;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t item = i / division.pieces, first = i % division.pieces * division.length;
    const int64_t count = std::min(division.length, (division.by_rows ? p.m : p.n) - first);
    if (division.by_rows) {
      division.compute_block(p, item, first, count, 0, p.n);
    } else {
      division.compute_block(p, item, 0, p.m, first, count);
    }
  }
}

}  // namespace

void xrt_multiply(const xrt_products *products, int32_t threads) {
  const xrt_products &p = *products;
  const bool by_rows = p.m >= p.n;
  const int64_t side = by_rows ? p.m : p.n;
  const int64_t pieces = p.batch >= 2 * threads ? 1 : std::max<int64_t>(threads, 1);
  const int64_t grains = (side + kGrain - 1) / kGrain;
  const int64_t length = (grains + pieces - 1) / pieces * kGrain;
  Division division{products, choose_function(p.blas), (side + length - 1) / length, length, by_rows};
  xrt::parallel(threads, p.batch * division.pieces, 1, compute_pieces, &division);
}
