// Stand-ins for CUDA's driver and runtime, for TVM's runtime to be linked to: memory is the host's, a module is a shared
// library of emulated kernels (block.h), and what is asked is written down. With -DRUNTIME it is libcudart, without libcuda.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

using Handle = void*;

namespace {
std::string written;
int noted(const std::string& line) {
  written += line + "\n";
  return 0;
}
}  // namespace

#ifdef RUNTIME

extern "C" {
const char* cudaEmulatedLog() { return written.c_str(); }

int cudaMalloc(Handle* memory, size_t size) {
  *memory = aligned_alloc(256, (size + 255) / 256 * 256);
  return noted("malloc " + std::to_string(size));
}
int cudaMallocHost(Handle* memory, size_t size) { return cudaMalloc(memory, size); }
int cudaFree(Handle memory) {
  free(memory);
  return 0;
}
int cudaFreeHost(Handle memory) { return cudaFree(memory); }
int cudaMemGetInfo(size_t* available, size_t* total) { return *available = *total = size_t{1} << 30, 0; }
int cudaMemcpyAsync(Handle to, const void* from, size_t size, int, Handle) {
  memcpy(to, from, size);
  return noted("copy");
}
int cudaMemcpyPeerAsync(Handle to, int, const void* from, int, size_t size, Handle) {
  memcpy(to, from, size);
  return noted("copy");
}

int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaGetDevice(int* device) { return *device = 0, 0; }
int cudaSetDevice(int) { return 0; }
int cudaDeviceGetAttribute(int* value, int, int) { return *value = 1024, 0; }
int cudaGetDeviceProperties(Handle, int) { return 1; }

int cudaEventCreate(Handle*) { return noted("event"); }
int cudaEventDestroy(Handle) { return 0; }
int cudaEventRecord(Handle, Handle) { return noted("event"); }
int cudaEventSynchronize(Handle) { return noted("wait"); }
int cudaEventElapsedTime(float*, Handle, Handle) { return 1; }
int cudaStreamCreate(Handle*) { return noted("stream"); }
int cudaStreamCreateWithFlags(Handle*, unsigned) { return noted("stream"); }
int cudaStreamDestroy(Handle) { return 0; }
int cudaStreamSynchronize(Handle) { return noted("wait"); }
int cudaStreamWaitEvent(Handle, Handle, unsigned) { return noted("event"); }
int cudaStreamBeginCapture(Handle, int) { return 1; }
int cudaStreamEndCapture(Handle, Handle*) { return 1; }
int cudaGraphInstantiate(Handle*, Handle, unsigned long long) { return 1; }
int cudaGraphLaunch(Handle, Handle) { return 1; }
int cudaGraphDestroy(Handle) { return 0; }
int cudaGraphExecDestroy(Handle) { return 0; }

const char* cudaGetErrorName(int) { return "emulated"; }
const char* cudaGetErrorString(int) { return "an error of the emulated runtime"; }
int cudaGetLastError() { return 0; }
int cudaPeekAtLastError() { return 0; }
}

#else

struct Extent {
  unsigned x, y, z;
};
struct Launch {  // CUlaunchConfig
  Extent grid, block;
  unsigned shared;
  Handle stream;
};
struct Kernel {
  std::string name;
  void (*run)(const Extent*, const Extent*, void**);
};

extern "C" {
const char* cuEmulatedLog() { return written.c_str(); }

int cuModuleLoadData(Handle* module, const void* image) {
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  return *module == nullptr ? 209 : noted("load");
}
int cuModuleUnload(Handle) { return 0; }
int cuModuleGetFunction(Handle* kernel, Handle module, const char* name) {
  Handle run = dlsym(module, (std::string("emulated_") + name).c_str());
  *kernel = new Kernel{name, reinterpret_cast<decltype(Kernel::run)>(run)};
  return run == nullptr ? 500 : 0;
}
int cuLaunchKernelEx(const Launch* launch, Handle kernel, void** arguments, void**) {
  auto known = static_cast<Kernel*>(kernel);
  noted("launch " + std::to_string(reinterpret_cast<size_t>(launch->stream)) + " " + known->name);
  known->run(&launch->grid, &launch->block, arguments);
  return 0;
}
int cuFuncSetAttribute(Handle, int, int) { return 0; }
int cuDeviceGetName(char* name, int length, int) { return strncpy(name, "emulated", length), 0; }
int cuTensorMapEncodeTiled() { return 1; }
int cuGetErrorName(int, const char** name) { return *name = "emulated", 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the emulated driver", 0; }
}

#endif
