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

int64_t int_of(const xrt_node &node, const char *name, int64_t otherwise) {
  const xrt_attribute *found = find(node, name);
  return found ? found->i : otherwise;
}

double float_of(const xrt_node &node, const char *name, double otherwise) {
  const xrt_attribute *found = find(node, name);
  return found ? found->f : otherwise;
}

std::string string_of(const xrt_node &node, const char *name, const char *otherwise) {
  const xrt_attribute *found = find(node, name);
  return found && found->s ? found->s : otherwise;
}

std::vector<int64_t> ints_of(const xrt_node &node, const char *name) {
  const xrt_attribute *found = find(node, name);
  return found ? std::vector<int64_t>(found->ints, found->ints + found->count) : std::vector<int64_t>();
}

std::vector<double> floats_of(const xrt_node &node, const char *name) {
  const xrt_attribute *found = find(node, name);
  return found ? std::vector<double>(found->floats, found->floats + found->count) : std::vector<double>();
}

std::vector<std::string> strings_of(const xrt_node &node, const char *name) {
  const xrt_attribute *found = find(node, name);
  return found ? std::vector<std::string>(found->strings, found->strings + found->count) : std::vector<std::string>();
}

int32_t answer(int32_t status, xrt_text why, const std::string &text) {
  if (why.data && why.capacity) std::snprintf(why.data, why.capacity, "%s", text.c_str());
  return status;
}

int32_t takes(const xrt_node &node, std::initializer_list<xrt_dtype> dtypes, xrt_text why) {
  if (node.n_inputs < 1) return refuse(why, "the node has no input");
  std::string names;
  for (const xrt_dtype &dtype : dtypes) {
    if (node.inputs[0].dtype == dtype) return XRT_OK;
    names += (names.empty() ? "" : ", ") + name_of(dtype);
  }
  return refuse(why, "it takes " + names + ", not " + name_of(node.inputs[0].dtype));
}

void announce(xrt_output &output, xrt_dtype dtype, const Shape &shape) {
  output.dtype = dtype;
  output.ndim = static_cast<int32_t>(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) output.shape[i] = shape[i];
}

}  // namespace xrt
