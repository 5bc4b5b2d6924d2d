#include "node.h"

#include <cstdio>
#include <cstring>

namespace xrt {

std::string name_of(xrt_dtype dtype) {
  const char *kind = "unknown";
  switch (dtype.code) {
    case XRT_INT: kind = "int"; break;
    case XRT_UINT: kind = "uint"; break;
    case XRT_FLOAT: kind = "float"; break;
    case XRT_BFLOAT: kind = "bfloat"; break;
    case XRT_COMPLEX: kind = "complex"; break;
    case XRT_BOOL: return "bool";
    default: break;
  }
  return kind + std::to_string(dtype.bits);
}

int64_t product(const Shape &shape, size_t begin, size_t end) {
  int64_t total = 1;
  for (size_t i = begin; i < end && i < shape.size(); ++i) total *= shape[i];
  return total;
}

int64_t count_indices(const std::vector<Axis> &axes) {
  int64_t total = 1;
  for (const Axis &axis : axes) total *= axis.extent;
  return total;
}

int64_t offset_of(const std::vector<Axis> &axes, int64_t index) {
  int64_t offset = 0;
  for (size_t i = axes.size(); i-- > 0;) {
    offset += index % axes[i].extent * axes[i].step;
    index /= axes[i].extent;
  }
  return offset;
}

std::vector<int64_t> integers_of(const xrt_tensor &tensor) {
  std::vector<int64_t> values(static_cast<size_t>(size_of(tensor)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = tensor.dtype == kInt64 ? data_of<int64_t>(tensor)[i] : data_of<int32_t>(tensor)[i];
  return values;
}

const xrt_attribute *find(const xrt_node &node, const char *name) {
  for (int32_t i = 0; i < node.n_attributes; ++i)
    if (std::strcmp(node.attributes[i].name, name) == 0) return &node.attributes[i];
  return nullptr;
}

int64_t int_of(const xrt_node &node, const char *name, int64_t fallback) {
  const xrt_attribute *attribute = find(node, name);
  return attribute ? attribute->i : fallback;
}

double float_of(const xrt_node &node, const char *name, double fallback) {
  const xrt_attribute *attribute = find(node, name);
  return attribute ? attribute->f : fallback;
}

std::string string_of(const xrt_node &node, const char *name, const char *fallback) {
  const xrt_attribute *attribute = find(node, name);
  return attribute && attribute->s ? attribute->s : fallback;
}

template <class T, class Items>
std::vector<T> list_of(const xrt_node &node, const char *name, Items xrt_attribute::*items) {
  const xrt_attribute *attribute = find(node, name);
  return attribute ? std::vector<T>(attribute->*items, attribute->*items + attribute->count) : std::vector<T>();
}

std::vector<int64_t> ints_of(const xrt_node &node, const char *name) {
  return list_of<int64_t>(node, name, &xrt_attribute::ints);
}

std::vector<double> floats_of(const xrt_node &node, const char *name) {
  return list_of<double>(node, name, &xrt_attribute::floats);
}

std::vector<std::string> strings_of(const xrt_node &node, const char *name) {
  return list_of<std::string>(node, name, &xrt_attribute::strings);
}

int32_t report(int32_t status, xrt_text why, const std::string &text) {
  if (why.data && why.capacity) std::snprintf(why.data, why.capacity, "%s", text.c_str());
  return status;
}

int32_t check_first_input(const xrt_node &node, std::initializer_list<xrt_dtype> dtypes, xrt_text why) {
  if (node.n_inputs < 1) return refuse(why, "the node has no input");
  std::string names;
  for (const xrt_dtype &dtype : dtypes) {
    if (node.inputs[0].dtype == dtype) return XRT_OK;
    names += (names.empty() ? "" : ", ") + name_of(dtype);
  }
  return refuse(why, "the kernel supports " + names + ", not " + name_of(node.inputs[0].dtype));
}

void set_output(xrt_output &output, xrt_dtype dtype, const Shape &shape) {
  output.dtype = dtype;
  output.ndim = static_cast<int32_t>(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) output.shape[i] = shape[i];
}

}  // namespace xrt
