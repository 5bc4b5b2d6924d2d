"""What CuPy 14.2.0 was found to have of NumPy's functions, with the names of their arguments."""

from __future__ import annotations

__all__ = ["FUNCTIONS", "VERSION"]

VERSION = "14.2.0"

_UFUNCS = """
abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and
bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor cbrt ceil conj
conjugate copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 fabs fix float_power floor floor_divide
fmax fmin fmod frexp gcd greater greater_equal heaviside hypot i0 invert isfinite isinf isnan lcm ldexp left_shift less
less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum mod
modf multiply negative nextafter not_equal positive pow power rad2deg radians reciprocal remainder right_shift rint sign
signbit sin sinc sinh sqrt square subtract tan tanh true_divide trunc
"""

_OTHERS = """
all: a axis out keepdims
allclose: a b rtol atol equal_nan
amax: a axis out keepdims
amin: a axis out keepdims
angle: z deg
any: a axis out keepdims
append: arr values axis
apply_along_axis: *
apply_over_axes: func a axes
arange: start stop step dtype
argmax: a axis dtype out keepdims
argmin: a axis dtype out keepdims
argpartition: a kth axis
argsort: a axis kind
argwhere: a
around: a decimals out
array: obj dtype copy order subok ndmin blocking
array2string: *
array_equal: a1 a2 equal_nan
array_equiv: a1 a2
array_repr: arr max_line_width precision suppress_small
array_split: ary indices_or_sections axis
array_str: arr max_line_width precision suppress_small
asanyarray: a dtype order copy blocking
asarray: a dtype order copy blocking
asarray_chkfinite: a dtype order
ascontiguousarray: a dtype
asfortranarray: a dtype
astype: x dtype copy
atleast_1d:
atleast_2d:
atleast_3d:
average: a axis weights returned keepdims
bartlett: M
base_repr: number base padding
binary_repr: num width
bincount: x weights minlength
blackman: M
broadcast_arrays:
broadcast_shapes:
broadcast_to: array shape
can_cast: from_ to casting
choose: a choices out mode
clip: a a_min a_max out
column_stack: tup
common_type:
compress: condition a axis out
concat: tup axis out dtype casting
concatenate: tup axis out dtype casting
convolve: a v mode
copy: a order
copyto: dst src casting where
corrcoef: a y rowvar bias ddof dtype
correlate: a v mode
count_nonzero: a axis
cov: a y rowvar bias ddof fweights aweights dtype
cross: a b axisa axisb axisc axis
cumprod: a axis dtype out
cumsum: a axis dtype out
cumulative_prod: x axis dtype out include_initial
cumulative_sum: x axis dtype out include_initial
delete: arr indices axis
diag: v k
diag_indices: n ndim
diag_indices_from: arr
diagflat: v k
diagonal: a offset axis1 axis2
diff: a n axis prepend append
digitize: x bins right
dot: a b out
dsplit: ary indices_or_sections
dstack: tup
ediff1d: arr to_end to_begin
einsum: *
empty: shape dtype order
empty_like: prototype dtype order subok shape
expand_dims: a axis
extract: condition a
eye: N M k dtype order
fill_diagonal: a val wrap
flatnonzero: a
flip: a axis
fliplr: a
flipud: a
format_float_positional: *
format_float_scientific: *
from_dlpack: array  device copy
frombuffer: *
fromfile: *
fromfunction: *
fromiter: *
fromstring: *
full: shape fill_value dtype order
full_like: a fill_value dtype order subok shape
genfromtxt: *
get_printoptions:
gradient: f axis edge_order
hamming: M
hanning: M
histogram: x bins range density weights
histogram2d: x y bins range weights density
histogramdd: sample bins range weights density
hsplit: ary indices_or_sections
hstack: tup dtype casting
identity: n dtype
imag: val
indices: dimensions dtype
inner: a b
interp: x xp fp left right period
intersect1d: arr1 arr2 assume_unique return_indices
isclose: a b rtol atol equal_nan
iscomplex: x
iscomplexobj: x
isdtype: dtype kind
isfortran: a
isin: element test_elements assume_unique invert
isneginf: x out
isposinf: x out
isreal: x
isrealobj: x
isscalar: element
issubdtype: arg1 arg2
iterable: y
ix_:
kaiser: M beta
kron: a b
lexsort: keys
linspace: start stop num endpoint retstep dtype axis
load: file mmap_mode allow_pickle
loadtxt: *
logspace: start stop num endpoint base dtype axis
mask_indices: n mask_func k
matmul: axes axis keepdims casting dtype signature order out
matrix_transpose: x
max: a axis out keepdims
may_share_memory: a b max_work
mean: a axis dtype out keepdims
median: a axis out overwrite_input keepdims
meshgrid: *
min: a axis out keepdims
min_scalar_type: a
mintypecode: typechars typeset default
moveaxis: a source destination
nan_to_num: x copy nan posinf neginf
nanargmax: a axis dtype out keepdims
nanargmin: a axis dtype out keepdims
nancumprod: a axis dtype out
nancumsum: a axis dtype out
nanmax: a axis out keepdims
nanmean: a axis dtype out keepdims
nanmedian: a axis out overwrite_input keepdims
nanmin: a axis out keepdims
nanprod: a axis dtype out keepdims
nanstd: a axis dtype out ddof keepdims
nansum: a axis dtype out keepdims
nanvar: a axis dtype out ddof keepdims
ndim: a
nonzero: a
ones: shape dtype order
ones_like: a dtype order subok shape
outer: a b out
packbits: a axis bitorder
pad: *
partition: a kth axis
percentile: a q axis out overwrite_input method keepdims interpolation
permute_dims: a axes
piecewise: x condlist funclist
place: arr mask vals
poly: seq_of_zeros
polyadd: a1 a2
polyfit: x y deg rcond full w cov
polymul: a1 a2
polysub: a1 a2
polyval: p x
printoptions: *
prod: a axis dtype out keepdims
promote_types: type1 type2
ptp: a axis out keepdims
put: a ind v mode
put_along_axis: arr indices values axis
putmask: a mask values
quantile: a q axis out overwrite_input method keepdims interpolation
ravel: a order
ravel_multi_index: multi_index dims mode order
real: val
real_if_close: a tol
repeat: a repeats axis
require: a dtype requirements
reshape: a newshape order copy
resize: a new_shape
result_type:
roll: a shift axis
rollaxis: a axis start
roots: p
rot90: a k axes
round: a decimals out
row_stack: tup dtype casting
save: file arr allow_pickle
savetxt: *
savez: *
savez_compressed: *
searchsorted: a v side sorter
select: condlist choicelist default
set_printoptions: precision threshold edgeitems linewidth suppress nanstr infstr formatter sign floatmode legacy override_repr
setdiff1d: ar1 ar2 assume_unique
setxor1d: ar1 ar2 assume_unique
shape: a
shares_memory: a b max_work
show_config: _full
size: _ndarray_base a axis
sort: a axis kind
sort_complex: a
split: ary indices_or_sections axis
squeeze: a axis
stack: tup axis out dtype casting
std: a axis dtype out ddof keepdims
sum: a axis dtype out keepdims
swapaxes: a axis1 axis2
take: a indices axis out
take_along_axis: a indices axis
tensordot: a b axes
tile: A reps
trace: a offset axis1 axis2 dtype out
transpose: a axes
trapezoid: y x dx axis
tri: N M k dtype
tril: m k
tril_indices: n k m
tril_indices_from: arr k
trim_zeros: filt trim
triu: m k
triu_indices: n k m
triu_indices_from: arr k
typename: char
union1d: arr1 arr2
unique: ar return_index return_inverse return_counts axis equal_nan
unique_all: x
unique_counts: x
unique_inverse: x
unique_values: x
unpackbits: a axis bitorder
unravel_index: indices dims order
unwrap: p discont axis period
vander: x N increasing
var: a axis dtype out ddof keepdims
vdot: a b
vsplit: ary indices_or_sections
vstack: tup dtype casting
where: condition x y
zeros: shape dtype order
zeros_like: a dtype order subok shape
"""


def _others() -> dict[str, tuple[str, ...] | None]:
    rows = (line.partition(":") for line in _OTHERS.strip().splitlines())
    return {name: None if names.strip() == "*" else tuple(names.split()) for name, _, names in rows}


FUNCTIONS = {**dict.fromkeys(_UFUNCS.split(), ("out", "dtype", "casting", "where")), **_others()}
"""By name; None where any argument is taken."""
