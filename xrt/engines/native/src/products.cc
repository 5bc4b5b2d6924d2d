#include "products.h"

#include <algorithm>

#include "pool.h"

namespace {

constexpr int kRowMajor = 101;
constexpr int kNotFlipped = 111;
constexpr int kFlipped = 112;
// A part is a multiple of this many rows or columns: what every kernel of a BLAS takes at once divides it, or nearly.
constexpr int64_t kGrain = 48;

int order(bool flipped) { return flipped ? kFlipped : kNotFlipped; }

// One type of elements and of indices.
template <class T, class Index>
struct Calls {
  using Gemm = void (*)(int, int, int, Index, Index, Index, T, const T *, Index, const T *, Index, T, T *, Index);
  using Gemv = void (*)(int, int, Index, Index, T, const T *, Index, const T *, Index, T, T *, Index);

  // The product of `rows` by `columns` elements of one result, which begin at that row and column.
  static void part(const xrt_products &p, int64_t item, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const T *a = at(p.a, item, row, 0), *b = at(p.b, item, 0, column);
    T *c = at(p.c, item, row, column);
    const auto index = [](int64_t i) { return static_cast<Index>(i); };
    const bool flip_a = p.a.flipped != 0, flip_b = p.b.flipped != 0;
    const Index lda = index(p.a.leading), ldb = index(p.b.leading), ldc = index(p.c.leading), k = index(p.k);
    const auto gemv = reinterpret_cast<Gemv>(p.blas.gemv);
    if (p.n == 1) {  // a vector of the matrix b, whichever way it is stored
      const Index high = flip_a ? k : index(rows), wide = flip_a ? index(rows) : k;
      gemv(kRowMajor, order(flip_a), high, wide, 1, a, lda, b, flip_b ? 1 : ldb, 0, c, ldc);
    } else if (p.m == 1) {
      const Index high = flip_b ? index(columns) : k, wide = flip_b ? k : index(columns);
      gemv(kRowMajor, order(!flip_b), high, wide, 1, b, ldb, a, flip_a ? lda : 1, 0, c, 1);
    } else {
      const auto gemm = reinterpret_cast<Gemm>(p.blas.gemm);
      gemm(kRowMajor, order(flip_a), order(flip_b), index(rows), index(columns), k, 1, a, lda, b, ldb, 0, c, ldc);
    }
  }

 private:
  static T *at(const xrt_matrices &x, int64_t item, int64_t row, int64_t column) {
    T *matrix = reinterpret_cast<T *>(x.data + item * x.next);
    return matrix + (x.flipped != 0 ? column * x.leading + row : row * x.leading + column);
  }
};

using Part = void (*)(const xrt_products &, int64_t, int64_t, int64_t, int64_t, int64_t);

Part chosen(const xrt_blas &blas) {
  if (blas.bits == 32) return blas.indices == 32 ? Calls<float, int32_t>::part : Calls<float, int64_t>::part;
  return blas.indices == 32 ? Calls<double, int32_t>::part : Calls<double, int64_t>::part;
}

// How the work is shared: whole products where there are enough of them, else the longer side of each.
struct Shares {
  const xrt_products *products;
  Part part;
  int64_t pieces;  // of one product
  int64_t length;  // of a piece, in rows or columns
  bool by_rows;
};

void work(void *argument, int64_t begin, int64_t end) {
  const Shares &s = *static_cast<const Shares *>(argument);
  const xrt_products &p = *s.products;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t item = i / s.pieces, first = i % s.pieces * s.length;
    const int64_t count = std::min(s.length, (s.by_rows ? p.m : p.n) - first);
    if (s.by_rows) {
      s.part(p, item, first, count, 0, p.n);
    } else {
      s.part(p, item, 0, p.m, first, count);
    }
  }
}

}  // namespace

void xrt_multiply(const xrt_products *products, int32_t threads) {
  const xrt_products &p = *products;
  const bool by_rows = p.m >= p.n;
  const int64_t side = by_rows ? p.m : p.n;
  const int64_t wanted = p.batch >= 2 * threads ? 1 : std::max<int64_t>(threads, 1);
  const int64_t grains = (side + kGrain - 1) / kGrain;
  const int64_t length = (grains + wanted - 1) / wanted * kGrain;
  Shares shares{products, chosen(p.blas), (side + length - 1) / length, length, by_rows};
  xrt::parallel(threads, p.batch * shares.pieces, 1, work, &shares);
}
