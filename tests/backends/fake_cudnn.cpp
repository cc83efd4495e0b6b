// The functions of libcudart, libcublas and libcudnn that the cudnn backend calls, on the host's memory, strict about their
// arguments: descriptors of the right kind, addresses within what was allocated, workspaces as large as was said. Written
// after the headers of CUDA 13 and cuDNN 9. Time is counted: each operation takes a millisecond of the stream.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

enum { OK = 0, BAD = 2000, NOT_SUPPORTED = 3000 };
enum Kind { TENSOR = 1, FILTER, CONVOLUTION, POOLING, ACTIVATION, LRN, OP, CUDNN, CUBLAS, STREAM, EVENT, GRAPH, EXEC };

struct Object {
  Kind kind;
  int v[10];
  double d[3];
  unsigned u;
  bool set;
};

std::map<char*, size_t> memory;
std::set<Object*> objects;
std::map<std::string, int> failures;
std::string log_text, last_words;
size_t used, limit = size_t(1) << 40, devices = 1, version = 92700;
double clock_ms;
size_t gate = 1, queued_gates;  // that many settings of memory keep the device busy until it is waited for

int failing(const char* name) {
  auto found = failures.find(name);
  return found == failures.end() ? 0 : found->second;
}
// What is called while a stream is captured is done when its graph is launched.
using Calls = std::vector<std::function<int()>>;
bool capturing = false;
Calls captured;
std::map<void*, Calls> graphs;
#define LATER(call) if (capturing) { captured.push_back([=] { return call; }); return OK; }
#define MAY_FAIL if (int status = failing(__func__)) return status

int bad(const std::string& why) {
  last_words = why;
  std::fprintf(stderr, "fake cudnn: %s\n", why.c_str());
  return BAD;
}
#define NEED(what) do { if (!(what)) return bad(std::string(__func__) + ": " #what); } while (0)

bool is(const void* p, Kind kind) {
  auto object = (Object*)p;
  return objects.count(object) && object->kind == kind;
}

int make(void** out, Kind kind) {
  auto object = new Object{kind, {}, {}, 0, kind >= CUDNN};
  objects.insert(object);
  *out = object;
  return OK;
}

int drop(void* p, Kind kind) {
  if (!is(p, kind)) return BAD;
  objects.erase((Object*)p);
  delete (Object*)p;
  return OK;
}

// As cuDNN's log: strings that end with a zero, and an empty one; the innermost reason is the first.
using Callback = void (*)(int severity, void* given, const void* debug, const char* text);
unsigned listened;
Callback callback;
void tell(const std::string& function, const std::string& status, const std::string& why) {
  if (!callback || !(listened >> 2 & 1)) return;
  std::string text = "CuDNN (v" + std::to_string(version) + " 1) function " + function + "() called:";
  for (auto reason : {why, std::string("finalize_internal()")})
    text += std::string(1, 0) + "        Warning: CUDNN_STATUS_" + status + "; Reason: " + reason;
  text += std::string(1, 0) + "Process=1; Thread=1; GPU=NULL; Handle=NULL; StreamId=NULL." + std::string(2, 0);
  callback(2, nullptr, nullptr, text.data());
}

// `status`, with its reason told.
int told(const char* function, int status) {
  if (status) tell(function, "NOT_SUPPORTED_SHAPE", last_words);
  return status;
}

// Whether `bytes` from `p` on were allocated.
bool there(const void* p, size_t bytes) {
  auto after = memory.upper_bound((char*)p);
  if (after == memory.begin()) return false;
  --after;
  return (char*)p + bytes <= after->first + after->second;
}

struct View {  // a tensor of four extents with strides
  const int *n, *s;
  explicit View(const void* descriptor) : n(((Object*)descriptor)->v + 1), s(((Object*)descriptor)->v + 5) {}
  View(const int* extents, const int* strides) : n(extents), s(strides) {}
  size_t at(int a, int b, int c, int d) const {
    return size_t(a) * s[0] + size_t(b) * s[1] + size_t(c) * s[2] + size_t(d) * s[3];
  }
  bool in(const void* p) const { return there(p, 4 * (at(n[0] - 1, n[1] - 1, n[2] - 1, n[3] - 1) + 1)); }
  template <class F> void each(F f) const {
    for (int a = 0; a < n[0]; ++a)
      for (int b = 0; b < n[1]; ++b)
        for (int c = 0; c < n[2]; ++c)
          for (int d = 0; d < n[3]; ++d) f(a, b, c, d);
  }
};

bool tensor(const void* descriptor, const void* data) {
  return is(descriptor, TENSOR) && ((Object*)descriptor)->set && View(descriptor).in(data);
}

bool same(const void* a, const void* b) { return !std::memcmp(((Object*)a)->v + 1, ((Object*)b)->v + 1, 16); }

float number(const void* p) { return *(const float*)p; }

void done(const std::string& text) {
  clock_ms += 1;
  log_text += text + "\n";
}

// Output extents of a convolution, and its problem as the descriptors have it.
void extents(const Object* x, const Object* w, const Object* c, int* out) {
  out[0] = x->v[1];
  out[1] = w->v[2];
  for (int i = 0; i < 2; ++i)
    out[2 + i] = (x->v[3 + i] + 2 * c->v[i] - c->v[4 + i] * (w->v[4 + i] - 1) - 1) / c->v[2 + i] + 1;
}

int supported(const Object* w, const Object* c, int algo, const Object* y, size_t* bytes) {
  bool unit = c->v[2] == 1 && c->v[3] == 1 && c->v[4] == 1 && c->v[5] == 1;
  bool ok = algo <= 2 || (algo >= 4 && unit && (algo < 6 || (w->v[4] == 3 && w->v[5] == 3)));
  if (!ok || algo == 3) {
    last_words = "algorithm " + std::to_string(algo) + " can't do this window";
    return NOT_SUPPORTED;
  }
  size_t columns = size_t(y->v[1]) * y->v[3] * y->v[4] * w->v[3] * w->v[4] * w->v[5] * 4;
  *bytes = algo == 2 ? columns : algo == 0 ? 0 : 256 * (algo + 1);
  return OK;
}

// `share`: outputs a group; `window`: padding, strides and dilation.
void convolve(const View& xv, const float* x, const View& wv, const float* w, int share, const int* window, const View& yv, float* y) {
  yv.each([&](int n, int o, int i, int j) {
    double sum = 0;
    for (int c = 0; c < wv.n[1]; ++c)
      for (int r = 0; r < wv.n[2]; ++r)
        for (int s = 0; s < wv.n[3]; ++s) {
          int row = i * window[2] - window[0] + r * window[4], column = j * window[3] - window[1] + s * window[5];
          if (row >= 0 && row < xv.n[2] && column >= 0 && column < xv.n[3])
            sum += double(x[xv.at(n, o / share * wv.n[1] + c, row, column)]) * w[wv.at(o, c, r, s)];
        }
    y[yv.at(n, o, i, j)] = float(sum);
  });
}

struct Performance {
  int algo, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

int offered(const void* x, const void* w, const void* c, const void* y, int asked, int* count, Performance* out, bool timed) {
  (void)x;
  // The fastest is on tensor cores; what has none is tried with the default math alone.
  Performance rows[10] = {{1, 0, timed ? 0.1f : -1.f, 512, 1, 1, {}}, {1, 0, timed ? 0.15f : -1.f, 512, 1, 0, {}}};
  const int order[] = {7, 1, 6, 4, 5, 2, 0, 3};
  tell("cudnnFindConvolutionForwardAlgorithm", "INTERNAL_ERROR", "of a call that succeeded");
  for (int i = 0; i < 8; ++i) {
    size_t bytes = 0;
    int status = supported((Object*)w, (Object*)c, order[i], (Object*)y, &bytes);
    int math = order[i] == 1 || order[i] == 7 ? ((Object*)c)->v[9] : 0;
    rows[2 + i] = {order[i], status, status || !timed ? -1.f : 0.2f + i, bytes, 1, math, {}};
  }
  *count = asked < 10 ? asked : 10;
  std::memcpy(out, rows, *count * sizeof *rows);
  return OK;
}

#include "fake_cudnn_graph.h"

}  // namespace

extern "C" {

// For the tests.
void fake_reset() {
  failures.clear();
  log_text.clear();
  last_words.clear();
  listened = 0, callback = nullptr;
  limit = size_t(1) << 40;
  devices = 1;
  version = 92700;
  gate = 1, queued_gates = 0;
}
void fake_gate(size_t settings) { gate = settings; }
void fake_fail(const char* function, int status) { failures[function] = status; }
void fake_limit(size_t bytes) { limit = bytes; }
void fake_devices(size_t count) { devices = count; }
void fake_version(size_t number) { version = number; }
const char* fake_log() { return log_text.c_str(); }
size_t fake_live() { return objects.size() + memory.size() + graph::nodes.size(); }

// The CUDA runtime.
const char* cudaGetErrorString(int status) { return status == 2 ? "out of memory" : status == 100 ? "no CUDA-capable device is detected" : "error"; }
int cudaGetDeviceCount(int* count) { MAY_FAIL; *count = int(devices); return OK; }
int cudaSetDevice(int index) { NEED(size_t(index) < devices); log_text += "device " + std::to_string(index) + "\n"; return OK; }
int cudaRuntimeGetVersion(int* out) { *out = 13000; return OK; }
int cudaMalloc(void** out, size_t bytes) {
  MAY_FAIL;
  NEED(!capturing);
  if (!bytes || used + bytes > limit) return 2;
  *out = new char[bytes];
  std::memset(*out, 0xff, bytes);  // not a number
  memory[(char*)*out] = bytes;
  used += bytes;
  return OK;
}
int cudaFree(void* p) {
  NEED(memory.count((char*)p));
  used -= memory[(char*)p];
  memory.erase((char*)p);
  delete[](char*) p;
  return OK;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  NEED(kind == 1 || kind == 2);
  NEED(there(kind == 1 ? to : from, bytes));
  std::memcpy(to, from, bytes);
  return OK;
}
int cudaMemsetAsync(void* p, int value, size_t bytes, void* stream) {
  LATER(cudaMemsetAsync(p, value, bytes, stream));
  NEED(is(stream, STREAM) && there(p, bytes));
  if (bytes < 4096) std::memset(p, value, bytes);
  clock_ms += 1;
  ++queued_gates;
  return OK;
}
int cudaDeviceSynchronize() { return OK; }
int cudaStreamCreateWithFlags(void** out, unsigned flags) { NEED(flags == 1); return make(out, STREAM); }
int cudaStreamSynchronize(void* stream) { MAY_FAIL; NEED(is(stream, STREAM) && !capturing); queued_gates = 0; return OK; }
int cudaStreamBeginCapture(void* stream, int mode) {
  NEED(is(stream, STREAM) && mode == 1 && !capturing);
  capturing = true, captured.clear();
  return OK;
}
int cudaStreamEndCapture(void* stream, void** graph) {
  NEED(is(stream, STREAM) && capturing);
  capturing = false;
  make(graph, GRAPH);
  graphs[*graph] = captured;
  return OK;
}
int cudaGraphInstantiate(void** ready, void* graph, size_t flags) {
  MAY_FAIL;
  NEED(is(graph, GRAPH) && !flags);
  make(ready, EXEC);
  graphs[*ready] = graphs[graph];
  return OK;
}
int cudaGraphLaunch(void* ready, void* stream) {
  NEED(is(ready, EXEC) && is(stream, STREAM) && !capturing);
  log_text += "graph of " + std::to_string(graphs[ready].size()) + "\n";
  for (auto& call : graphs[ready])
    if (int status = call()) return status;
  return OK;
}
int cudaGraphDestroy(void* graph) { graphs.erase(graph); return drop(graph, GRAPH); }
int cudaGraphExecDestroy(void* ready) { graphs.erase(ready); return drop(ready, EXEC); }
int cudaStreamDestroy(void* stream) { return drop(stream, STREAM); }
int cudaEventCreateWithFlags(void** out, unsigned flags) { NEED(!flags); return make(out, EVENT); }
int cudaEventRecord(void* event, void* stream) {
  NEED(is(event, EVENT) && is(stream, STREAM));
  ((Object*)event)->d[0] = clock_ms;
  return OK;
}
int cudaEventQuery(void* event) { MAY_FAIL; NEED(is(event, EVENT)); return queued_gates >= gate ? 600 : OK; }
int cudaEventElapsedTime(float* out, void* first, void* second) {
  NEED(is(first, EVENT) && is(second, EVENT));
  *out = float(((Object*)second)->d[0] - ((Object*)first)->d[0]);
  return OK;
}
int cudaEventDestroy(void* event) { return drop(event, EVENT); }

// cuBLAS.
const char* cublasGetStatusString(int) { return "CUBLAS_STATUS_EXECUTION_FAILED"; }
int cublasCreate_v2(void** out) { MAY_FAIL; return make(out, CUBLAS); }
int cublasDestroy_v2(void* handle) { return drop(handle, CUBLAS); }
int cublasSetStream_v2(void* handle, void* stream) { NEED(is(handle, CUBLAS) && is(stream, STREAM)); return OK; }
int cublasSetMathMode(void* handle, int mode) { NEED(is(handle, CUBLAS)); log_text += "cublas math " + std::to_string(mode) + "\n"; return OK; }
int cublasSgemm_v2(void* handle, int ta, int tb, int m, int n, int k, const float* alpha, const float* a, int lda, const float* b,
                   int ldb, const float* beta, float* c, int ldc) {
  LATER(cublasSgemm_v2(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc));
  MAY_FAIL;
  NEED(is(handle, CUBLAS) && lda >= (ta ? k : m) && ldb >= (tb ? n : k) && ldc >= m);
  NEED(there(a, 4ul * lda * (ta ? m : k)) && there(b, 4ul * ldb * (tb ? k : n)) && there(c, 4ul * ldc * n));
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) sum += double(ta ? a[l + lda * i] : a[i + lda * l]) * (tb ? b[j + ldb * l] : b[l + ldb * j]);
      c[i + ldc * j] = float(*alpha * sum) + (*beta ? *beta * c[i + ldc * j] : 0);
    }
  done("sgemm");
  return OK;
}

// cuDNN.
size_t cudnnGetVersion() { return version; }
const char* cudnnGetErrorString(int status) {
  return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : status == BAD ? "CUDNN_STATUS_BAD_PARAM"
       : status == 5000 ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_OTHER";
}
int cudnnSetCallback(unsigned mask, void* given, Callback function) {
  NEED(!given && !mask == !function);
  listened = mask, callback = function;
  return OK;
}
int cudnnCreate(void** out) { MAY_FAIL; return make(out, CUDNN); }
int cudnnDestroy(void* handle) { return drop(handle, CUDNN); }
int cudnnSetStream(void* handle, void* stream) { NEED(is(handle, CUDNN) && is(stream, STREAM)); return OK; }

#define DESCRIPTOR(NAME, KIND) \
  int cudnnCreate##NAME##Descriptor(void** out) { return make(out, KIND); } \
  int cudnnDestroy##NAME##Descriptor(void* p) { return drop(p, KIND); }
DESCRIPTOR(Tensor, TENSOR)
DESCRIPTOR(Filter, FILTER)
DESCRIPTOR(Convolution, CONVOLUTION)
DESCRIPTOR(Pooling, POOLING)
DESCRIPTOR(Activation, ACTIVATION)
DESCRIPTOR(LRN, LRN)
DESCRIPTOR(OpTensor, OP)

int store(void* p, Kind kind, std::vector<int> values) {
  if (!is(p, kind)) return bad("a descriptor of another kind");
  auto object = (Object*)p;
  std::copy(values.begin(), values.end(), object->v);
  object->set = true;
  return OK;
}
int cudnnSetTensor4dDescriptorEx(void* p, int type, int n, int c, int h, int w, int sn, int sc, int sh, int sw) {
  NEED(type == 0 && n > 0 && c > 0 && h > 0 && w > 0);
  return store(p, TENSOR, {type, n, c, h, w, sn, sc, sh, sw});
}
int cudnnSetFilter4dDescriptor(void* p, int type, int format, int k, int c, int h, int w) {
  NEED(type == 0 && format == 0);
  return store(p, FILTER, {type, format, k, c, h, w});
}
int cudnnSetConvolution2dDescriptor(void* p, int ph, int pw, int u, int v, int dh, int dw, int mode, int type) {
  NEED(mode == 1 && type == 0 && ph >= 0 && pw >= 0 && u > 0 && v > 0 && dh > 0 && dw > 0);
  return store(p, CONVOLUTION, {ph, pw, u, v, dh, dw, mode, type, 1, 0});
}
int cudnnSetConvolutionGroupCount(void* p, int groups) { NEED(is(p, CONVOLUTION) && groups > 0); ((Object*)p)->v[8] = groups; return OK; }
int cudnnSetConvolutionMathType(void* p, int math) { NEED(is(p, CONVOLUTION) && math >= 0 && math <= 3); ((Object*)p)->v[9] = math; return OK; }
int cudnnGetConvolution2dForwardOutputDim(void* c, void* x, void* w, int* n, int* k, int* h, int* v) {
  NEED(is(c, CONVOLUTION) && is(x, TENSOR) && is(w, FILTER));
  int out[4];
  extents((Object*)x, (Object*)w, (Object*)c, out);
  *n = out[0], *k = out[1], *h = out[2], *v = out[3];
  return failing(__func__);
}
int cudnnGetConvolutionForwardAlgorithmMaxCount(void* handle, int* count) { NEED(is(handle, CUDNN)); *count = 10; return OK; }

bool problem(void* handle, const void* x, const void* w, const void* c, const void* y) {
  if (!is(handle, CUDNN) || !is(x, TENSOR) || !is(w, FILTER) || !is(c, CONVOLUTION) || !is(y, TENSOR)) return false;
  int out[4];
  extents((Object*)x, (Object*)w, (Object*)c, out);
  return !std::memcmp(out, ((Object*)y)->v + 1, 16) && ((Object*)x)->v[2] == ((Object*)w)->v[3] * ((Object*)c)->v[8];
}
int cudnnGetConvolutionForwardAlgorithm_v7(void* handle, void* x, void* w, void* c, void* y, int asked, int* count, Performance* out) {
  MAY_FAIL;
  NEED(problem(handle, x, w, c, y));
  return offered(x, w, c, y, asked, count, out, false);
}
int cudnnFindConvolutionForwardAlgorithm(void* handle, void* x, void* w, void* c, void* y, int asked, int* count, Performance* out) {
  MAY_FAIL;
  NEED(problem(handle, x, w, c, y));
  return offered(x, w, c, y, asked, count, out, true);
}
int cudnnGetConvolutionForwardWorkspaceSize(void* handle, void* x, void* w, void* c, void* y, int algo, size_t* bytes) {
  MAY_FAIL;
  NEED(problem(handle, x, w, c, y));
  return told(__func__, supported((Object*)w, (Object*)c, algo, (Object*)y, bytes));
}
int cudnnConvolutionForward(void* handle, const float* alpha, const void* xd, const float* x, const void* wd, const float* w,
                            const void* cd, int algo, void* workspace, size_t size, const float* beta, const void* yd, float* y) {
  LATER(cudnnConvolutionForward(handle, alpha, xd, x, wd, w, cd, algo, workspace, size, beta, yd, y));
  MAY_FAIL;
  NEED(problem(handle, xd, wd, cd, yd) && *alpha == 1 && *beta == 0);
  NEED(tensor(xd, x) && tensor(yd, y));
  size_t bytes = 0;
  auto wo = (Object*)wd, co = (Object*)cd;
  if (int status = supported(wo, co, algo, (Object*)yd, &bytes)) return status;
  NEED(size >= bytes && (!bytes || there(workspace, bytes)));
  const int* k = wo->v + 2;
  const int dense[] = {k[1] * k[2] * k[3], k[2] * k[3], k[3], 1};
  View wv(k, dense);
  NEED(wv.in(w));
  convolve(View(xd), x, wv, w, k[0] / co->v[8], co->v, View(yd), y);
  done("conv algo=" + std::to_string(algo) + " math=" + std::to_string(co->v[9]) + " workspace=" + std::to_string(size));
  return OK;
}

// The graph interface.
int cudnnBackendCreateDescriptor(int kind, void** out) { MAY_FAIL; return graph::create(kind, out); }
int cudnnBackendDestroyDescriptor(void* p) { return graph::drop(p); }
int cudnnBackendSetAttribute(void* p, int name, int type, int64_t count, const void* elements) {
  MAY_FAIL;
  return graph::set(p, name, type, count, elements);
}
int cudnnBackendGetAttribute(void* p, int name, int type, int64_t asked, int64_t* count, void* elements) {
  MAY_FAIL;
  return graph::get(p, name, type, asked, count, elements);
}
int cudnnBackendFinalize(void* p) { MAY_FAIL; return told(__func__, graph::finalize(p)); }
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  LATER(cudnnBackendExecute(handle, plan, pack));
  MAY_FAIL;
  return told(__func__, graph::execute(handle, plan, pack));
}

int cudnnAddTensor(void* handle, const float* alpha, const void* ad, const float* a, const float* beta, const void* cd, float* c) {
  LATER(cudnnAddTensor(handle, alpha, ad, a, beta, cd, c));
  NEED(is(handle, CUDNN) && *alpha == 1 && *beta == 1 && tensor(ad, a) && tensor(cd, c));
  View av(ad), cv(cd);
  for (int i = 0; i < 4; ++i) NEED(av.n[i] == 1 || av.n[i] == cv.n[i]);
  cv.each([&](int n, int o, int i, int j) {
    c[cv.at(n, o, i, j)] += a[av.at(n % av.n[0], o % av.n[1], i % av.n[2], j % av.n[3])];
  });
  done("add");
  return OK;
}
int cudnnTransformTensor(void* handle, const float* alpha, const void* xd, const float* x, const float* beta, const void* yd, float* y) {
  LATER(cudnnTransformTensor(handle, alpha, xd, x, beta, yd, y));
  NEED(is(handle, CUDNN) && *alpha == 1 && *beta == 0 && tensor(xd, x) && tensor(yd, y) && same(xd, yd));
  View xv(xd), yv(yd);
  xv.each([&](int n, int c, int i, int j) { y[yv.at(n, c, i, j)] = x[xv.at(n, c, i, j)]; });
  done("transform");
  return OK;
}
int cudnnSetOpTensorDescriptor(void* p, int op, int type, int nan) { NEED(type == 0 && nan == 1); return store(p, OP, {op}); }
int cudnnOpTensor(void* handle, const void* od, const float* alpha, const void* ad, const float* a, const float* alpha2, const void* bd,
                  const float* b, const float* beta, const void* cd, float* c) {
  LATER(cudnnOpTensor(handle, od, alpha, ad, a, alpha2, bd, b, beta, cd, c));
  NEED(is(handle, CUDNN) && is(od, OP) && *alpha == 1 && *alpha2 == 1 && *beta == 0);
  NEED(tensor(ad, a) && tensor(bd, b) && tensor(cd, c) && same(ad, cd));
  View av(ad), bv(bd), cv(cd);
  for (int i = 0; i < 4; ++i) NEED(bv.n[i] == 1 || bv.n[i] == av.n[i]);
  int op = ((Object*)od)->v[0];
  cv.each([&](int n, int o, int i, int j) {
    float l = a[av.at(n, o, i, j)], r = b[bv.at(n % bv.n[0], o % bv.n[1], i % bv.n[2], j % bv.n[3])];
    c[cv.at(n, o, i, j)] = op == 0 ? l + r : op == 1 ? l * r : op == 2 ? std::fmin(l, r) : std::fmax(l, r);
  });
  done("op");
  return OK;
}
int cudnnSetActivationDescriptor(void* p, int mode, int nan, double coefficient) {
  NEED(nan == 1);
  if (int status = store(p, ACTIVATION, {mode})) return status;
  ((Object*)p)->d[0] = coefficient;
  return OK;
}
int cudnnActivationForward(void* handle, void* d, const float* alpha, const void* xd, const float* x, const float* beta, const void* yd, float* y) {
  LATER(cudnnActivationForward(handle, d, alpha, xd, x, beta, yd, y));
  NEED(is(handle, CUDNN) && is(d, ACTIVATION) && *alpha == 1 && *beta == 0 && tensor(xd, x) && tensor(yd, y) && same(xd, yd));
  View xv(xd), yv(yd);
  int mode = ((Object*)d)->v[0];
  double top = ((Object*)d)->d[0];
  xv.each([&](int n, int c, int i, int j) {
    double v = x[xv.at(n, c, i, j)];
    y[yv.at(n, c, i, j)] = float(mode == 0 ? 1 / (1 + std::exp(-v)) : mode == 2 ? std::tanh(v) : std::fmin(std::fmax(v, 0), mode == 3 ? top : INFINITY));
  });
  done("activation");
  return OK;
}
int cudnnSetPooling2dDescriptor(void* p, int mode, int nan, int h, int w, int ph, int pw, int sh, int sw) {
  NEED(nan == 1 && ph < h && pw < w);
  return store(p, POOLING, {mode, h, w, ph, pw, sh, sw});
}
int cudnnPoolingForward(void* handle, void* d, const float* alpha, const void* xd, const float* x, const float* beta, const void* yd, float* y) {
  LATER(cudnnPoolingForward(handle, d, alpha, xd, x, beta, yd, y));
  NEED(is(handle, CUDNN) && is(d, POOLING) && *alpha == 1 && *beta == 0 && tensor(xd, x) && tensor(yd, y));
  View xv(xd), yv(yd);
  const int* v = ((Object*)d)->v;
  for (int i = 0; i < 2; ++i) NEED(yv.n[2 + i] == (xv.n[2 + i] + 2 * v[3 + i] - v[1 + i]) / v[5 + i] + 1);
  yv.each([&](int n, int c, int i, int j) {
    double sum = 0, most = -INFINITY;
    int count = 0;
    for (int r = 0; r < v[1]; ++r)
      for (int s = 0; s < v[2]; ++s) {
        int row = i * v[5] - v[3] + r, column = j * v[6] - v[4] + s;
        if (row < 0 || row >= xv.n[2] || column < 0 || column >= xv.n[3]) continue;
        double value = x[xv.at(n, c, row, column)];
        sum += value, most = std::fmax(most, value), ++count;
      }
    y[yv.at(n, c, i, j)] = float(v[0] == 0 ? most : sum / (v[0] == 1 ? v[1] * v[2] : count));
  });
  done("pool");
  return OK;
}
int cudnnSetLRNDescriptor(void* p, unsigned n, double alpha, double beta, double k) {
  NEED(n >= 1 && n <= 16 && k >= 1e-5 && beta >= 0.01);
  if (int status = store(p, LRN, {})) return status;
  auto object = (Object*)p;
  object->u = n, object->d[0] = alpha, object->d[1] = beta, object->d[2] = k;
  return OK;
}
int cudnnLRNCrossChannelForward(void* handle, void* d, int mode, const float* alpha, const void* xd, const float* x, const float* beta, const void* yd, float* y) {
  LATER(cudnnLRNCrossChannelForward(handle, d, mode, alpha, xd, x, beta, yd, y));
  NEED(is(handle, CUDNN) && is(d, LRN) && mode == 0 && *alpha == 1 && *beta == 0 && tensor(xd, x) && tensor(yd, y) && same(xd, yd));
  View xv(xd), yv(yd);
  auto o = (Object*)d;
  int behind = (int(o->u) - 1) / 2, ahead = int(o->u) - behind - 1;
  xv.each([&](int n, int c, int i, int j) {
    double sum = 0;
    for (int k = std::max(0, c - behind); k <= std::min(xv.n[1] - 1, c + ahead); ++k) sum += std::pow(double(x[xv.at(n, k, i, j)]), 2);
    y[yv.at(n, c, i, j)] = float(x[xv.at(n, c, i, j)] / std::pow(o->d[2] + o->d[0] / o->u * sum, o->d[1]));
  });
  done("lrn");
  return OK;
}
int cudnnSoftmaxForward(void* handle, int algo, int mode, const float* alpha, const void* xd, const float* x, const float* beta, const void* yd, float* y) {
  LATER(cudnnSoftmaxForward(handle, algo, mode, alpha, xd, x, beta, yd, y));
  NEED(is(handle, CUDNN) && algo == 1 && mode == 1 && *alpha == 1 && *beta == 0 && tensor(xd, x) && tensor(yd, y) && same(xd, yd));
  View xv(xd), yv(yd);
  xv.each([&](int n, int c, int i, int j) {
    double most = -INFINITY, sum = 0;
    for (int k = 0; k < xv.n[1]; ++k) most = std::fmax(most, x[xv.at(n, k, i, j)]);
    for (int k = 0; k < xv.n[1]; ++k) sum += std::exp(x[xv.at(n, k, i, j)] - most);
    y[yv.at(n, c, i, j)] = float(std::exp(x[xv.at(n, c, i, j)] - most) / sum);
  });
  done("softmax");
  return OK;
}
int cudnnBatchNormalizationForwardInference(void* handle, int mode, const float* alpha, const float* beta, const void* xd, const float* x, const void* yd,
                                            float* y, const void* bd, const float* scale, const float* bias, const float* mean, const float* variance, double epsilon) {
  LATER(cudnnBatchNormalizationForwardInference(handle, mode, alpha, beta, xd, x, yd, y, bd, scale, bias, mean, variance, epsilon));
  NEED(is(handle, CUDNN) && mode == 1 && *alpha == 1 && *beta == 0 && tensor(xd, x) && tensor(yd, y) && same(xd, yd));
  NEED(tensor(bd, scale) && tensor(bd, bias) && tensor(bd, mean) && tensor(bd, variance));
  View xv(xd), yv(yd);
  xv.each([&](int n, int c, int i, int j) {
    y[yv.at(n, c, i, j)] = float((x[xv.at(n, c, i, j)] - mean[c]) / std::sqrt(variance[c] + epsilon) * scale[c] + bias[c]);
  });
  done("batchnorm");
  return OK;
}

}  // extern "C"
