// cub::DeviceTopK, the peer of the CUDA kernels, for benchmarks/gpu/check.py: the k largest magnitudes and where they
// lie, in no order. Needs the headers of CCCL 3.2 or later (the package nvidia-cuda-cccl).
#include <cub/device/device_topk.cuh>
#include <cuda/iterator>
#include <cuda/std/execution>
#include <cuda/stream_ref>

namespace {

struct Magnitude {
    __host__ __device__ float operator()(float x) const { return x < 0.0f ? -x : x; }
};

}  // namespace

// With workspace = nullptr, only sets *bytes. Returns a cudaError_t.
extern "C" __attribute__((visibility("default"))) int cub_topk(const float* x, long long n, int k, int* indices,
                                                               float* magnitudes, void* workspace, size_t* bytes,
                                                               void* stream) {
    const auto order = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                cuda::execution::output_ordering::unsorted);
    const auto environment = cuda::std::execution::env{cuda::stream_ref{static_cast<cudaStream_t>(stream)}, order};
    return cub::DeviceTopK::MaxPairs(workspace, *bytes, cuda::make_transform_iterator(x, Magnitude{}), magnitudes,
                                     cuda::make_counting_iterator(0), indices, n, k, environment);
}
